"""Generate the questions about a generated world: mails to find, and facts in one mail, two or none."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import chain, combinations, islice, product, zip_longest

import numpy as np

from art_gym.envs.mail.message import Message
from art_gym.envs.mail.questions.model import AnswerType, Question
from art_gym.envs.mail.questions.request import request, words_of
from art_gym.envs.mail.synthetic.company import Fact, Value
from art_gym.envs.mail.synthetic.fast_rng import FastRng
from art_gym.envs.mail.synthetic.language import (
    KINDS,
    LOOKALIKE_QUESTIONS,
    MONTHS,
    QUESTION_PHRASES,
    ValueType,
)
from art_gym.envs.mail.synthetic.world import World

_KNOWN_ITEMS, _LOOKALIKES, _FACTS, _TWO_MESSAGES = 1800, 950, 720, 1150
"""How many questions of each kind a world gets, at most."""
_NOTHING = 23
"""So many questions that nothing answers go with each hundred about a fact, in each split."""

_PAIR_MATCHES = 5
"""Every two of a mail's identifying words match at least so many visible mails, the wanted one included."""
_PAIR_MATCHES_OF_NOTHING = 3
"""Every two words of a question that nothing answers stand together in at least so many visible mails."""
_NOISE_MATCHES = 20
"""A word of noise stands in at least so many visible mails."""
_CROWD = 3
"""So many look-alikes, at least, are visible when the question is asked."""
_PARTNERS = 3
"""With so many others, at most, a fact is put together in questions that need two mails."""

_SHAPES = ("tpd", "tpd", "tpd", "spd", "std", "stp", "pde")
"""Which roles the three identifying words have: topic, project, thing (d, e) or sender."""


def world_questions(world: World, rng: np.random.Generator) -> list[Question]:
    """All questions about a generated world, spread over kinds, difficulties and splits.

    A default world gives some 4,800. Splits share no message and no conversation: every conversation
    belongs to one split. The same world and generator state give the same questions.
    """
    index = WorldIndex(world, FastRng(rng))
    facts = FactQuestions(index)
    single = list(facts.single(_FACTS))
    known = (_known_item(index, row) for row in index.rng.shuffled(range(len(world.messages))))
    return [
        *islice(filter(None, known), _KNOWN_ITEMS),
        *_lookalikes(index, _LOOKALIKES),
        *single,
        *facts.double(_TWO_MESSAGES),
        *facts.nothing(Counter(question.split for question in single)),
    ]


class WordIndex:
    """The messages that hold a word in subject, people or body, as a set; bit ``i`` is message ``i``."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._sets: dict[str, int] = defaultdict(int)
        for i, message in enumerate(messages):
            people = " ".join(f"{person.name} {person.email}" for person in message.people)
            for word in set(words_of(f"{message.subject}\n{people}\n{message.body}")):
                self._sets[word] |= 1 << i

    def holding_all(self, words: Iterable[str], visible: int) -> int:
        """The messages of ``visible`` that hold every (lower-case) word."""
        for word in words:
            visible &= self._sets.get(word, 0)
        return visible


class WorldIndex:
    """A world with what the questions are made from: its words, dates, splits and the role of every word."""

    def __init__(self, world: World, rng: FastRng) -> None:
        self.world, self.rng = world, rng
        self.words = WordIndex(world.messages)
        self.dates = [message.date for message in world.messages if message.date is not None]
        self.row = {message.message_id: i for i, message in enumerate(world.messages)}
        company = world.company
        self.roles: dict[str, tuple[str, str]] = {}
        self.roles.update((topic, ("t", topic)) for kind in KINDS for topic in kind.topics)
        self.roles.update((p.name.lower(), ("p", p.name)) for p in company.projects)
        self.roles.update((p.customer.lower(), ("p", p.customer)) for p in company.projects)
        self.roles.update((place.lower(), ("p", place)) for place in company.places)
        self.roles.update((thing, ("d", thing)) for thing in (*company.things, *company.matters))
        self.noise = {
            "t": tuple(topic for kind in KINDS for topic in kind.topics),
            "p": tuple(project.name for project in company.projects),
            "d": company.things,
            "s": tuple(name for person in company.staff for name in (person.first, person.last)),
        }
        count = 1 + max(annotation.thread for annotation in world.annotations.values())
        names = ["train"] * (count // 2) + ["validation"] * (count * 3 // 20)
        self.splits = rng.shuffled(names + ["test"] * (count - len(names)))
        """The split of every conversation: 50% train, 15% validation, 35% test."""

    def visible(self, asked_on: datetime) -> int:
        """The set of messages sent up to then."""
        return (1 << bisect_right(self.dates, asked_on)) - 1

    def asked_on(self, row: int) -> datetime:
        """A time of asking after the message, and late enough that there is much to search."""
        total = len(self.dates)
        later = self.rng.between(max(row, total * 6 // 10), total - 1)
        return self.dates[later] + timedelta(hours=self.rng.between(1, 30))

    def known_item(
        self, name: str, difficulty: int, row: int, text: str, asked_on: datetime, keywords: tuple[str, ...]
    ) -> Question:
        """A question that wants the mail of a row."""
        gold = self.world.messages[row].message_id
        split = self.splits[self.world.annotations[gold].thread]
        name, owner = f"{name}-{row:05d}", self.world.owner
        return Question(
            name, text, "known_item", difficulty, (gold,), (), None, split, asked_on, owner, keywords
        )


# --- difficulty 1: three identifying words among noise ---


def _known_item(index: WorldIndex, row: int) -> Question | None:
    """A question that wants this mail, or ``None`` if no three of its words identify it."""
    asked_on = index.asked_on(row)
    visible = index.visible(asked_on)
    found = _find_keywords(index, row, visible)
    if found is None:
        return None
    shape, roles = found

    def strange(word: str) -> bool:
        held = index.words.holding_all([word], visible)
        return not held >> row & 1 and held.bit_count() >= _NOISE_MATCHES

    other = _other_row(index, row, [word.lower() for word in roles.values()], visible)
    company = index.world.company
    noise: dict[str, Sequence[str]] = {"x": company.matters, "l": company.places}
    for slot, (role, words) in zip("uqhn", _words_by_role(index, other).items(), strict=True):
        noise[slot] = [word for word in words if strange(word.lower())] or index.noise[role]
    text, keywords = request(index.rng, shape, roles, noise, strange)
    return index.known_item("known", 1, row, text, asked_on, keywords)


def _other_row(index: WorldIndex, row: int, words: list[str], visible: int) -> int:
    """Another mail with one or two of the words: what it speaks of besides is noise that leads to it."""
    held = index.words.holding_all(index.rng.sample(words, index.rng.between(1, 2)), visible) & ~(1 << row)
    start = index.rng.below(held.bit_length())
    later = held >> start
    return start + (later & -later).bit_length() - 1


def _find_keywords(index: WorldIndex, row: int, visible: int) -> tuple[str, Mapping[str, str]] | None:
    """A shape and the words for it: together only in this mail, each two of them in several."""
    for shape, roles in _candidates(index, row):
        words = [word.lower() for word in roles.values()]
        if index.words.holding_all(words, visible) != 1 << row:
            continue
        pairs = combinations(words, 2)
        if all(index.words.holding_all(pair, visible).bit_count() >= _PAIR_MATCHES for pair in pairs):
            return shape, roles
    return None


def _candidates(index: WorldIndex, row: int) -> list[tuple[str, dict[str, str]]]:
    """All ways to name this mail by three words that its sender wrote, the shapes in a random order."""
    by_role = _words_by_role(index, row)
    ways: list[tuple[str, dict[str, str]]] = []
    for shape in dict.fromkeys(index.rng.shuffled(_SHAPES)):
        if shape == "pde":
            pairs = product(by_role["p"], combinations(by_role["d"], 2))
            found = [{"p": p, "d": d, "e": e} for p, (d, e) in pairs]
        else:
            found = [
                dict(zip(shape, words, strict=True)) for words in product(*(by_role[role] for role in shape))
            ]
        ways.extend((shape, roles) for roles in index.rng.shuffled(found))
    return ways


def _words_by_role(index: WorldIndex, row: int) -> dict[str, list[str]]:
    """The topics, projects, things and names that a mail's sender wrote."""
    message = index.world.messages[row]
    annotation = index.world.annotations[message.message_id]
    own = dict.fromkeys(words_of(f"{message.subject} {message.body[: annotation.own]}"))
    by_role: dict[str, list[str]] = {"t": [], "p": [], "d": [], "s": []}
    for word in own:
        if word in index.roles:
            role, name = index.roles[word]
            by_role[role].append(name)
    sender = annotation.sender
    by_role["s"] = [name for name in (sender.first, sender.last) if name.lower() in own]
    return by_role


# --- difficulty 2: one of many alike ---


def _lookalikes(index: WorldIndex, count: int) -> list[Question]:
    """Up to ``count`` questions: half about runs of similar mails, half about the ends of conversations."""
    runs = list(_from_series(index))
    threads = list(_from_threads(index))
    half = max(count // 2, count - len(threads))
    chosen = index.rng.sample(runs, half)
    return chosen + index.rng.sample(threads, count - len(chosen))


def _from_series(index: WorldIndex) -> Iterator[Question]:
    """Which mail of a series: the one of that sender in that month, or the sender's first or last."""
    runs: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, message in enumerate(index.world.messages):
        annotation = index.world.annotations[message.message_id]
        if annotation.series:
            runs[annotation.series, annotation.sender.name].append(row)
    for (series, sender), rows in runs.items():
        title = series.removeprefix("Reminder: ").lower()
        if series.startswith("status "):
            title = f"{series.removeprefix('status ')} status"
        keywords = (*title.lower().split(), *sender.lower().split())
        for place, row in enumerate(rows):
            asked_on = index.asked_on(rows[min(len(rows) - 1, place + _CROWD)])
            seen = [other for other in rows if index.dates[other] <= asked_on]
            if len(seen) >= _CROWD:
                form, when = _pick_form(index, row, seen)
                text = index.rng.pick(LOOKALIKE_QUESTIONS[form]).format(k=title, s=sender, when=when)
                yield index.known_item("like", 2, row, _sentence(text), asked_on, keywords)


def _pick_form(index: WorldIndex, row: int, seen: list[int]) -> tuple[str, str]:
    if row == seen[0]:
        return "first", ""
    if row == seen[-1]:
        return "last", ""
    day = index.dates[row]
    month = [other for other in seen if f"{index.dates[other]:%Y-%m}" == f"{day:%Y-%m}"]
    written = f"{MONTHS[day.month - 1]} {day.year}"
    return "dated", f"in {written}" if len(month) == 1 else f"on {day.day} {written}"


def _from_threads(index: WorldIndex) -> Iterator[Question]:
    """The first or the last mail of a conversation of at least three mails."""
    rows: dict[int, list[int]] = defaultdict(list)
    for row, message in enumerate(index.world.messages):
        rows[index.world.annotations[message.message_id].thread].append(row)
    about = {fact.thread: fact.about for fact in index.world.facts if "project" in fact.about}
    for thread, members in rows.items():
        if thread not in about or len(members) < _CROWD:
            continue
        words = _slots(about[thread])
        last = index.rng.chance(50)
        asked_on = index.asked_on(members[-1])
        text = index.rng.pick(LOOKALIKE_QUESTIONS["closing" if last else "opening"]).format(**words)
        keywords = tuple(word.lower() for word in words.values())
        yield index.known_item("like", 2, members[-1 if last else 0], text, asked_on, keywords)


def _slots(about: Mapping[str, str]) -> dict[str, str]:
    return {"p": about["project"], "t": about["topic"], "d": about["thing"]}


# --- difficulties 3 and 4: facts ---


@dataclass(frozen=True, slots=True)
class _Known:
    """A fact as far as it can be known when the question is asked."""

    fact: Fact
    statements: tuple[tuple[str, datetime, Value], ...]
    asked_on: datetime

    @property
    def value(self) -> Value:
        return self.statements[-1][2]

    @property
    def whole(self) -> int:
        """An amount, in whole euros."""
        return int(str(self.value))

    @property
    def source(self) -> str:
        return self.statements[-1][0]

    @property
    def keywords(self) -> tuple[str, ...]:
        return tuple(word.lower() for value in self.fact.about.values() for word in value.split())


class FactQuestions:
    """Makes the questions about the facts of one world."""

    def __init__(self, index: WorldIndex) -> None:
        self._index, self._rng, self._count = index, index.rng, 0

    def single(self, count: int) -> Iterator[Question]:
        """Up to ``count`` questions that one mail answers: the last that states the fact (difficulty 3)."""
        rng = self._rng
        for fact in rng.shuffled(self._index.world.facts)[:count]:
            shown = len(fact.statements) if rng.chance(70) else 1 + rng.below(len(fact.statements))
            known = self._known(fact, self._time(fact, shown))
            form = rng.pick(QUESTION_PHRASES["final_forms" if len(known.statements) > 1 else "fact_forms"])
            text = form.format(q=rng.pick(fact.asks), n=rng.pick(self._index.world.company.staff).first)
            answers = _answer_forms(known.value, fact.value_type)
            yield self._question("fact", text, known, answers, fact.value_type, known.keywords)

    def double(self, count: int) -> Iterator[Question]:
        """Up to ``count`` questions that need two mails (difficulty 4), all sorts in turn."""
        sorts = zip_longest(self._differences(), self._sums(), self._days(), self._persons())
        return islice(filter(None, chain.from_iterable(sorts)), count)

    def nothing(self, asked: Mapping[str, int]) -> Iterator[Question]:
        """Questions that no visible mail answers, though each two of their words occur together.

        Args:
            asked: How many questions about a fact each split has.
        """
        rng, index, company = self._rng, self._index, self._index.world.company
        wanted = [split for split, facts in asked.items() for _ in range(facts * _NOTHING // 100)]
        while wanted:
            kind, thing = rng.pick(KINDS), rng.pick(company.things)
            words = {"p": rng.pick(company.projects).name, "t": rng.pick(kind.topics), "d": thing}
            asked_on = index.asked_on(0)
            visible = index.visible(asked_on)
            low = tuple(word.lower() for word in words.values())
            pairs = (index.words.holding_all(pair, visible).bit_count() for pair in combinations(low, 2))
            if index.words.holding_all(low, visible) or min(pairs) < _PAIR_MATCHES_OF_NOTHING:
                continue
            ask = rng.pick((*kind.ask_value, *kind.ask_second)).format(**words)
            text = rng.pick(QUESTION_PHRASES["fact_forms"]).format(q=ask, n=rng.pick(company.staff).first)
            name, text = self._id("none"), _sentence(text)
            owner, split = index.world.owner, wanted.pop()
            yield Question(name, text, "unanswerable", 3, (), (), None, split, asked_on, owner, low)

    def _differences(self) -> Iterator[Question]:
        for fact in self._shuffled("amount"):
            if len(fact.statements) > 1:
                known = self._known(fact, self._time(fact, len(fact.statements)))
                first = _Known(fact, known.statements[:1], known.asked_on)
                text = self._rng.pick(QUESTION_PHRASES["difference_forms"]).format(**_slots(fact.about))
                yield self._two(known, first, text, f"{abs(known.whole - first.whole)} EUR", "amount")

    def _sums(self) -> Iterator[Question]:
        for one, two in self._neighbours("amount"):
            text = self._pair_text("sum_forms", one, two)
            yield self._two(one, two, text, f"{one.whole + two.whole} EUR", "amount")

    def _days(self) -> Iterator[Question]:
        for one, two in self._neighbours("date"):
            if isinstance(one.value, date) and isinstance(two.value, date) and one.value != two.value:
                text = self._pair_text("days_forms", one, two)
                yield self._two(one, two, text, str(abs((one.value - two.value).days)), "number")

    def _pair_text(self, forms: str, one: _Known, two: _Known) -> str:
        other = _slots(two.fact.about)
        form = self._rng.pick(QUESTION_PHRASES[forms])
        return form.format(**_slots(one.fact.about), t2=other["t"], d2=other["d"])

    def _persons(self) -> Iterator[Question]:
        splits = self._index.splits
        notices: dict[tuple[str, str], list[Fact]] = defaultdict(list)
        for fact in self._index.world.facts:
            if "person" in fact.about:
                notices[fact.about["person"], splits[fact.thread]].append(fact)
        for fact in self._shuffled("person"):
            for notice in notices.get((str(fact.statements[-1][2]), splits[fact.thread]), ()):
                asked_on = max(self._time(fact, len(fact.statements)), self._time(notice, 1))
                what = "extension" if notice.sort == "extension" else "office"
                form = self._rng.pick(QUESTION_PHRASES["person_forms"])
                text = form.format(w=what, q=self._rng.pick(fact.asks))
                number = self._known(notice, asked_on)
                yield self._two(self._known(fact, asked_on), number, text, str(number.value), "number")

    def _neighbours(self, value_type: ValueType) -> Iterator[tuple[_Known, _Known]]:
        """Pairs of facts of one project and split, both fully known when the question is asked."""
        groups: dict[tuple[str, str], list[Fact]] = defaultdict(list)
        for fact in (fact for fact in self._shuffled(value_type) if fact.sort == "value"):
            group = groups[fact.about["project"], self._index.splits[fact.thread]]
            for other in group[-_PARTNERS:]:
                asked_on = max(self._time(one, len(one.statements)) for one in (fact, other))
                yield self._known(other, asked_on), self._known(fact, asked_on)
            group.append(fact)

    def _shuffled(self, value_type: ValueType) -> list[Fact]:
        return self._rng.shuffled([fact for fact in self._index.world.facts if fact.value_type == value_type])

    def _time(self, fact: Fact, shown: int) -> datetime:
        """A time of asking at which exactly the first ``shown`` statements of the fact can be seen."""
        message_id, stated, _ = fact.statements[shown - 1]
        asked_on = self._index.asked_on(self._index.row[message_id])
        if shown == len(fact.statements):
            return asked_on
        return min(asked_on, stated + (fact.statements[shown][1] - stated) / 2)

    def _known(self, fact: Fact, asked_on: datetime) -> _Known:
        return _Known(fact, tuple(item for item in fact.statements if item[1] <= asked_on), asked_on)

    def _two(self, one: _Known, two: _Known, text: str, answer: str, answer_type: AnswerType) -> Question:
        keywords = tuple(dict.fromkeys(one.keywords + two.keywords))
        return self._question("two", text, one, (answer,), answer_type, keywords, two.source)

    def _question(
        self,
        sort: str,
        text: str,
        known: _Known,
        answers: tuple[str, ...],
        answer_type: AnswerType,
        keywords: tuple[str, ...],
        *sources: str,
    ) -> Question:
        return Question(
            self._id(sort),
            _sentence(text),
            "two_messages" if sources else "fact",
            4 if sources else 3,
            (known.source, *sources),
            answers,
            answer_type,
            self._index.splits[known.fact.thread],
            known.asked_on,
            self._index.world.owner,
            keywords,
        )

    def _id(self, sort: str) -> str:
        self._count += 1
        return f"{sort}-{self._count:05d}"


def _answer_forms(value: Value, value_type: ValueType) -> tuple[str, ...]:
    """How the answer is usually written; grading accepts other forms of the same value."""
    if isinstance(value, date):
        return (f"{value.day} {MONTHS[value.month - 1]} {value.year}", value.isoformat())
    return (f"{value} EUR",) if value_type == "amount" else (str(value),)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
