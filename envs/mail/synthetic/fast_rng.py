"""A fast random generator for many small choices.

A `numpy.random.Generator` takes microseconds for one integer; a mailbox needs some hundred thousand.
`FastRng` draws them by the block and uses integers only, so the same seed gives the same mailbox on every
platform.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")

_BLOCK = 4096


class FastRng:
    """Uniform choices driven by one generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._block: Iterator[int] = iter(())

    def below(self, n: int) -> int:
        """An integer from 0 to ``n - 1``."""
        for value in self._block:
            return value % n
        self._block = iter(self._rng.integers(0, 1 << 40, _BLOCK).tolist())
        return next(self._block) % n

    def between(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included."""
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        """True in ``percent`` of 100 cases."""
        return self.below(100) < percent

    def pick(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """``count`` different items in a random order; all of them when there are fewer."""
        pool = list(items)
        size = min(count, len(pool))
        for i in range(size):
            j = i + self.below(len(pool) - i)
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:size]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """All items in a random order."""
        return self.sample(items, len(items))
