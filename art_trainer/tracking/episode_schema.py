"""JSON schema of an episode: one for the episode store and the worker protocol; exact to the bit.

Token ids are numbers: a common prompt compresses to almost nothing. Log-probabilities are the bytes of their
float32 values in base64, since as decimals they would take twice the room of everything else; float32 is what
samplers return and what the learner computes with.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from art_trainer.types import Ending, Episode, Group, Judgement, Span, TokenHistory, Turn

LEFT_OUT = "[left out by log_observations]"
_FLOAT = np.dtype("<f4")
_FIELDS = tuple(field.name for field in dataclasses.fields(Episode))
_TURN_FIELDS = tuple(field.name for field in dataclasses.fields(Turn))


def episode_to_json(episode: Episode) -> dict[str, Any]:
    """Return an episode as what ``json.dumps`` takes, if its facts, metrics and calls are JSON-able."""
    # Not dataclasses.asdict: it copies every token id and takes ten times as long.
    data = {name: getattr(episode, name) for name in _FIELDS}
    data["turns"] = [{name: getattr(turn, name) for name in _TURN_FIELDS} for turn in episode.turns]
    data["histories"] = [[_span_to_json(span) for span in history.spans] for history in episode.histories]
    data["judgements"] = {name: dataclasses.asdict(one) for name, one in episode.judgements.items()}
    return data


def episode_from_json(data: Mapping[str, Any]) -> Episode:
    """Rebuild an episode from :func:`episode_to_json`'s result.

    Other keys are ignored. A field that an earlier version did not have gets its default.

    Raises:
        KeyError, TypeError, ValueError: If a field is missing or malformed.
    """
    built: dict[str, Any] = {name: data[name] for name in _FIELDS if name in data}
    built["turns"] = tuple(Turn(**turn) for turn in data["turns"])
    built["histories"] = tuple(
        TokenHistory(tuple(_span_from_json(span) for span in history)) for history in data["histories"]
    )
    built["ending"] = Ending(data["ending"])
    built["tools"] = tuple(data["tools"])
    built["judgements"] = {name: Judgement(**one) for name, one in data["judgements"].items()}
    return Episode(**built)


def episode_to_line(episode: Episode, place: Mapping[str, Any]) -> str:
    """Return an episode as one line of JSON without its end; the fields of ``place`` (step, group) go first.

    Raises:
        TypeError: If facts, metrics or a call hold what JSON cannot.
    """
    # ASCII: a lone surrogate in a reply survives as an escape.
    return json.dumps({**place, **episode_to_json(episode)}, separators=(",", ":"), ensure_ascii=True)


def without_observations(groups: Iterable[Group]) -> tuple[Group, ...]:
    """Copy groups without what the environment showed: only replies, calls and numbers are left.

    Observations become :data:`LEFT_OUT`; prompt tokens, facts and judges' explanations are dropped.
    """
    return tuple(Group(tuple(map(_without_observations, group.episodes))) for group in groups)


def _without_observations(episode: Episode) -> Episode:
    histories = (tuple(span for span in history.spans if span.logprobs) for history in episode.histories)
    judgements = episode.judgements.items()
    return dataclasses.replace(
        episode,
        observation=LEFT_OUT,
        turns=tuple(dataclasses.replace(turn, observation=LEFT_OUT) for turn in episode.turns),
        histories=tuple(map(TokenHistory, histories)),
        facts={},
        judgements={name: dataclasses.replace(one, explanation="") for name, one in judgements},
    )


def _span_to_json(span: Span) -> dict[str, Any]:
    data: dict[str, Any] = {"turn": span.turn, "version": span.policy_version, "tokens": span.token_ids}
    if span.logprobs:
        data["logprobs"] = base64.b64encode(np.asarray(span.logprobs, _FLOAT).tobytes()).decode("ascii")
    return data


def _span_from_json(data: Mapping[str, Any]) -> Span:
    logprobs: tuple[float, ...] = ()
    if "logprobs" in data:
        logprobs = tuple(np.frombuffer(base64.b64decode(data["logprobs"], validate=True), _FLOAT).tolist())
    return Span(tuple(data["tokens"]), data["turn"], logprobs, data["version"])
