"""What servers that speak OpenAI's chat protocol send back, read with nothing taken for granted."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from art_gym.wrappers.judging.llm_text import printable

_TOO_LONG = re.compile(
    r"context[ _]?(length|window|size)|too (long|many tokens)|maximum.{0,20}tokens|exceed_context",
    re.IGNORECASE,
)


class GarbledAnswer(ValueError):
    """A body that is no chat completion."""


class RefusedAnswer(ValueError):
    """A chat completion in which the model, or a filter before it, declines."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model wrote, and what that took.

    Attributes:
        text: Its words; empty where there were none.
        cut: Whether it stopped at the most tokens allowed.
        prompt_tokens: As the server counted them; ``None`` where it did not.
        completion_tokens: The same.
    """

    text: str
    cut: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


def read_completion(body: bytes) -> Answer:
    """Read a chat completion.

    Raises:
        GarbledAnswer: For another encoding than UTF-8, broken JSON, or JSON without a message.
        RefusedAnswer: Where the model declined to answer, or a filter stopped it.
    """
    try:
        completion = json.loads(body.decode("utf-8-sig"))
    except UnicodeDecodeError as fault:
        raise GarbledAnswer(f"the server's answer is not UTF-8: {fault}") from fault
    except (ValueError, RecursionError) as fault:
        raise GarbledAnswer(f"the server's answer is not JSON: {fault}") from fault
    choices = completion.get("choices") if isinstance(completion, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        shown = printable(body[:200].decode(errors="replace"))
        raise GarbledAnswer(f"the server's answer has no choices[0].message; it begins {shown!r}")
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise GarbledAnswer(f"the message's content is {type(content).__name__}, not text")
    if message.get("refusal"):
        raise RefusedAnswer(f"the model declines: {printable(str(message['refusal']))[:300]}")
    if choice.get("finish_reason") == "content_filter":
        raise RefusedAnswer("the server's content filter stopped the answer")
    usage = completion.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    cut = choice.get("finish_reason") == "length"
    return Answer(
        printable(content or ""),
        cut,
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
    )


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that a server asks to be left alone, ``None`` where it does not say.

    Args:
        headers: Of its answer: ``Retry-After`` in seconds or as a date (RFC 9110, 10.2.3), or the usual
            ``Retry-After-Ms``.
        now: The time, in seconds since 1970 (UTC).
    """
    for name, divisor in (("retry-after-ms", 1000), ("retry-after", 1)):
        value = headers.get(name, "").strip()
        if not value:
            continue
        try:
            seconds = float(value) / divisor
        except ValueError:
            seconds = _seconds_until(value, now)
        if seconds > 0 and math.isfinite(seconds):
            return seconds
    return None


def says_too_long(status: int, message: str, code: str | None) -> bool:
    """Whether a refusal means that the question has more tokens than the model can read."""
    if status == 413 or code in ("context_length_exceeded", "exceed_context_size_error"):
        return True
    return status in (400, 422) and bool(_TOO_LONG.search(message))


def _seconds_until(date: str, now: float) -> float:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return 0.0
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() - now


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
