"""Statistics of a stream in bounded memory: however long a run was, these stay as large as they are."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True)
class Moments:
    """Count, mean and spread of numbers.

    Source: B. P. Welford, "Note on a method for calculating corrected sums of squares and products",
    Technometrics 4 (1962); merged as in T. F. Chan, G. H. Golub and R. J. LeVeque (1979).
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """The sum of squared distances from the mean."""
    highest: float = -math.inf
    """The largest of the numbers."""

    def add(self, value: float) -> None:
        """Take in one number; one that is not finite says nothing and is left out."""
        if not math.isfinite(value):
            return
        self.count += 1
        distance = value - self.mean
        self.mean += distance / self.count
        self.squares += distance * (value - self.mean)
        self.highest = max(self.highest, value)

    def merge(self, other: Moments) -> None:
        """Take in all numbers of another."""
        if other.count == 0:
            return
        total = self.count + other.count
        distance = other.mean - self.mean
        self.squares += other.squares + distance * distance * self.count * other.count / total
        self.mean += distance * other.count / total
        self.count = total
        self.highest = max(self.highest, other.highest)

    @property
    def spread(self) -> float:
        """The standard deviation, with ``count - 1``; 0 for fewer than two numbers."""
        return math.sqrt(max(self.squares, 0.0) / (self.count - 1)) if self.count > 1 else 0.0


@dataclass(slots=True)
class Covariance:
    """How two numbers go together inside classes: only distances from each class's own means count."""

    xy: float = 0.0
    xx: float = 0.0
    yy: float = 0.0
    freedom: int = 0
    """Pairs less classes: what an estimate's uncertainty follows."""

    def add_class(self, xs: list[float], ys: list[float]) -> None:
        """Take in the pairs of one class; a class of one says nothing."""
        count = len(xs)
        if count < 2:
            return
        x_mean, y_mean = sum(xs) / count, sum(ys) / count
        for x, y in zip(xs, ys, strict=True):
            self.xy += (x - x_mean) * (y - y_mean)
            self.xx += (x - x_mean) ** 2
            self.yy += (y - y_mean) ** 2
        self.freedom += count - 1

    def merge(self, other: Covariance) -> None:
        """Take in all classes of another."""
        self.xy += other.xy
        self.xx += other.xx
        self.yy += other.yy
        self.freedom += other.freedom

    @property
    def correlation(self) -> float | None:
        """Pearson's correlation within classes, in [-1, 1]; ``None`` where one of the two never varies."""
        # What rounding leaves of numbers that are all the same is no variance.
        if min(self.xx, self.yy) < 1e-9 * max(1, self.freedom):
            return None
        return max(-1.0, min(1.0, self.xy / math.sqrt(self.xx * self.yy)))


class TopCounts(Generic[K]):
    """The most frequent keys of a stream, by Misra and Gries's algorithm.

    A count is never too high, and too low by at most ``total / limit``; up to ``limit`` keys it is exact.
    Source: J. Misra and D. Gries, "Finding repeated elements", Science of Computer Programming 2 (1982);
    merged as in P. K. Agarwal et al., "Mergeable summaries", PODS 2012.

    Args:
        limit: Most keys kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self.counts: dict[K, int] = {}

    def add(self, key: K, times: int = 1) -> None:
        """Count a key."""
        self.total += times
        self.counts[key] = self.counts.get(key, 0) + times
        if len(self.counts) > 2 * self.limit:
            self._shrink()

    def merge(self, other: TopCounts[K]) -> None:
        """Take in all counts of another."""
        self.total += other.total
        for key, count in other.counts.items():
            self.counts[key] = self.counts.get(key, 0) + count
        if len(self.counts) > 2 * self.limit:
            self._shrink()

    def most_common(self, count: int) -> list[tuple[K, int]]:
        """The most frequent keys with their counts, most frequent first, ties in order of appearance."""
        return sorted(self.counts.items(), key=lambda pair: -pair[1])[:count]

    def _shrink(self) -> None:
        largest_dropped = sorted(self.counts.values(), reverse=True)[self.limit]
        self.counts = {key: n - largest_dropped for key, n in self.counts.items() if n > largest_dropped}


class KeySample(Generic[V]):
    """A value for each key of a stream; where there are too many keys, for a fair sample of them.

    A key is kept by its hash alone, so what is kept is exact: every event of a kept key was seen. Source: the
    adaptive sampling of M. Wegman, in P. Flajolet, "On adaptive sampling", Computing 43 (1990).

    Args:
        limit: Most keys kept.
        make: Makes the value of a new key.
    """

    def __init__(self, limit: int, make: Callable[[], V]) -> None:
        self._limit, self._make = limit, make
        self.values: dict[str, V] = {}
        self.share = 1.0
        """The share of keys that are kept."""

    def get(self, key: str) -> V | None:
        """The key's value, made where it is new; ``None`` for a key that is not of the sample."""
        found = self.values.get(key)
        if found is not None:
            return found
        if self.share < 1 and _place(key) >= self.share:
            return None
        found = self.values[key] = self._make()
        if len(self.values) > self._limit:
            self.share /= 2
            self.values = {name: value for name, value in self.values.items() if _place(name) < self.share}
        return found


def _place(key: str) -> float:
    """A number in [0, 1) that depends on the key alone, the same in every process."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


class Mergeable(Protocol):
    """Something that can take in another of its kind."""

    def merge(self, other: Self, /) -> None:
        """Take in all that the other holds."""


M = TypeVar("M", bound=Mergeable)


class Timeline(Generic[M]):
    """One accumulator for each stretch of steps; stretches double in width where there are too many.

    Args:
        make: Makes an empty accumulator.
        limit: Most stretches kept.
    """

    def __init__(self, make: Callable[[], M], limit: int = 96) -> None:
        self._make, self._limit = make, limit
        self.width = 1
        """Steps a stretch."""
        self._stretches: dict[int, M] = {}

    def at(self, step: int) -> M:
        """The accumulator that a step belongs to."""
        place = step // self.width
        found = self._stretches.get(place)
        if found is None:
            found = self._stretches[place] = self._make()
            if len(self._stretches) > self._limit:
                self._widen()
                return self.at(step)
        return found

    def items(self) -> list[tuple[int, M]]:
        """The first step of each stretch that has anything, with its accumulator, in order."""
        return [(place * self.width, held) for place, held in sorted(self._stretches.items())]

    def _widen(self) -> None:
        while len(self._stretches) > self._limit:
            self.width *= 2
            old, self._stretches = self._stretches, {}
            for place, held in sorted(old.items()):
                into = self._stretches.get(place // 2)
                if into is None:
                    self._stretches[place // 2] = held
                else:
                    into.merge(held)
