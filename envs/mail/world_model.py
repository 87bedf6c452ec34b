"""The parts of a generated company: people and how they write, projects, facts and what each mail is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal

from art_gym.envs.mail.message import Address
from art_gym.envs.mail.world_words import MONTHS

ValueType = Literal["person", "date", "time", "amount", "number", "place"]

Value = str | int | date
"""A fact's value: a full name, a place, ``"14:30"``, a number, whole euros or a date."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of conversation: its topics, what it states, how values change, and what to ask about it.

    Slots of its sentences: ``{p}`` project, ``{t}`` topic, ``{c}`` customer, ``{d}`` the thing it is
    about, ``{v}`` the first value, ``{w}`` the second value. A sentence that states a value is a fact a
    question can ask for.
    """

    name: str
    topics: tuple[str, ...]
    outside: bool
    """Whether the customer takes part."""
    value: ValueType
    second: ValueType
    opens: tuple[str, ...]
    """Sentences that state the first value ``{v}``."""
    changes: tuple[str, ...]
    """Sentences that replace it by another ``{v}``."""
    seconds: tuple[str, ...]
    """Sentences that state the second value ``{w}``."""
    chatter: tuple[str, ...]
    """Sentences that state nothing a question asks for."""
    ask_value: tuple[str, ...]
    """Questions after the first value."""
    ask_second: tuple[str, ...]
    """Questions after the second value."""


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
    outsiders: tuple[Person, ...]
    projects: tuple[Project, ...]
    places: tuple[str, ...]
    things: tuple[str, ...]
    matters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that mails state, and later mails may correct: the last statement holds.

    ``about`` names it for people (project, topic, thing); ``asks`` are questions after it, without a question
    mark; ``said`` holds (message id, when, value) in order of time.
    """

    thread: int
    sort: str
    value_type: ValueType
    about: Mapping[str, str]
    asks: tuple[str, ...]
    said: tuple[tuple[str, datetime, Value], ...]


@dataclass(frozen=True, slots=True)
class Note:
    """What the generator knows about one message.

    ``thread`` numbers its conversation, ``act`` is its part in it (open, change, second, talk, nudge,
    forward, status, reminder, extension, seat), ``own`` is how many characters of the body its sender
    wrote himself (what follows is quoted), ``sender`` is the writer, ``series`` names the run of
    look-alikes it belongs to.
    """

    thread: int
    act: str
    own: int
    sender: Person
    series: str = ""
