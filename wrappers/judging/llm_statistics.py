"""What a judge has done so far, counted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class JudgeStatistics:
    """Counts since the judge was made; judges that were made from one another count together."""

    groups: int = 0
    """Groups asked about, those that failed included."""
    requests: int = 0
    """HTTP requests sent, repairs and retries included."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """In the currency of the budget's prices; 0 without prices."""
    cache_hits: int = 0
    """Questions answered from disk."""
    repairs: int = 0
    """Questions asked again, because an answer could not be used."""
    retries: int = 0
    """Requests sent again, because the server was busy, broken or silent."""
    cuts: int = 0
    """Questions asked again with less material, because the server found them too long."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Groups without scores, by :attr:`.JudgeFailed.reason`."""


class Counters:
    """Counts from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._amounts: Counter[str] = Counter()
        self._cost = 0.0
        self._failures: Counter[str] = Counter()

    def add(self, cost: float = 0.0, **amounts: int) -> None:
        """Add to the counts of these names."""
        with self._lock:
            self._cost += cost
            self._amounts.update(amounts)

    def fail(self, reason: str) -> None:
        """Count a group without scores."""
        with self._lock:
            self._failures[reason] += 1

    def snapshot(self) -> JudgeStatistics:
        """The counts at this moment."""
        with self._lock:
            return JudgeStatistics(cost=self._cost, failures=dict(self._failures), **self._amounts)
