"""Questions after facts of a generated world: in one mail, in two, or in none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from itertools import combinations

from art_gym.envs.mail.questions_known import Mailroom
from art_gym.envs.mail.questions_model import AnswerType, Question, random_split
from art_gym.envs.mail.questions_phrases import (
    DAYS_FORMS,
    DIFFERENCE_FORMS,
    FACT_FORMS,
    FINAL_FORMS,
    PERSON_FORMS,
    SUM_FORMS,
)
from art_gym.envs.mail.world_dice import Dice
from art_gym.envs.mail.world_kinds import KINDS
from art_gym.envs.mail.world_model import Fact, Value, ValueType
from art_gym.envs.mail.world_words import MONTHS

_PAIR_MATCHES = 3
"""Every two words of a question that nothing answers stand together in at least so many visible mails."""


def answer_forms(value: Value, value_type: ValueType) -> tuple[str, ...]:
    """How the answer is usually written; grading accepts other forms of the same value."""
    if isinstance(value, date):
        return (f"{value.day} {MONTHS[value.month - 1]} {value.year}", value.isoformat())
    return (f"{value} EUR",) if value_type == "amount" else (str(value),)


@dataclass(frozen=True, slots=True)
class _Known:
    """A fact as far as it can be known when the question is asked."""

    fact: Fact
    said: tuple[tuple[str, datetime, Value], ...]
    asked_on: datetime

    @property
    def value(self) -> Value:
        return self.said[-1][2]

    @property
    def source(self) -> str:
        return self.said[-1][0]

    @property
    def words(self) -> dict[str, str]:
        about = self.fact.about
        return {"p": about["project"], "t": about["topic"], "d": about["thing"]}

    @property
    def telling(self) -> tuple[str, ...]:
        return tuple(word.lower() for value in self.fact.about.values() for word in value.split())


class FactAsker:
    """Makes the questions about the facts of one world."""

    def __init__(self, room: Mailroom, dice: Dice, splits: list[str]) -> None:
        self._room = room
        self._dice = dice
        self._splits = splits
        self._count = 0

    def single(self, count: int) -> list[Question]:
        """Up to ``count`` questions that one mail answers: the last that states the fact (difficulty 3)."""
        dice = self._dice
        made = []
        for fact in dice.shuffled(self._room.world.facts)[:count]:
            shown = len(fact.said) if dice.chance(70) else 1 + dice.below(len(fact.said))
            known = self._known(fact, self._time(fact, shown))
            form = dice.pick(FINAL_FORMS if len(known.said) > 1 else FACT_FORMS)
            text = form.format(q=dice.pick(fact.asks), n=dice.pick(self._room.world.company.staff).first)
            made.append(self._fact(known, text))
        return made

    def double(self, count: int) -> list[Question]:
        """Up to ``count`` questions that need two mails (difficulty 4), all sorts in turn."""
        sorts = [self._differences(), self._sums(), self._days(), self._persons()]
        made: list[Question] = []
        while sorts and len(made) < count:
            for sort in list(sorts):
                question = next(sort, None)
                if question is None:
                    sorts.remove(sort)
                else:
                    made.append(question)
        return made[:count]

    def nothing(self, count: int) -> list[Question]:
        """Questions that no visible mail answers, though each two of their words occur together."""
        dice, room = self._dice, self._room
        company = room.world.company
        made: list[Question] = []
        while len(made) < count:
            kind, thing = dice.pick(KINDS), dice.pick(company.things)
            words = {"p": dice.pick(company.projects).name, "t": dice.pick(kind.topics), "d": thing}
            asked_on = room.asked_on(dice, 0)
            visible = room.visible(asked_on)
            low = tuple(word.lower() for word in words.values())
            pairs = (room.index.holding_all(pair, visible).bit_count() for pair in combinations(low, 2))
            if room.index.holding_all(low, visible) or min(pairs) < _PAIR_MATCHES:
                continue
            ask = dice.pick((*kind.ask_value, *kind.ask_second)).format(**words)
            text = dice.pick(FACT_FORMS).format(q=ask, n=dice.pick(company.staff).first)
            made.append(
                Question(
                    id=self._id("none"),
                    text=_sentence(text),
                    kind="unanswerable",
                    difficulty=3,
                    gold_ids=(),
                    answers=(),
                    answer_type=None,
                    split=random_split(dice),
                    asked_on=asked_on,
                    mailbox=room.world.owner,
                    telling=low,
                )
            )
        return made

    def _differences(self) -> Iterator[Question]:
        for fact in self._shuffled("amount"):
            if len(fact.said) > 1:
                known = self._known(fact, self._time(fact, len(fact.said)))
                first = _Known(fact, known.said[:1], known.asked_on)
                text = self._dice.pick(DIFFERENCE_FORMS).format(**known.words)
                yield self._two(known, first, text, f"{abs(_whole(known) - _whole(first))} EUR", "amount")

    def _sums(self) -> Iterator[Question]:
        for one, two in self._neighbours("amount"):
            text = self._dice.pick(SUM_FORMS).format(**one.words, t2=two.words["t"], d2=two.words["d"])
            yield self._two(one, two, text, f"{_whole(one) + _whole(two)} EUR", "amount")

    def _days(self) -> Iterator[Question]:
        for one, two in self._neighbours("date"):
            if isinstance(one.value, date) and isinstance(two.value, date) and one.value != two.value:
                text = self._dice.pick(DAYS_FORMS).format(**one.words, t2=two.words["t"], d2=two.words["d"])
                yield self._two(one, two, text, str(abs((one.value - two.value).days)), "number")

    def _persons(self) -> Iterator[Question]:
        notices: dict[tuple[str, str], list[Fact]] = {}
        for fact in self._room.world.facts:
            if "person" in fact.about:
                notices.setdefault((fact.about["person"], self._splits[fact.thread]), []).append(fact)
        for fact in self._shuffled("person"):
            for notice in notices.get((str(fact.said[-1][2]), self._splits[fact.thread]), ()):
                asked_on = max(self._time(fact, len(fact.said)), self._time(notice, 1))
                what = "extension" if notice.sort == "extension" else "office"
                text = self._dice.pick(PERSON_FORMS).format(w=what, q=self._dice.pick(fact.asks))
                number = self._known(notice, asked_on)
                yield self._two(self._known(fact, asked_on), number, text, str(number.value), "number")

    def _neighbours(self, value_type: ValueType) -> Iterator[tuple[_Known, _Known]]:
        """Pairs of facts of one project and split, both fully known when the question is asked."""
        waiting: dict[tuple[str, str], Fact] = {}
        for fact in self._shuffled(value_type):
            if value_type == "date" and fact.sort != "value":
                continue
            place = (fact.about["project"], self._splits[fact.thread])
            other = waiting.pop(place, None)
            if other is None or other.thread == fact.thread:
                waiting[place] = fact
                continue
            asked_on = max(self._time(one, len(one.said)) for one in (fact, other))
            yield self._known(other, asked_on), self._known(fact, asked_on)

    def _shuffled(self, value_type: ValueType) -> list[Fact]:
        return self._dice.shuffled([fact for fact in self._room.world.facts if fact.value_type == value_type])

    def _time(self, fact: Fact, shown: int) -> datetime:
        """A time of asking at which exactly the first ``shown`` statements of the fact can be seen."""
        message_id, said, _ = fact.said[shown - 1]
        asked_on = self._room.asked_on(self._dice, self._room.row[message_id])
        if shown == len(fact.said):
            return asked_on
        return min(asked_on, said + (fact.said[shown][1] - said) / 2)

    def _known(self, fact: Fact, asked_on: datetime) -> _Known:
        return _Known(fact, tuple(item for item in fact.said if item[1] <= asked_on), asked_on)

    def _fact(self, known: _Known, text: str) -> Question:
        return Question(
            id=self._id("fact"),
            text=_sentence(text),
            kind="fact",
            difficulty=3,
            gold_ids=(known.source,),
            answers=answer_forms(known.value, known.fact.value_type),
            answer_type=known.fact.value_type,
            split=self._splits[known.fact.thread],
            asked_on=known.asked_on,
            mailbox=self._room.world.owner,
            telling=known.telling,
        )

    def _two(self, one: _Known, two: _Known, text: str, answer: str, answer_type: AnswerType) -> Question:
        return Question(
            id=self._id("two"),
            text=_sentence(text),
            kind="two_messages",
            difficulty=4,
            gold_ids=(one.source, two.source),
            answers=(answer,),
            answer_type=answer_type,
            split=self._splits[one.fact.thread],
            asked_on=one.asked_on,
            mailbox=self._room.world.owner,
            telling=tuple(dict.fromkeys(one.telling + two.telling)),
        )

    def _id(self, sort: str) -> str:
        self._count += 1
        return f"{sort}-{self._count:05d}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _whole(known: _Known) -> int:
    if not isinstance(known.value, int):
        raise TypeError(f"an amount is a whole number of euros, not {known.value!r}")
    return known.value
