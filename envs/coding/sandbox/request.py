"""What the parent asks for: one run of a driver."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from art_gym.envs.coding.sandbox.limits import Limits


@dataclass(frozen=True)
class Request:
    """One run of a driver.

    Raises:
        ValueError: The seed is not of 64 bits.
    """

    driver: str
    limits: Limits
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"the seed is {self.seed}; it must be from 0 to 2**64 - 1")

    @property
    def cpu_seconds(self) -> int:
        """As the kernel counts, in whole seconds; the parent judges by the exact time in the end."""
        return math.ceil(self.limits.cpu_seconds)

    def to_json(self) -> dict[str, Any]:
        """What the child needs of it; the rest is the parent's to watch."""
        return {
            "driver": self.driver,
            "seed": self.seed,
            "cpu_seconds": self.cpu_seconds,
            "memory_bytes": self.limits.memory_bytes,
        }
