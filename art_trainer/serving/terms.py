"""What chat and text completions have in common: how many replies, how long, how sampled, how told."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from art_trainer.sampler import SamplingParams
from art_trainer.web.errors import ApiError

MOST_ALTERNATIVES = 20
OPENAI_STOPS = 4
_LONGEST_STOP = 1000
_MOST_CHOICES = 128
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "ignore_eos": (False,),
    "min_tokens": (0,),
    "prompt_logprobs": (),
    "structured_outputs": (),
}
# Far beyond what anybody samples with, and near enough to keep every number finite.
_RANGES = {
    "temperature": (0.01, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
}


@dataclass(frozen=True, slots=True)
class Terms:
    """What a client asks for, besides what is to be continued."""

    model: str
    max_tokens: int | None
    stops: tuple[str, ...]
    seed: int | None
    count: int
    """How many replies."""
    logprobs: int | None
    """How many alternatives to report with each token's log-prob; ``None`` reports neither."""
    token_ids: bool
    stream: bool
    include_usage: bool

    @classmethod
    def read(cls, body: Mapping[str, Any], logprobs: int | None, most_stops: int = OPENAI_STOPS) -> Terms:
        """Check the fields of a request's body.

        Args:
            body: The body.
            logprobs: As it stands there, in whatever way.
            most_stops: How many stop strings are offered.

        Raises:
            ApiError: Where a field is of a wrong type, or asks for what is not offered.
        """
        refuse_all_but(body, _NEUTRAL)
        if logprobs is not None and not 0 <= logprobs <= MOST_ALTERNATIVES:
            words = f"{logprobs} alternatives are asked for: from 0 to {MOST_ALTERNATIVES} are offered"
            raise ApiError(words, param="logprobs")
        options: Mapping[str, Any] = typed(body, "stream_options", Mapping) or {}
        count = typed(body, "n", int)
        if count is not None and not 1 <= count <= _MOST_CHOICES:
            raise ApiError(f"n is {count}: from 1 to {_MOST_CHOICES} replies are offered", param="n")
        return cls(
            model=typed(body, "model", str) or "",
            max_tokens=_max_tokens(body),
            stops=_stops(body.get("stop"), most_stops),
            seed=typed(body, "seed", int),
            count=count or 1,
            logprobs=logprobs,
            token_ids=bool(typed(body, "return_token_ids", bool)),
            stream=bool(typed(body, "stream", bool)),
            include_usage=bool(options.get("include_usage")),
        )


def read_sampling(body: Mapping[str, Any], defaults: SamplingParams) -> SamplingParams:
    """How a client wants replies to be sampled.

    Args:
        body: A request's body.
        defaults: What it leaves out is as here.

    Raises:
        ApiError: For a value that is no number, or out of range.
    """
    wanted: dict[str, Any] = {}
    for name, (low, high) in _RANGES.items():
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ApiError(f"{name} is {value!r}: send a number", param=name)
        zero = name == "temperature" and value == 0
        if not (zero or low <= value <= high) or (name == "top_p" and value == 0):
            words = (
                f"0, or from {low:g} to {high:g}" if name == "temperature" else f"from {low:g} to {high:g}"
            )
            raise ApiError(f"{name} is {value!r}: it lies {words}", param=name)
        wanted[name] = float(value)
    top_k = typed(body, "top_k", int)
    if top_k is not None:
        if top_k < -1:
            raise ApiError(f"top_k is {top_k}: send 1 or more, or 0 for all tokens", param="top_k")
        wanted["top_k"] = max(top_k, 0)  # -1 is vLLM's word for all
    return dataclasses.replace(defaults, **wanted)


def refuse_all_but(body: Mapping[str, Any], neutral: Mapping[str, tuple[object, ...]]) -> None:
    """Refuse fields that ask for what is not offered.

    Args:
        body: A request's body.
        neutral: Such fields, and what they may be set to.

    Raises:
        ApiError: Where one is set to something else.
    """
    for name, allowed in neutral.items():
        value = body.get(name)
        if value is not None and value not in allowed:
            words = f"leave it out or send {allowed[0]!r}" if allowed else "leave it out"
            raise ApiError(f"{name}={value!r} is not offered here: {words}", param=name)


def typed(body: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    """A field that is of a type, or not there.

    Raises:
        ApiError: Where it is of another.
    """
    value = body.get(name)
    wrong_bool = isinstance(value, bool) and kind is int
    if value is not None and (wrong_bool or not isinstance(value, kind)):
        found = type(value).__name__
        raise ApiError(f"{name} is {value!r}, of type {found}: send a {kind.__name__}", param=name)
    return value


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value: int | None = typed(body, name, int)
        if value is not None:
            if value < 1:
                raise ApiError(f"{name} is {value}: send at least 1", param=name)
            return value
    return None


def _stops(value: object, most: int) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise ApiError(f"stop is {value!r}: send up to {most} texts, none empty", param="stop")
    if len(stops) > most or any(len(stop) > _LONGEST_STOP for stop in stops):
        words = f"send up to {most} texts, none longer than {_LONGEST_STOP} characters"
        raise ApiError(
            f"stop has {len(stops)} texts, the longest of {max(map(len, stops))}: {words}", param="stop"
        )
    return tuple(stops)
