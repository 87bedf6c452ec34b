"""Counts what judges do and spend, and stops them before they spend more than allowed."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from art_gym.wrappers.judging.base import JudgeFailedError, JudgingError

_PER_PRICE = 1_000_000  # prices are for a million tokens


@dataclass(slots=True)
class JudgeBudget:
    """The most that judges may spend, and what they have spent.

    A request reserves its highest possible cost before it is sent and gives the rest back with the answer, so
    that requests in progress at the same time cannot overspend together. A request that was lost on the way
    keeps its reservation: the server may have done the work, and billed it.

    Attributes:
        max_requests: Most requests, retries and repairs included; ``None`` for no bound.
        max_cost: Most money, in the currency of the prices; ``None`` for no bound.
        prompt_price_per_million: Price of a million tokens read.
        completion_price_per_million: Price of a million tokens written.
        requests: Requests sent so far.
        cost: Money spent so far, including the reservations of the requests in progress.

    Raises:
        JudgingError: For a negative bound or price, or a ``max_cost`` without a price.
    """

    max_requests: int | None = None
    max_cost: float | None = None
    prompt_price_per_million: float = 0.0
    completion_price_per_million: float = 0.0
    requests: int = field(default=0, init=False)
    cost: float = field(default=0.0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("max_requests", "max_cost", "prompt_price_per_million", "completion_price_per_million"):
            value = getattr(self, name)
            if value is not None and not (0 <= value < math.inf):
                raise JudgingError(f"{name} is a number from 0, got {value}")
        if self.max_cost is not None and not self.price(1, 1):
            raise JudgingError(
                "max_cost needs prices: set prompt_price_per_million and completion_price_per_million, "
                "or bound max_requests instead"
            )

    def price(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The price of these tokens."""
        prompt = prompt_tokens * self.prompt_price_per_million
        return (prompt + completion_tokens * self.completion_price_per_million) / _PER_PRICE

    def reserve(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Count one request and reserve its highest cost; hand what is returned to :meth:`settle`.

        Raises:
            JudgeFailedError: With reason ``"budget"``, if the request could break a bound.
        """
        wanted = self.price(prompt_tokens, completion_tokens)
        with self._lock:
            if self.max_requests is not None and self.requests >= self.max_requests:
                raise JudgeFailedError("budget", f"the judge's {self.max_requests} requests are used up")
            if self.max_cost is not None and self.cost + wanted > self.max_cost:
                raise JudgeFailedError(
                    "budget",
                    f"{self.cost:.4g} of the {self.max_cost:g} for judging are spent or reserved, and the "
                    f"next request may cost {wanted:.4g}",
                )
            self.requests += 1
            self.cost += wanted
        return wanted

    def settle(self, reserved: float, prompt_tokens: int = 0, completion_tokens: int = 0) -> float:
        """Replace a reservation by the real cost, 0 for a request that was rejected; return the cost."""
        cost = self.price(prompt_tokens, completion_tokens)
        with self._lock:
            self.cost += cost - reserved
        return cost


@dataclass(frozen=True, slots=True)
class JudgeStatistics:
    """Counts since the judge was made; judges that were made from one another count together."""

    groups: int = 0
    """Groups judged, including those that failed."""
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
    """Groups without scores, by :attr:`.JudgeFailedError.reason`."""


class Counters:
    """The statistics of a judge, counted from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.statistics = JudgeStatistics()

    def add(self, failure: str | None = None, **amounts: float) -> None:
        """Add to the counts of these names, and count a group that failed for a reason."""
        with self._lock:
            now = asdict(self.statistics)
            changed = {name: now[name] + amount for name, amount in amounts.items()}
            if failure is not None:
                changed["failures"] = now["failures"] | {failure: now["failures"].get(failure, 0) + 1}
            self.statistics = replace(self.statistics, **changed)
