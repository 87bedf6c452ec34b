"""A judge's answer, read strictly: every id once, every score a number from 0 to 1, or no score at all."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from art_gym.errors import did_you_mean
from art_gym.wrappers.judging.llm_text import printable
from art_gym.wrappers.judging.rubrics import Score

_MOST_CHARACTERS = 200_000
_MOST_STARTS = 2_000  # places where a JSON value may begin
_JSON_START = re.compile(r"[\[{]")


class AnswerProblem(ValueError):
    """What is wrong with an answer, in words that a model can mend it by."""


def read_answer(text: str, labels: Sequence[str], criteria: Sequence[str] = ()) -> dict[str, Score]:
    """Find the scores in an answer.

    The JSON may stand in prose or a code fence. Where an answer holds several lists of scores that are whole
    and differ, nobody can tell which is meant, and it is refused.

    Args:
        text: What the model wrote.
        labels: The ids that were asked about.
        criteria: The names that an entry's ``parts`` may hold.

    Returns:
        A score for each label.

    Raises:
        AnswerProblem: For anything else than one number from 0 to 1 for each label.
    """
    if not text.strip():
        raise AnswerProblem("it is empty")
    if len(text) > _MOST_CHARACTERS:
        raise AnswerProblem(f"it has {len(text):,} characters, more than {_MOST_CHARACTERS:,}")
    read: list[dict[str, Score]] = []
    problem: AnswerProblem | None = None
    for value in _json_values(_after_thought(text)):
        try:
            entries = _entries(value)
            if entries is not None:
                scores = _scores(entries, labels, criteria)
                if scores not in read:
                    read.append(scores)
        except AnswerProblem as fault:
            problem = fault
    if len(read) == 1:
        return read[0]
    if read:
        raise AnswerProblem(f"it holds {len(read)} different lists of scores")
    raise problem or AnswerProblem(
        'it holds no JSON object with the key "scores" that can be read to its end'
    )


def _after_thought(text: str) -> str:
    """Drop what a model thought before it answered, also where one end of the thinking is missing."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


class _Fault:
    """Stands in a JSON value for something that JSON has no place for."""

    def __init__(self, words: str) -> None:
        self.words = words


def _json_values(text: str) -> Iterator[Any]:
    """Every outermost JSON object or array in a text."""
    decoder = json.JSONDecoder(parse_constant=_Fault, object_pairs_hook=_without_repetition)
    place = 0
    for _ in range(_MOST_STARTS):
        start = _JSON_START.search(text, place)
        if start is None:
            return
        try:
            value, place = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):  # not JSON from here on, or nested without end
            place = start.end()
        else:
            yield value


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Fault:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        return _Fault(f"an object with the key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return found


def _entries(value: Any) -> list[Any] | None:
    """The list of scores in a JSON value, ``None`` where it is something else."""
    if isinstance(value, _Fault):
        raise AnswerProblem(f"it holds {value.words}")
    if isinstance(value, dict) and "scores" in value:
        if isinstance(value["scores"], list):
            return value["scores"]
        raise AnswerProblem('"scores" is not a list')
    is_list = isinstance(value, list) and any(isinstance(entry, dict) and "score" in entry for entry in value)
    return value if is_list else None


def _scores(entries: list[Any], labels: Sequence[str], criteria: Sequence[str]) -> dict[str, Score]:
    scores: dict[str, Score] = {}
    for entry in entries:
        if isinstance(entry, _Fault):
            raise AnswerProblem(f"it holds {entry.words}")
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            raise AnswerProblem(f'an entry of "scores" has no "id": {_short(entry)}')
        label = entry["id"].strip()
        if label not in labels:
            raise AnswerProblem(f"no attempt has the id {_short(label)}{did_you_mean(label, labels)}")
        if label in scores:
            raise AnswerProblem(f"the id {label} is scored twice")
        if "score" not in entry:
            raise AnswerProblem(f'the entry of {label} has no "score"')
        value = _number(entry["score"], f"the score of {label}")
        scores[label] = Score(
            value, _words(entry.get("explanation")), _parts(entry.get("parts"), label, criteria)
        )
    missing = [label for label in labels if label not in scores]
    if missing:
        raise AnswerProblem(f"there is no score for {', '.join(missing)}")
    return scores


def _parts(parts: Any, label: str, criteria: Sequence[str]) -> Mapping[str, float]:
    if parts is None or not criteria:
        return {}
    if not isinstance(parts, dict):
        raise AnswerProblem(f'"parts" of {label} is neither an object nor null')
    for name in parts:
        if name not in criteria:
            raise AnswerProblem(f"no criterion is called {_short(name)}{did_you_mean(name, criteria)}")
    return {name: _number(parts[name], f"{name} of {label}") for name in criteria if name in parts}


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(what, value)
    if not 0 <= value <= 1 or not math.isfinite(value):
        _refuse(what, value)
    return float(value)


def _refuse(what: str, value: Any) -> NoReturn:
    raise AnswerProblem(f"{what} is a number from 0 to 1, not {_short(value)}")


def _words(explanation: Any) -> str:
    return printable(explanation).strip() if isinstance(explanation, str) else ""


def _short(value: Any) -> str:
    if isinstance(value, _Fault):
        return value.words
    words = repr(value)
    return printable(words if len(words) <= 80 else f"{words[:79]}…")
