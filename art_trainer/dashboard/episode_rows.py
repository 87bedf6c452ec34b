"""One recorded line as the table of episodes needs it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

from art_trainer.dashboard.episode_query import ENDINGS, NO, UNJUDGED, UNTOLD, YES
from art_trainer.episodes import Ending

PREVIEW = 120
"""Characters of the last reply that the table shows."""
_SPACE = re.compile(r"\s+")
_FLOAT_BYTES = 4

RowValues = tuple[int, int, int, int, int, int, int, int, int, int, bool, float]


def row_of(data: Mapping[str, Any], place: int, frame: int, task: int) -> RowValues:
    """Return the values of an episode's row, in the order of ``ROW``.

    Args:
        data: A line of ``episodes.jsonl.zst``.
        place: Its number in its step's frame, from 0.
        frame: The frame's number.
        task: The task's number.

    Raises:
        KeyError: Where a field is missing.
        TypeError: Where one is of another kind.
        ValueError: Where one has another form.
    """
    turns, success = data["turns"], data.get("success")
    ending = UNJUDGED if data.get("unjudged") is not None else ENDINGS.index(Ending(data["ending"]))
    return (
        int(data["step"]),
        place,
        int(data["group"]),
        frame,
        task,
        len(turns),
        _sampled_tokens(data["histories"]),
        sum(turn["error"] is not None for turn in turns),
        UNTOLD if success is None else YES if success else NO,
        ending,
        bool(data["replaced"]),
        float(sum(turn["reward"] for turn in turns)),
    )


def preview_of(data: Mapping[str, Any]) -> str:
    """Return what the table shows of an episode's words: a fault's, or else the last reply's."""
    turns = data["turns"]
    words = data.get("error") or (turns[-1]["reply"] if turns else "")
    return _SPACE.sub(" ", str(words)[: PREVIEW * 2]).strip()[:PREVIEW]


def said_in(data: Mapping[str, Any], words: str) -> bool:
    """Whether some words, already casefolded, occur in what was shown, said or judged in an episode."""
    texts = [data["observation"], data.get("error") or ""]
    for turn in data["turns"]:
        texts += (turn["reply"], turn["observation"])
    texts += (judgement["explanation"] for judgement in data.get("judgements", {}).values())
    return any(words in text.casefold() for text in texts)


def raw_needle(text: str) -> bytes | None:
    """Return bytes that a line holds in lower case where it holds a text; ``None`` where nobody can say.

    A line is ASCII with JSON's escapes, so that one without these bytes needs no reading as JSON. Letters
    that only casefolding makes ASCII, as "ß" to "ss", are so found by texts that are not ASCII themselves.
    """
    return json.dumps(text.lower())[1:-1].encode("ascii") if text.isascii() else None


def _sampled_tokens(histories: Any) -> int:
    """Count sampled tokens by the length of their log-probs."""
    return sum(
        len(base64.b64decode(span["logprobs"])) // _FLOAT_BYTES
        for history in histories
        for span in history
        if span.get("logprobs")
    )
