"""The generated company: its people and how they write, its projects, customers and places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime

from art_gym.envs.mail.message import Address
from art_gym.envs.mail.synthetic.fast_rng import FastRng
from art_gym.envs.mail.synthetic.language import DEPARTMENTS, MONTHS, PHRASES, VOCABULARY, ValueType

Value = str | int | date
"""A fact's value: a full name, a place, ``"14:30"``, a number, whole euros or a date."""


@dataclass(frozen=True, slots=True)
class Style:
    """How one person writes. Percentages are whole numbers from 0 to 100."""

    greetings: tuple[str, ...]
    sign_offs: tuple[str, ...]
    full_name: bool
    card: bool
    """Whether department and role stand under the name."""
    lower: bool
    aside: int
    talk: int
    quote: int
    formats: int
    """Chooses the way amounts, dates and times are written."""

    def show(self, value: Value, value_type: ValueType) -> str:
        """The value as this person writes it."""
        if isinstance(value, date):
            return self._date(value)
        if value_type == "amount":
            plain, grouped = f"{value}", f"{value:,}"
            return (f"{grouped} EUR", f"€{grouped}", f"{plain} euros", f"EUR {grouped}")[self.formats % 4]
        if value_type == "time" and self.formats % 3 == 1:
            hour, minute = (int(part) for part in str(value).split(":"))
            return f"{(hour - 1) % 12 + 1}:{minute:02d} {'pm' if hour >= 12 else 'am'}"
        return str(value)

    def _date(self, day: date) -> str:
        month = MONTHS[day.month - 1]
        return (
            f"{day.day} {month} {day.year}",
            f"{month} {day.day}, {day.year}",
            day.isoformat(),
            f"{day.day} {month}",
        )[self.formats // 4 % 4]


@dataclass(frozen=True, slots=True)
class Person:
    """Someone who writes mail."""

    first: str
    last: str
    address: Address
    employer: str
    department: str
    role: str
    style: Style

    @property
    def name(self) -> str:
        """First name and surname."""
        return f"{self.first} {self.last}"


@dataclass(frozen=True, slots=True)
class Project:
    """A code name, whom it is for, and who works on it."""

    name: str
    customer: str
    team: tuple[Person, ...]
    outside: tuple[Person, ...]


@dataclass(frozen=True, slots=True)
class Company:
    """Everyone and everything a mailbox is about.

    ``things`` are the detail words this company uses, ``matters`` what its people do besides work.
    """

    name: str
    domain: str
    staff: tuple[Person, ...]
    projects: tuple[Project, ...]
    places: tuple[str, ...]
    things: tuple[str, ...]
    matters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that mails state, and later mails may correct: the last statement holds.

    ``about`` names it for people (project, topic, thing); ``asks`` are questions after it, without a question
    mark; ``statements`` holds (message id, when, value) in order of time.
    """

    thread: int
    sort: str
    value_type: ValueType
    about: Mapping[str, str]
    asks: tuple[str, ...]
    statements: tuple[tuple[str, datetime, Value], ...]


@dataclass(frozen=True, slots=True)
class Annotation:
    """What the generator knows about one message.

    ``thread`` numbers its conversation, ``act`` is its part in it (open, change, ask, nudge, second, talk,
    answer, forward, thanks, status, reminder, extension, seat), ``own`` is how many characters of the body
    its sender wrote himself (what follows is quoted), ``sender`` is the writer, ``series`` names the run of
    look-alikes it belongs to.
    """

    thread: int
    act: str
    own: int
    sender: Person
    series: str = ""


STAFF = 60
OUTSIDERS = 80
PROJECT_COUNT = 40
THINGS = 50
"""Detail words of one world: few enough that each is shared by many mails of every project and topic."""
MATTERS = 24


def _style(rng: FastRng) -> Style:
    return Style(
        greetings=tuple(rng.sample(PHRASES["greetings"], 3)),
        sign_offs=tuple(rng.sample(PHRASES["sign_offs"], 2)),
        full_name=rng.chance(40),
        card=rng.chance(25),
        lower=rng.chance(8),
        aside=rng.between(5, 35),
        talk=rng.between(10, 90),
        quote=rng.between(5, 50),
        formats=rng.below(48),
    )


def _person(rng: FastRng, first: str, last: str, employer: str, staff: bool) -> Person:
    department = rng.pick(tuple(DEPARTMENTS))
    domain = f"{employer.lower()}.example"
    local = f"{first}.{last}".lower() if staff else last.lower()
    return Person(
        first=first,
        last=last,
        address=Address(f"{first} {last}", f"{local}@{domain}"),
        employer=employer,
        department=department,
        role=rng.pick(DEPARTMENTS[department]),
        style=_style(rng),
    )


def make_company(rng: FastRng) -> Company:
    """Choose everyone and everything of one company."""
    name = rng.pick(VOCABULARY["companies"])
    customers = rng.sample(VOCABULARY["customers"], PROJECT_COUNT)
    firsts = rng.shuffled(VOCABULARY["first_names"])
    lasts = rng.sample(VOCABULARY["surnames"], STAFF + OUTSIDERS)
    staff = tuple(_person(rng, firsts[i], lasts[i], name, True) for i in range(STAFF))
    outsiders = tuple(
        _person(rng, rng.pick(firsts), last, customers[i % len(customers)], False)
        for i, last in enumerate(lasts[STAFF:])
    )
    projects = tuple(
        Project(
            name=code,
            customer=customers[i],
            team=tuple(rng.sample(staff, rng.between(6, 9))),
            outside=tuple(person for person in outsiders if person.employer == customers[i]),
        )
        for i, code in enumerate(rng.sample(VOCABULARY["projects"], PROJECT_COUNT))
    )
    return Company(
        name=name,
        domain=f"{name.lower()}.example",
        staff=staff,
        projects=projects,
        places=tuple(rng.sample(VOCABULARY["places"], 14)),
        things=tuple(rng.sample(VOCABULARY["details"], THINGS)),
        matters=tuple(rng.sample(VOCABULARY["contexts"], MATTERS)),
    )
