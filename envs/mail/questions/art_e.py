"""Load questions in the format of ART-E, OpenPipe's email agent: one JSON object a line."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from os import PathLike
from pathlib import Path
from typing import Any

from art_gym.envs.mail.message import bare_id
from art_gym.envs.mail.questions.model import AnswerType, Question
from art_gym.envs.mail.store.store import MailStore

_AMOUNT = re.compile(r"\s*(?:[€$£]|eur\b|usd\b)\s?\d[\d.,]*\s*(?:million|k)?\s*\.?", re.IGNORECASE)
_DAY = timedelta(days=1)


def load_art_e(path: str | PathLike[str], store: MailStore) -> tuple[list[Question], Counter[str]]:
    """Load the questions of a file whose mails are in the store.

    Each object has ``question``, ``answer`` and ``message_ids``, and may have ``id``, ``inbox_address``,
    ``query_date`` and ``split``. An inbox that the store does not have stands for the whole store. Empty
    lines and comments (``#``) are skipped.

    Returns:
        The questions, and how many were left out for which reason.

    Raises:
        ValueError: For a line that is not such an object, with its number.
        FileNotFoundError: If there is no such file.
    """
    boxes = {name for name, _ in store.mailboxes()}
    questions: list[Question] = []
    left_out: Counter[str] = Counter()
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            item = json.loads(line)
            question = _question(item, number, store, boxes)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        if isinstance(question, str):
            left_out[question] += 1
        else:
            questions.append(question)
    return questions, left_out


def _question(item: Any, number: int, store: MailStore, boxes: set[str]) -> Question | str:
    """Return one object's question, or the reason why it is left out."""
    if not isinstance(item, Mapping):
        raise ValueError(f"it must be a JSON object, not {type(item).__name__}")
    text, answer, ids = item.get("question"), item.get("answer"), item.get("message_ids")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"question must be a text, not {text!r}")
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise ValueError(f"message_ids must be a list of strings, not {ids!r}")
    if not isinstance(answer, str) or not answer.strip():
        return "no answer given"
    if not ids or any(store.find(one) is None for one in ids):
        return "its mail is not in the store"
    box = item.get("inbox_address")
    return Question(
        id=f"art-e-{item.get('id', number)}",
        text=text.strip(),
        kind="fact" if len(ids) == 1 else "two_messages",
        difficulty=3 if len(ids) == 1 else 4,
        gold_ids=tuple(map(bare_id, ids)),
        answers=(answer.strip(),),
        answer_type=_answer_type(answer),
        split=str(item.get("split", "test")),
        asked_on=_asked_on(item.get("query_date"), ids, store),
        mailbox=box if box in boxes else None,
    )


def _asked_on(query_date: Any, ids: Sequence[str], store: MailStore) -> datetime:
    """Return the day after the query date, or after the last mail, so that all of them are visible."""
    if query_date:
        try:
            return datetime.fromisoformat(query_date).replace(tzinfo=UTC) + _DAY
        except (TypeError, ValueError) as error:
            raise ValueError(f"query_date must be like 2001-03-16, not {query_date!r}") from error
    dates = [store.message(row).date for one in ids if (row := store.find(one)) is not None]
    return (
        max((date for date in dates if date is not None), default=datetime.max.replace(tzinfo=UTC) - _DAY)
        + _DAY
    )


def _answer_type(answer: str) -> AnswerType:
    """Answers are compared as text, except those that are only an amount."""
    return "amount" if _AMOUNT.fullmatch(answer) else "text"
