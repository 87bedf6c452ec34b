"""An episode as one line of JSON, and back, bit for bit.

The text is JSON and the token ids are numbers in it: a common prompt compresses to almost nothing. The
log-probabilities are the bytes of their float32 values, in base64: as decimals they would take twice the room
of everything else. Float32 is what samplers return and what the learner computes with.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from art_trainer.episodes import Ending, Episode, Judgement, Span, TokenHistory, Turn

_FLOAT = np.dtype("<f4")
_FIELDS = tuple(field.name for field in dataclasses.fields(Episode))
_TURN_FIELDS = tuple(field.name for field in dataclasses.fields(Turn))


def encode_episode(episode: Episode, place: Mapping[str, Any]) -> str:
    """Return an episode as a line without its end, ``place`` (step, group, …) in front.

    Raises:
        TypeError: Where facts, metrics or a call hold what JSON cannot.
    """
    data: dict[str, Any] = {name: getattr(episode, name) for name in _FIELDS}
    data["turns"] = [{name: getattr(turn, name) for name in _TURN_FIELDS} for turn in episode.turns]
    data["histories"] = [[_encode_span(span) for span in history.spans] for history in episode.histories]
    data["judgements"] = {name: dataclasses.asdict(one) for name, one in episode.judgements.items()}
    # A lone surrogate in a reply is data too: written as an escape it survives.
    return json.dumps({**place, **data}, separators=(",", ":"), ensure_ascii=True)


def decode_episode(data: Mapping[str, Any]) -> Episode:
    """Rebuild the episode of a line that was read as JSON; other keys than an episode's are left out.

    A field that an earlier version did not have is what it is by default.

    Raises:
        KeyError: Where a field is missing.
        TypeError: Where one is missing, or of another kind.
        ValueError: Where one has another form.
    """
    built: dict[str, Any] = {name: data[name] for name in _FIELDS if name in data}
    built["turns"] = tuple(Turn(**turn) for turn in data["turns"])
    built["histories"] = tuple(
        TokenHistory(tuple(_decode_span(span) for span in history)) for history in data["histories"]
    )
    built["ending"] = Ending(data["ending"])
    built["tools"] = tuple(data["tools"])
    built["judgements"] = {name: Judgement(**one) for name, one in data["judgements"].items()}
    return Episode(**built)


def _encode_span(span: Span) -> dict[str, Any]:
    found: dict[str, Any] = {"turn": span.turn, "version": span.policy_version, "tokens": span.token_ids}
    if span.logprobs:
        found["logprobs"] = base64.b64encode(np.asarray(span.logprobs, _FLOAT).tobytes()).decode("ascii")
    return found


def _decode_span(data: Mapping[str, Any]) -> Span:
    stored = base64.b64decode(data.get("logprobs", ""), validate=True)
    logprobs = tuple(np.frombuffer(stored, _FLOAT).tolist())
    return Span(tuple(data["tokens"]), data["turn"], logprobs, data["version"])
