"""Reading question sets that others published: ART-E's format and the annotated Enron questions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from os import PathLike
from pathlib import Path
from typing import Any

from art_gym.envs.mail.message import bare_id
from art_gym.envs.mail.questions_model import AnswerType, Question
from art_gym.envs.mail.store import MailStore

_NAMES_SOMEONE = re.compile(r"\s[A-Z]")
_AMOUNT = re.compile(r"\s*(?:[€$£]|eur\b|usd\b)\s?\d[\d.,]*\s*(?:million|k)?\s*\.?", re.IGNORECASE)
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What became of every line of a file.

    Attributes:
        read: Lines that held a question.
        kept: Questions returned.
        left_out: (line number, reason) for every question not returned.
    """

    read: int
    kept: int
    left_out: tuple[tuple[int, str], ...]

    def summary(self) -> str:
        """The account in words, one reason a line."""
        reasons = Counter(reason for _, reason in self.left_out)
        lines = [f"{self.kept} of {self.read} questions kept"]
        return "\n".join(
            lines + [f"  left out: {count} ({reason})" for reason, count in reasons.most_common()]
        )


def load_art_e(path: str | PathLike[str], store: MailStore) -> tuple[list[Question], LoadReport]:
    """Questions in ART-E's format, one JSON object a line.

    Each has ``question``, ``answer`` and ``message_ids``, and may have ``id``, ``inbox_address``,
    ``query_date``, ``split`` and ``how_realistic``. A question with no answer, or whose mails the store
    lacks, is left out and reported. An inbox the store does not know stands for the whole store.

    Raises:
        ValueError: For a line that is not such an object, with its number.
        FileNotFoundError: When there is no such file.
    """
    boxes = {name for name, _ in store.mailboxes()}
    questions: list[Question] = []
    left_out: list[tuple[int, str]] = []
    read = 0
    for number, item in _objects(path):
        read += 1
        text = _text(item, "question", path, number)
        answer, ids = item.get("answer"), item.get("message_ids")
        if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
            raise ValueError(f"{path}, line {number}: message_ids must be a list of strings, not {ids!r}")
        missing = sum(store.find(one) is None for one in ids)
        if not isinstance(answer, str) or not answer.strip():
            left_out.append((number, "no answer given"))
        elif not ids or missing:
            left_out.append((number, "its mail is not in the store"))
        else:
            questions.append(_art_e(item, text, answer.strip(), ids, store, boxes, path, number))
    return questions, LoadReport(read, len(questions), tuple(left_out))


def _art_e(
    item: Mapping[str, Any], text: str, answer: str, ids: list[str], store: MailStore, boxes: set[str],
    path: str | PathLike[str], number: int,
) -> Question:  # fmt: skip
    asked = item.get("query_date")
    try:
        asked_on = datetime.fromisoformat(asked).replace(tzinfo=UTC) + _DAY if asked else _after(store, ids)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path}, line {number}: query_date must be like 2001-03-16, not {asked!r}"
        ) from error
    box = item.get("inbox_address")
    return Question(
        id=f"art-e-{item.get('id', number)}",
        text=text,
        kind="fact" if len(ids) == 1 else "two_messages",
        difficulty=3 if len(ids) == 1 else 4,
        gold_ids=tuple(map(bare_id, ids)),
        answers=(answer,),
        answer_type=_guess_type(answer),
        split=str(item.get("split", "test")),
        asked_on=asked_on,
        mailbox=box if box in boxes else None,
    )


def load_annotated_qa(path: str | PathLike[str], store: MailStore) -> tuple[list[Question], LoadReport]:
    """The annotated Enron questions that can be asked of a whole mailbox.

    Kept are those with an answer, asked about one mail only (the same words about two mails cannot tell
    which), and naming someone or something (a later word begins with a capital), whose mail is in the store.

    Raises:
        ValueError: For a line that is not such an object, with its number.
        FileNotFoundError: When there is no such file.
    """
    items = list(_objects(path))
    asked = Counter(_text(item, "question", path, number).casefold() for number, item in items)
    questions: list[Question] = []
    left_out: list[tuple[int, str]] = []
    for number, item in items:
        text, answers = _text(item, "question", path, number), item.get("answers")
        message_id = _text(item, "message_id", path, number)
        if not isinstance(answers, list) or not all(isinstance(one, str) for one in answers):
            raise ValueError(f"{path}, line {number}: answers must be a list of strings, not {answers!r}")
        reason = _unfit(text, answers, bool(item.get("is_impossible")), asked[text.casefold()])
        if reason is None and store.find(message_id) is None:
            reason = "its mail is not in the store"
        if reason is not None:
            left_out.append((number, reason))
            continue
        forms = tuple(dict.fromkeys(" ".join(answer.split()) for answer in answers if answer.strip()))
        questions.append(
            Question(
                id=f"annotated-{item.get('id', number)}-{number}",
                text=text,
                kind="fact",
                difficulty=3,
                gold_ids=(bare_id(message_id),),
                answers=forms,
                answer_type=_guess_type(forms[0]),
                split="test",
                asked_on=_after(store, [message_id]),
            )
        )
    return questions, LoadReport(len(items), len(questions), tuple(left_out))


def _unfit(text: str, answers: list[str], impossible: bool, asked: int) -> str | None:
    if impossible or not any(answer.strip() for answer in answers):
        return "the mail does not answer it"
    if asked > 1:
        return "asked about several mails in the same words"
    return None if _NAMES_SOMEONE.search(text) else "names nobody, so nothing tells which mail is meant"


def _objects(path: str | PathLike[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The JSON objects of the file with their line numbers; empty lines and comments (#) are passed over."""
    with Path(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            try:
                item = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not JSON: {error}") from error
            if not isinstance(item, dict):
                raise ValueError(f"{path}, line {number}: a JSON object is wanted, not {type(item).__name__}")
            yield number, item


def _text(item: Mapping[str, Any], name: str, path: str | PathLike[str], number: int) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{path}, line {number}: {name} must be a text, not {value!r}")
    return value.strip()


def _after(store: MailStore, ids: list[str]) -> datetime:
    """A day after the last of the mails, so that all of them can be seen."""
    dates = [store.message(row).date for one in ids if (row := store.find(one)) is not None]
    known = [moment for moment in dates if moment is not None]
    return (max(known) if known else datetime.max.replace(tzinfo=UTC) - 2 * _DAY) + _DAY


def _guess_type(answer: str) -> AnswerType:
    """Free answers are compared as text, except those that are an amount and nothing else."""
    return "amount" if _AMOUNT.fullmatch(answer) else "text"
