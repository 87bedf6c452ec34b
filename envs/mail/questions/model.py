"""The question about a mailbox: its data class and JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, Literal, get_args

from art_gym.envs.mail.message import to_utc
from art_gym.envs.mail.synthetic.fast_rng import FastRng

QuestionKind = Literal["known_item", "fact", "two_messages", "unanswerable"]
AnswerType = Literal["person", "date", "time", "amount", "number", "place", "text"]
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
        asked_on: When it is asked, in UTC. Mail sent later is not visible.
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
    asked_on: datetime
    mailbox: str | None = None
    keywords: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The question as plain JSON values; `from_json` reads them back."""
        return asdict(self) | {"asked_on": self.asked_on.isoformat()}

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Question:
        """The question that `to_json` wrote.

        Raises:
            ValueError: If the item is no object, or a field is unknown, missing or not what it should be.
        """
        if not isinstance(item, Mapping):
            raise ValueError(f"a question is a JSON object, not {type(item).__name__}")
        names = {field.name for field in fields(cls)}
        if unknown := sorted(set(item) - names):
            raise ValueError(f"unknown field {unknown[0]!r}; a question has {', '.join(sorted(names))}")
        if missing := sorted(names - {"mailbox", "keywords"} - set(item)):
            raise ValueError(f"field {missing[0]!r} is missing")
        _check_types(item)
        lists = {name: tuple(item.get(name, ())) for name in _LISTS}
        return cls(**{**item, **lists, "asked_on": to_utc(datetime.fromisoformat(item["asked_on"]))})


def _check_types(item: Mapping[str, Any]) -> None:
    kinds, types = get_args(QuestionKind), get_args(AnswerType)
    for name, wanted, fits in (
        *((name, "text", isinstance(item[name], str)) for name in ("id", "text", "split", "asked_on")),
        *((name, "a list of texts", _are_texts(item.get(name, ()))) for name in _LISTS),
        ("kind", f"one of {', '.join(kinds)}", item["kind"] in kinds),
        ("difficulty", "a whole number", type(item["difficulty"]) is int),
        ("answer_type", f"null or one of {', '.join(types)}", item["answer_type"] in (None, *types)),
        ("mailbox", "text or null", isinstance(item.get("mailbox"), str | None)),
    ):
        if not fits:
            raise ValueError(f"{name} must be {wanted}, not {item[name]!r}")


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


def random_split(rng: FastRng) -> str:
    """``train`` in 70 of 100 cases, ``validation`` in 10, ``test`` in 20."""
    return rng.pick(("train",) * 7 + ("validation",) + ("test",) * 2)
