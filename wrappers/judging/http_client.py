"""A client for OpenAI's chat protocol: retries, a limit on requests at a time, a budget, answer formats."""

from __future__ import annotations

import json
import math
import random
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from time import sleep
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from art_gym.wrappers.judging.base import JudgeFailedError, JudgingError
from art_gym.wrappers.judging.budget import Counters, JudgeBudget
from art_gym.wrappers.judging.prompt import estimated_tokens, printable

if TYPE_CHECKING:
    import openai

Structured = Literal["auto", "json_schema", "json_object", "text"]
FORMATS: tuple[Structured, ...] = ("json_schema", "json_object", "text")
"""The ways to request a form of answer: from the strictest to the one that every server has."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 16.0
_LONGEST_WAIT_S = 120.0  # that a server may ask for (Retry-After)
_OPENAI = re.compile(r"openai:(?P<model>.+?)(?:@(?P<url>https?://.+))?")
_BUSY = (408, 409, 425, 429)  # and every 5xx
_JITTER = random.Random()
_NO_COUNT = 2**63  # tokens
_TOO_LONG = re.compile(
    r"context[ _]?(length|window|size)|too (long|many tokens)|maximum.{0,20}tokens|exceed_context",
    re.IGNORECASE,
)
_ADVICE = {
    401: "; set api_key, or OPENAI_API_KEY, to a valid key",
    403: "; the key may not use this model: set another api_key or model",
    404: "; check the model's name and that base_url is the server's address up to /v1",
}


def parse_openai(name: str) -> tuple[str, str | None]:
    """The model and the server's address that ``openai:MODEL@URL`` names; a JudgingError for another form."""
    match = _OPENAI.fullmatch(name)
    if match is None:
        raise JudgingError(
            f"{name!r} names no model: write openai:MODEL@URL, as in openai:qwen3@http://localhost:8000/v1"
        )
    return match["model"], match["url"]


class ContextLengthError(Exception):
    """The server says that a question is longer than the model's context."""


class RequestRejectedError(Exception):
    """The server does not take the request as it is (400, 422); it may take it in another form."""


class RetryableError(JudgeFailedError):
    """A failure that may pass; ``wait`` is how many seconds the server asks for."""

    def __init__(self, reason: str, message: str, wait: float | None = None) -> None:
        super().__init__(reason, message)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's text, and the tokens it took.

    Attributes:
        text: Empty if there was none.
        cut: Whether it stopped at the most tokens allowed.
        prompt_tokens: As the server counted them; ``None`` if it did not.
        completion_tokens: The same.
    """

    text: str
    cut: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


def first_choice(body: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a chat completion and its first choice, whose message has a text or ``None`` as ``content``.

    Raises:
        ValueError: For anything else.
    """
    start = printable(body[:200].decode(errors="replace"))
    try:
        completion = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the answer is not JSON ({error}); it begins {start!r}") from error
    choices = completion.get("choices") if isinstance(completion, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    content = message.get("content") if isinstance(message, dict) else 0
    if not isinstance(choice, dict) or not isinstance(content, str | None):
        raise ValueError(f"the answer has no text in choices[0].message; it begins {start!r}")
    return completion, choice


def read_completion(body: bytes, server: str) -> Answer:
    """Read what a model answered; messages name the server.

    Raises:
        JudgeFailedError: ``"garbled"`` for what is no chat completion, ``"refused"`` if the model or a filter
            declines.
    """
    try:
        completion, choice = first_choice(body)
    except ValueError as error:
        raise RetryableError("garbled", f"{server}: {error}") from error
    message, ending = choice["message"], choice.get("finish_reason")
    if message.get("refusal"):
        refusal = printable(str(message["refusal"]))[:300]
        raise JudgeFailedError("refused", f"{server}: the model declines: {refusal}")
    if ending == "content_filter":
        raise JudgeFailedError("refused", f"{server}: a content filter stopped the answer")
    usage = completion.get("usage")
    counts = [_count(usage, name) for name in ("prompt_tokens", "completion_tokens")]
    return Answer(printable(message.get("content") or ""), ending == "length", *counts)


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and 0 <= value < _NO_COUNT else None


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that a server asks to wait, 0 for a time that is over; ``None`` if it does not say.

    Args:
        headers: Of its answer: ``Retry-After`` in seconds or as a date (RFC 9110, 10.2.3), or the usual
            ``Retry-After-Ms``.
        now: The time, in seconds since 1970 (UTC).
    """
    for name, divisor in (("retry-after-ms", 1000), ("retry-after", 1)):
        value = headers.get(name, "").strip()
        try:
            seconds = float(value) / divisor
        except ValueError:
            seconds = _seconds_until(value, now)
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None


def _seconds_until(date: str, now: float) -> float:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return math.nan
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() - now


def is_context_length_error(status: int, message: str, code: str | None) -> bool:
    """Whether a refusal means that the question is longer than the model's context."""
    if status == 413 or code in ("context_length_exceeded", "exceed_context_size_error"):
        return True
    return status in (400, 422) and bool(_TOO_LONG.search(message))


class ChatClient:
    """Asks one model on one server; safe to use from several threads.

    The ``openai`` client's own retries are off: ours count in the budget and the statistics. A request keeps
    its place among the ``max_concurrency`` while it waits, so that the next one does not meet the same busy
    server.

    A server says that it lacks an answer format by rejecting the request (400 or 422), and it rejects other
    requests the same way; so a format counts as lacking only once a weaker one was accepted for the same
    question. ``options`` are fields of every request; the other arguments are those of :class:`.LLMJudge`.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None,
        *,
        api_key: str | None,
        options: Mapping[str, Any],
        structured: Structured,
        max_answer_tokens: int,
        timeout: float,
        max_retries: int,
        max_concurrency: int,
        budget: JudgeBudget,
        counters: Counters,
    ) -> None:
        self._openai = _import_openai()
        if api_key is None and base_url is not None:
            api_key = "none"  # the client insists on one, a local server does not
        try:
            self._client: openai.OpenAI = self._openai.OpenAI(
                base_url=base_url, api_key=api_key, timeout=timeout, max_retries=0
            )
        except self._openai.OpenAIError as error:
            raise JudgingError(
                f"set api_key or OPENAI_API_KEY, or the base_url of your server: {error}"
            ) from error
        self._body = {"model": model, "max_completion_tokens": max_answer_tokens, **options}
        self._formats = FORMATS if structured == "auto" else (structured,)
        self._max_answer_tokens, self._max_retries = max_answer_tokens, max_retries
        self._timeout = timeout
        self._slots = threading.BoundedSemaphore(max_concurrency)
        self._budget, self._counters = budget, counters
        self.where = f"`{model}` at {self._client.base_url}"

    def close(self) -> None:
        """Close the connections; later requests raise."""
        self._client.close()

    def ask(self, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Any]) -> Answer:
        """Ask a question in the strictest answer format that the server takes, which is remembered."""
        rejections = []
        for place, form in enumerate(to_try := self._formats):
            body = {**self._body, "messages": list(messages), **_response_format(form, schema)}
            try:
                answer = self._with_retries(body)
            except RequestRejectedError as error:
                rejections.append(str(error))
            else:
                if place:
                    self._formats = to_try[place:]
                return answer
        raise JudgeFailedError("refused", rejections[0])

    def _with_retries(self, body: dict[str, Any]) -> Answer:
        number = 0
        with self._slots:
            while True:
                try:
                    return self._once(body)
                except RetryableError as error:
                    if number == self._max_retries:
                        raise
                    sleep(_pause(number, error))
                    self._counters.add(retries=1)
                    number += 1

    def _once(self, body: dict[str, Any]) -> Answer:
        if self._client.is_closed():
            raise JudgingError("the judge is closed")
        estimate = sum(estimated_tokens(message["content"]) for message in body["messages"])
        reserved = self._budget.reserve(estimate, self._max_answer_tokens)
        self._counters.add(requests=1)
        cost = reserved  # a request that was lost may have been served, and billed
        try:
            answer = read_completion(self._send(body), self.where)
            cost = self._settle(reserved, estimate, answer)
            return answer
        except self._openai.APITimeoutError as error:
            raise RetryableError("timeout", f"{self.where} did not answer in time") from error
        except self._openai.APIConnectionError as error:
            raise RetryableError("connection", f"{self.where}: {error} ({error.__cause__})") from error
        except self._openai.APIStatusError as error:
            cost = self._budget.settle(reserved)
            raise self._rejection(error) from error
        finally:
            self._counters.add(cost=cost)

    def _send(self, body: dict[str, Any]) -> bytes:
        """Send a request and read the answer's body, within ``timeout`` seconds.

        The openai client's own timeout is for silence only, but some servers send blanks while they work.
        """
        deadline = time.monotonic() + self._timeout
        data = bytearray()
        with self._client.chat.completions.with_streaming_response.create(**body) as response:
            # openai is built on httpx or, since its version 3, httpx2; it does not wrap their errors here.
            http: Any = sys.modules[type(response.http_response).__module__.partition(".")[0]]
            try:
                for part in response.iter_bytes():
                    data += part
                    if time.monotonic() > deadline:
                        raise RetryableError("timeout", f"{self.where} did not finish in {self._timeout:g} s")
            except http.TimeoutException as error:
                raise RetryableError("timeout", f"{self.where} did not answer in time") from error
            except http.RequestError as error:
                raise RetryableError("connection", f"{self.where}: the answer broke off ({error})") from error
        return bytes(data)

    def _settle(self, reserved: float, estimate: int, answer: Answer) -> float:
        """Replace the reservation by the cost of the answer; what the server does not count is estimated."""
        prompt, completion = answer.prompt_tokens, answer.completion_tokens
        prompt = estimate if prompt is None else prompt
        completion = estimated_tokens(answer.text) if completion is None else completion
        self._counters.add(prompt_tokens=prompt, completion_tokens=completion)
        return self._budget.settle(reserved, prompt, completion)

    def _rejection(self, error: openai.APIStatusError) -> Exception:
        """The error for a status other than 200."""
        status, text = error.status_code, str(error.message)[:500]
        message = f"{self.where} answered {status}: {text}"
        code = error.code if isinstance(error.code, str) else None
        if is_context_length_error(status, text, code):
            return ContextLengthError(message)
        if status == 429 and code == "insufficient_quota":
            return JudgeFailedError("refused", f"{message}; the account of the api_key has no credit left")
        # llama.cpp's Python server answers 500 to a form that it does not know.
        if status in (400, 422) or (status == 500 and "response_format" in text):
            return RequestRejectedError(message)
        if status in _BUSY or status >= 500:
            reason = "rate_limited" if status == 429 else "server_error"
            return RetryableError(reason, message, retry_after(error.response.headers, time.time()) or None)
        return JudgeFailedError("refused", message + _ADVICE.get(status, ""))


def _pause(number: int, error: RetryableError) -> float:
    """Seconds to wait before the next try: what the server asks, else doubling.

    Pauses are spread, so that many clients do not come back in the same moment.
    """
    if error.wait is None:
        longest: float = min(_FIRST_PAUSE_S * 2**number, _LONGEST_PAUSE_S)
        return longest * (0.5 + 0.5 * _JITTER.random())
    if error.wait > _LONGEST_WAIT_S:
        raise JudgeFailedError(
            error.reason, f"{error}; it asks to wait {error.wait:.0f} s, more than {_LONGEST_WAIT_S:g} s"
        ) from error
    return error.wait + _JITTER.random() * _FIRST_PAUSE_S


def _response_format(form: Structured, schema: Mapping[str, Any]) -> dict[str, Any]:
    if form == "text":
        return {}
    if form == "json_object":  # with llama.cpp's extension, by which it keeps to the schema
        return {"response_format": {"type": form, "schema": schema}}
    return {"response_format": {"type": form, form: {"name": "answer", "strict": True, "schema": schema}}}


def _import_openai() -> ModuleType:
    try:
        import openai
    except ImportError as error:
        raise ImportError(
            'a model on a server is asked through the `openai` package: pip install "art-gym[openai]"'
        ) from error
    return openai
