"""How long to wait before trying again: longer each time, and not all workers at the same moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubles from a first pause to a longest one, each a random share of it.

    Attributes:
        rng: Draws the shares.
        first: Seconds before the second attempt, at most.
        longest: Seconds before any, at most.
    """

    rng: np.random.Generator
    first: float = 0.5
    longest: float = 30.0

    def seconds(self, attempt: int) -> float:
        """How long to wait.

        Args:
            attempt: How many attempts have failed, from 1.
        """
        # Of 2**20 the longest pause is long reached.
        whole = min(self.longest, self.first * 2.0 ** min(attempt - 1, 20))
        return whole * float(self.rng.uniform(0.5, 1.0))
