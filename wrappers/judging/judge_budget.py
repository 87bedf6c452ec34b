"""How much judging may cost: a bound on requests and on money, shared by as many judges as wanted."""

from __future__ import annotations

import math
import threading

from art_gym.wrappers.judging.errors import JudgeFailed, JudgingError

_PER_PRICE = 1_000_000  # prices are for a million tokens


class JudgeBudget:
    """Counts what judges spend, and stops them before they spend more than allowed.

    A request reserves its highest possible cost before it is sent and gives the rest back with the answer, so
    that requests under way at the same time cannot overspend together. A request that was lost on the way
    keeps its reservation: the server may have done the work, and billed it.

    Args:
        max_requests: Most requests, retries and repairs included; ``None`` for no bound.
        max_cost: Most money, in the currency of the prices; ``None`` for no bound.
        prompt_price_per_million: Price of a million tokens read.
        completion_price_per_million: Price of a million tokens written.

    Raises:
        JudgingError: For a negative bound or price, or a ``max_cost`` without a price.
    """

    def __init__(
        self,
        max_requests: int | None = None,
        max_cost: float | None = None,
        prompt_price_per_million: float = 0.0,
        completion_price_per_million: float = 0.0,
    ) -> None:
        given = {
            "max_requests": max_requests,
            "max_cost": max_cost,
            "prompt_price_per_million": prompt_price_per_million,
            "completion_price_per_million": completion_price_per_million,
        }
        for name, value in given.items():
            if value is not None and not (0 <= value < math.inf):
                raise JudgingError(f"{name} is a number from 0, got {value}")
        if max_cost is not None and not prompt_price_per_million + completion_price_per_million:
            raise JudgingError(
                "max_cost needs prices: set prompt_price_per_million and completion_price_per_million, "
                "or bound max_requests instead"
            )
        self.max_requests = max_requests
        self.max_cost = max_cost
        self.prompt_price_per_million = prompt_price_per_million
        self.completion_price_per_million = completion_price_per_million
        self._requests, self._cost = 0, 0.0
        self._lock = threading.Lock()

    @property
    def requests(self) -> int:
        """Requests sent so far."""
        return self._requests

    @property
    def cost(self) -> float:
        """Money spent so far, with what is reserved for the requests under way."""
        return self._cost

    def price(self, prompt_tokens: int, completion_tokens: int) -> float:
        """What so many tokens cost."""
        prompt = prompt_tokens * self.prompt_price_per_million
        completion = completion_tokens * self.completion_price_per_million
        return (prompt + completion) / _PER_PRICE

    def reserve(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Set money aside for one request, and count it.

        Args:
            prompt_tokens: An estimate, rather too high.
            completion_tokens: The most that the answer may have.

        Returns:
            What was set aside; hand it to :meth:`settle` when the answer is there.

        Raises:
            JudgeFailed: With reason ``"budget"``, where the request could break a bound.
        """
        wanted = self.price(prompt_tokens, completion_tokens)
        with self._lock:
            if self.max_requests is not None and self._requests >= self.max_requests:
                raise JudgeFailed("budget", f"the judge's {self.max_requests} requests are used up")
            if self.max_cost is not None and self._cost + wanted > self.max_cost:
                raise JudgeFailed(
                    "budget",
                    f"{self._cost:.4g} of the {self.max_cost:g} for judging are spent or set aside, and the "
                    f"next request may cost {wanted:.4g}",
                )
            self._requests += 1
            self._cost += wanted
        return wanted

    def settle(self, reserved: float, prompt_tokens: int = 0, completion_tokens: int = 0) -> float:
        """Put what a request really cost in place of its reservation; return the cost.

        Without tokens the request cost nothing, as where a server refused it.
        """
        cost = self.price(prompt_tokens, completion_tokens)
        with self._lock:
            self._cost += cost - reserved
        return cost
