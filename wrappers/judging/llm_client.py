"""One chat request to a server, with patience: bounded retries, a bound on requests at a time, a budget."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from art_gym.wrappers.judging.errors import JudgeFailed, JudgingError
from art_gym.wrappers.judging.judge_budget import JudgeBudget
from art_gym.wrappers.judging.llm_statistics import Counters
from art_gym.wrappers.judging.llm_text import estimated_tokens
from art_gym.wrappers.judging.llm_wire import (
    Answer,
    GarbledAnswer,
    RefusedAnswer,
    read_completion,
    retry_after,
    says_too_long,
)

if TYPE_CHECKING:
    import openai

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 16.0
_BUSY = (408, 409, 425, 429)  # and every 5xx


class TooLong(Exception):
    """The server says that a question has more tokens than the model can read."""


class RequestRefused(Exception):
    """The server does not take the request as it is (400, 422); it may take it in another form."""


class _Again(Exception):
    """A fault that may pass."""

    def __init__(self, reason: str, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.reason, self.wait = reason, wait


class ChatClient:
    """Asks one model on one server; safe to use from several threads.

    The ``openai`` client's own retries are off: ours count in the budget and the statistics, and wait as long
    as the server asks, up to ``longest_wait``. A request keeps its place among the ``max_concurrency`` while
    it waits, so a busy server is not met by the next in the queue.

    Args:
        model: Its name on the server.
        base_url: The server; ``None`` for OpenAI's, or ``OPENAI_BASE_URL``.
        api_key: ``None`` for ``OPENAI_API_KEY``, or none at all for a server given by ``base_url``.
        options: Fields of every request.
        max_answer_tokens: Most tokens of an answer.
        timeout: Most seconds until an answer begins, and as many until it ends.
        max_retries: Most times that a request is sent again.
        max_concurrency: Most requests at a time.
        longest_wait: Most seconds that a server may ask to be left alone; one that asks for more has failed.
        budget: What requests may cost.
        counters: Where to count.
        sleep: Waits so many seconds.
        rng: Spreads the pauses.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None,
        *,
        api_key: str | None,
        options: Mapping[str, Any],
        max_answer_tokens: int,
        timeout: float,
        max_retries: int,
        max_concurrency: int,
        longest_wait: float,
        budget: JudgeBudget,
        counters: Counters,
        sleep: Callable[[float], None],
        rng: np.random.Generator,
    ) -> None:
        self._openai = _import_openai()
        if api_key is None and base_url is not None:
            api_key = "none"  # the client insists on one, a local server does not
        try:
            self._client: openai.OpenAI = self._openai.OpenAI(
                base_url=base_url, api_key=api_key, timeout=timeout, max_retries=0
            )
        except self._openai.OpenAIError as fault:
            raise JudgingError(
                f"set api_key or OPENAI_API_KEY, or the base_url of your server: {fault}"
            ) from fault
        self._model, self._options, self._max_answer_tokens = model, dict(options), max_answer_tokens
        self._timeout, self._max_retries, self._longest_wait = timeout, max_retries, longest_wait
        self._slots = threading.BoundedSemaphore(max_concurrency)
        self._budget, self._counters, self._sleep = budget, counters, sleep
        self._rng, self._rng_lock = rng, threading.Lock()
        self._closed = False
        self.where = f"`{model}` at {self._client.base_url}"

    def close(self) -> None:
        """Give up the connections; a later request is refused."""
        self._closed = True
        self._client.close()

    def ask(self, messages: Sequence[Mapping[str, str]], response_format: Mapping[str, Any] | None) -> Answer:
        """Send a request until it is answered.

        Raises:
            TooLong: Where the messages are too long for the model.
            RequestRefused: Where the server does not take this request in this form.
            JudgeFailed: With reason ``"timeout"``, ``"connection"``, ``"rate_limited"``, ``"server_error"``,
                ``"garbled"``, ``"refused"`` or ``"budget"``.
        """
        body = {
            "model": self._model,
            "messages": list(messages),
            "max_completion_tokens": self._max_answer_tokens,
            **({} if response_format is None else {"response_format": response_format}),
            **self._options,
        }
        with self._slots:
            number = 0
            while True:
                if self._closed:
                    raise JudgingError("the judge is closed")
                try:
                    return self._once(body)
                except _Again as fault:
                    if number == self._max_retries:
                        times = f"{number + 1} times" if number else "once"
                        raise JudgeFailed(fault.reason, f"{fault} (asked {times})") from fault
                    pause = self._pause(number, fault)
                self._sleep(pause)
                self._counters.add(retries=1)
                number += 1

    def _pause(self, number: int, fault: _Again) -> float:
        """Seconds to wait before the next try: what the server asks, else doubling.

        Pauses are spread, so that many clients do not come back in the same moment.
        """
        if fault.wait is not None and fault.wait > self._longest_wait:
            raise JudgeFailed(
                fault.reason,
                f"{fault}; it asks to be left alone for {fault.wait:.0f} s, more than the longest_wait of "
                f"{self._longest_wait:g} s",
            ) from fault
        with self._rng_lock:
            spread = float(self._rng.random())
        if fault.wait is not None:
            return fault.wait + spread * _FIRST_PAUSE_S
        longest: float = min(_FIRST_PAUSE_S * 2**number, _LONGEST_PAUSE_S)
        return longest * (0.5 + 0.5 * spread)

    def _once(self, body: dict[str, Any]) -> Answer:
        estimate = sum(estimated_tokens(message["content"]) for message in body["messages"])
        reserved = self._budget.reserve(estimate, self._max_answer_tokens)
        self._counters.add(requests=1)
        kept = reserved  # a request that was lost may have been served, and billed
        try:
            content = self._body(body)
            try:
                answer = read_completion(content)
            except RefusedAnswer as fault:
                raise JudgeFailed("refused", f"{self.where}: {fault}") from fault
            except GarbledAnswer as fault:
                raise _Again("garbled", f"{self.where}: {fault}") from fault
            kept = self._settle(reserved, estimate, answer)
            return answer
        except self._openai.APITimeoutError as fault:
            raise _Again("timeout", f"{self.where} was silent for {self._timeout:g} s") from fault
        except self._openai.APIConnectionError as fault:
            cause = f" ({fault.__cause__})" if fault.__cause__ else ""
            raise _Again("connection", f"{self.where}: {fault}{cause}") from fault
        except self._openai.APIStatusError as fault:
            kept = self._budget.settle(reserved)
            raise self._refusal(fault) from fault
        finally:
            self._counters.add(cost=kept)

    def _body(self, body: dict[str, Any]) -> bytes:
        """Send a request and read what comes back, piece by piece.

        Some servers send blanks while they work, so that a limit on silence alone would not end the wait.
        """
        deadline = time.monotonic() + self._timeout
        content = bytearray()
        with self._client.chat.completions.with_streaming_response.create(**body) as response:
            # The openai package brings httpx or, since its version 3, httpx2, and does not wrap their errors
            # while an answer is read.
            http: Any = sys.modules[type(response.http_response).__module__.partition(".")[0]]
            try:
                for piece in response.iter_bytes():
                    content += piece
                    if time.monotonic() > deadline:
                        raise _Again("timeout", f"{self.where} did not finish within {self._timeout:g} s")
            except http.TimeoutException as fault:
                raise _Again("timeout", f"{self.where} fell silent for {self._timeout:g} s") from fault
            except http.RequestError as fault:
                raise _Again("connection", f"{self.where}: the answer broke off ({fault})") from fault
        return bytes(content)

    def _settle(self, reserved: float, estimate: int, answer: Answer) -> float:
        """Put what the answer took in place of what was set aside, and estimate what the server omits."""
        read = estimate if answer.prompt_tokens is None else answer.prompt_tokens
        wrote = answer.completion_tokens
        wrote = estimated_tokens(answer.text) if wrote is None else wrote
        self._counters.add(prompt_tokens=read, completion_tokens=wrote)
        return self._budget.settle(reserved, read, wrote)

    def _refusal(self, fault: openai.APIStatusError) -> Exception:
        """What a status other than 200 means for us."""
        status, said = fault.status_code, str(fault.message)[:500]
        words = f"{self.where} answered {status}: {said}"
        code = fault.code if isinstance(fault.code, str) else None
        if says_too_long(status, said, code):
            return TooLong(words)
        if status == 429 and code == "insufficient_quota":
            return JudgeFailed("refused", f"{words}; the account behind the api_key has no credit left")
        if status in _BUSY or status >= 500:
            reason = "rate_limited" if status == 429 else "server_error"
            return _Again(reason, words, retry_after(fault.response.headers, time.time()))
        if status in (400, 422):
            return RequestRefused(words)
        return JudgeFailed("refused", words + _ADVICE.get(status, ""))


_ADVICE = {
    401: "; set api_key, or OPENAI_API_KEY, to a valid key",
    403: "; the key may not use this model: set another api_key or model",
    404: "; check the model's name and that base_url is the server's address up to /v1",
}


def _import_openai() -> ModuleType:
    try:
        import openai
    except ImportError as fault:
        raise ImportError(
            'LLMJudge asks through the `openai` package: pip install "art-gym[openai]"'
        ) from fault
    return openai
