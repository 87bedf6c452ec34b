"""The question about a mailbox: its data class and JSON form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, Literal, get_args

from art_gym.envs.mail.grading import can_be_right
from art_gym.envs.mail.message import to_utc
from art_gym.envs.mail.store.store import MailStore
from art_gym.envs.mail.synthetic.fast_rng import FastRng
from art_gym.errors import did_you_mean

QuestionKind = Literal["known_item", "fact", "two_messages", "unanswerable"]
AnswerType = Literal["person", "date", "time", "amount", "number", "place", "text"]
SPLITS = ("train", "validation", "test")
_LISTS = ("gold_ids", "answers", "keywords")


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a mailbox, and how it is graded.

    Attributes:
        id: Unique within its set of questions.
        text: What the user asks.
        kind: ``known_item``: a certain mail is wanted; ``fact``: one mail answers it; ``two_messages``: two
            are needed; ``unanswerable``: no visible mail answers it.
        difficulty: 1 (three words identify the mail) to 4 (two mails needed).
        gold_ids: Message-IDs, all needed; empty when unanswerable.
        answers: Accepted forms of the answer; empty when a mail is wanted or nothing answers it.
        answer_type: How the answer is compared; ``None`` if there is none.
        split: ``train``, ``validation`` or ``test``.
        asked_on: When it is asked, in UTC. Mail sent later is not visible; ``None`` shows all mail.
        mailbox: Whose mailbox it is about; ``None`` means every one of the store.
        keywords: The words that identify the mail, in the question's order. For scripted teachers and
            diagnosis only: an agent never sees which they are.
    """

    id: str
    text: str
    kind: QuestionKind
    difficulty: int
    gold_ids: tuple[str, ...]
    answers: tuple[str, ...]
    answer_type: AnswerType | None
    split: str
    asked_on: datetime | None
    mailbox: str | None = None
    keywords: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The question as plain JSON values; `from_json` reads them back."""
        return asdict(self) | {"asked_on": self.asked_on.isoformat() if self.asked_on else None}

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Question:
        """The question of a JSON object; ``id``, ``text`` and ``kind`` are required.

        Left out, ``difficulty`` follows from the kind, ``answer_type`` is ``text`` if there are answers,
        ``split`` is ``test``, and ``asked_on`` is ``None``.

        Raises:
            ValueError: If the item is no object, or a field is unknown, missing, not what it should be or
                does not fit the kind; the message begins with the field's name.
        """
        if not isinstance(item, Mapping):
            raise ValueError(f"a question must be a JSON object, not {type(item).__name__}")
        names = [field.name for field in fields(cls)]
        for name in item:
            if name not in names:
                raise ValueError(f"{name}: a question has no such field{did_you_mean(name, names)}")
        for name in ("id", "text", "kind"):
            if name not in item:
                raise ValueError(f"{name}: it is missing; a question has at least id, text and kind")
        level = {"fact": 3, "two_messages": 4, "unanswerable": 3}.get(str(item["kind"]), 1)
        kind_of_answer = "text" if item.get("answers") else None
        usual = {"difficulty": level, "answer_type": kind_of_answer, "split": "test", "asked_on": None}
        values = {**dict.fromkeys(_LISTS, ()), **usual, **item}
        for name, wanted, fits in _rules(values):
            if not fits:
                raise ValueError(f"{name}: it must be {wanted}, not {values[name]!r}")
        lists = {name: tuple(values[name]) for name in _LISTS}
        return cls(**{**values, **lists, "asked_on": _moment(values["asked_on"])})


def check_in_store(questions: Mapping[str, Question], store: MailStore) -> None:
    """Check that questions can be answered: by the grader's rules, and from mail seen when they are asked.

    Args:
        questions: The questions, by the place that an error names.
        store: The store that they are about.

    Raises:
        ValueError: For the first that is not, with place and field.
    """
    boxes = dict(store.mailboxes())
    places: dict[str, str] = {}
    for place, question in questions.items():
        if (first := places.setdefault(question.id, place)) != place:
            raise ValueError(f"{place}: id: {question.id!r} is the id of {first}, too")
        if fault := _fault(question, store, boxes):
            raise ValueError(f"{place}: {fault}")


def _fault(question: Question, store: MailStore, boxes: Mapping[str, int]) -> str | None:
    box, asked_on = question.mailbox, question.asked_on
    answers, kind = question.answers, question.answer_type
    if answers and not any(can_be_right(answer, kind, question.text) for answer in answers):
        return f"answers: graded as {kind}, nothing would be right, not even {answers[0]!r}: reword it"
    if box is not None and box not in boxes:
        return f"mailbox: {store.path.name} has no {box!r}{did_you_mean(box, boxes)}"
    for gold in question.gold_ids:
        row = store.find(gold)
        if row is None:
            return f"gold_ids: {store.path.name} has no mail {gold!r}; `art-gym mail search` shows the ids"
        message = store.message(row)
        if box is not None and box not in message.mailboxes:
            return f"gold_ids: mail {gold!r} is not in the mailbox {box!r}"
        if asked_on and message.date and message.date > asked_on:
            return (
                f"asked_on: nobody sees mail {gold!r} at {asked_on:%Y-%m-%d %H:%M}, it was sent at "
                f"{message.date:%Y-%m-%d %H:%M}: name a later time, or leave it out to show all mail"
            )
    return None


def _rules(item: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """For each field what it must be, and whether it is; the last ones need a known kind."""
    kinds, types = get_args(QuestionKind), get_args(AnswerType)
    for name in ("id", "text"):
        yield name, "a text that is not empty", _is_text(item[name])
    for name in _LISTS:
        yield name, 'a list of texts, as in ["one"]', _are_texts(item[name])
    yield "kind", f"one of {', '.join(kinds)}", item["kind"] in kinds
    yield "difficulty", "a whole number", type(item["difficulty"]) is int
    yield "answer_type", f"null or one of {', '.join(types)}", item["answer_type"] in (None, *types)
    yield "split", f"one of {', '.join(SPLITS)}", item["split"] in SPLITS
    yield "asked_on", "null or a time, as in 2001-03-16T09:30", _is_time(item["asked_on"])
    yield "mailbox", "null or a text", isinstance(item.get("mailbox"), str | None)
    kind, golds = item["kind"], len(set(item["gold_ids"]))
    fewest = {"two_messages": 2, "unanswerable": 0}.get(kind, 1)
    wanted = f"a list of {fewest} or more Message-IDs" if fewest else "left out"
    yield "gold_ids", f"{wanted} for kind {kind}", golds >= fewest and bool(fewest) == bool(golds)
    has_answer = kind in ("fact", "two_messages")
    wanted = "a list of accepted answers" if has_answer else "left out"
    yield "answers", f"{wanted} for kind {kind}", has_answer == bool(item["answers"])
    wanted = f"one of {', '.join(types)}" if has_answer else "null"
    yield "answer_type", f"{wanted} for kind {kind}", has_answer == (item["answer_type"] is not None)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_text, value))


def _is_time(value: object) -> bool:
    try:
        return value is None or (isinstance(value, str) and _moment(value) is not None)
    except (ValueError, OverflowError):
        return False


def _moment(text: str | None) -> datetime | None:
    return None if text is None else to_utc(datetime.fromisoformat(text))


def random_split(rng: FastRng) -> str:
    """``train`` in 70 of 100 cases, ``validation`` in 10, ``test`` in 20."""
    return rng.pick(("train",) * 7 + ("validation",) + ("test",) * 2)
