"""Writing the conversations of a generated company: who says what to whom, and which facts that leaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from art_gym.envs.mail.message import Address, Message
from art_gym.envs.mail.world_dice import Dice
from art_gym.envs.mail.world_model import Company, Fact, Kind, Note, Person, Project, Value, ValueType
from art_gym.envs.mail.world_phrases import (
    ANSWERS,
    CHATTER,
    DETAIL_AND_PROJECT,
    DETAIL_SENTENCES,
    FORWARDS,
    NUDGES,
    OPENERS,
    SUBJECTS,
)
from art_gym.envs.mail.world_text import compose, fill, quoted

FIRST_DAY = date(2023, 1, 2)
LAST_DAY = date(2024, 12, 20)

_NUMBERS = {
    "contract": (6, 60),
    "meeting": (100, 499),
    "delivery": (1, 48),
    "training": (8, 140),
    "release": (1000, 9999),
    "office": (100, 499),
}
_ACTS = ("talk", "talk", "talk", "change", "second", "nudge", "forward")


class Scribe:
    """Collects the mails, notes and facts of one company while they are written."""

    def __init__(self, dice: Dice, company: Company, owner: str) -> None:
        self.dice = dice
        self.company = company
        self.messages: list[Message] = []
        self.notes: dict[str, Note] = {}
        self.facts: list[Fact] = []
        self.threads = 0
        # Project, topic and thing: together in one conversation only, so that a question can name it.
        self.taken: set[tuple[str, str, str]] = set()
        self._owner = owner

    def new_thread(self) -> int:
        """The number of a new conversation."""
        self.threads += 1
        return self.threads - 1

    def moment(self, day: date) -> datetime:
        """A moment in office hours of the day, or of the next weekday when that falls on a weekend."""
        day += timedelta(days=max(0, 7 - day.weekday()) if day.weekday() > 4 else 0)
        minutes = self.dice.between(7 * 60, 18 * 60)
        return datetime(
            day.year, day.month, day.day, minutes // 60, minutes % 60, self.dice.below(60), tzinfo=UTC
        )

    def send(self, note: Note, to: list[Person] | Address, when: datetime, subject: str, body: str) -> str:
        """Put one mail into the mailbox and return its Message-ID."""
        mark = f"{self.dice.below(16**6):06x}.{len(self.messages):05d}"
        message_id = f"{mark}@{self.company.domain}"
        receivers = (to,) if isinstance(to, Address) else tuple(person.address for person in to)
        message = Message(
            message_id=message_id,
            date=when,
            sender=note.sender.address,
            to=receivers[:1],
            cc=receivers[1:],
            subject=subject,
            body=body,
            folders=(f"{self._owner}/inbox",),
            mailboxes=(self._owner,),
            duplicate_ids=(f"{mark}.copy@{self.company.domain}",) if self.dice.chance(2) else (),
        )
        self.messages.append(message)
        self.notes[message_id] = note
        return message_id

    def value(
        self, kind: Kind, value_type: ValueType, project: Project, day: date, avoid: set[Value]
    ) -> Value:
        """A new value of the type that the thread has not seen; dates lie after ``day``."""
        while True:
            drawn = self._draw(kind, value_type, project, day)
            if drawn not in avoid:
                return drawn

    def _draw(self, kind: Kind, value_type: ValueType, project: Project, day: date) -> Value:
        dice = self.dice
        if value_type == "amount":
            return dice.between(12, 999) * dice.pick((1, 5, 10, 10, 25, 50))
        if value_type == "date":
            return day + timedelta(days=dice.between(6, 60))
        if value_type == "time":
            return f"{dice.between(7, 18):02d}:{dice.pick((0, 5, 10, 15, 20, 30, 40, 45, 50)):02d}"
        if value_type == "number":
            return dice.between(*_NUMBERS[kind.name])
        if value_type == "place":
            return dice.pick(self.company.places)
        people = project.outside if kind.name == "audit" and len(project.outside) > 1 else self.company.staff
        return dice.pick(people).name


@dataclass(slots=True)
class _Thread:
    """One conversation while it is being written."""

    number: int
    kind: Kind
    project: Project
    topic: str
    thing: str
    subject: str
    people: list[Person]
    slots: dict[str, str]
    values: dict[str, list[tuple[str, datetime, Value]]] = field(default_factory=dict)
    last: tuple[str, Person, datetime] | None = None


def write_thread(scribe: Scribe, project: Project, kind: Kind, start: date) -> None:
    """Write one conversation about a matter of the project: an opening and up to seven mails after it."""
    thread = _begin(scribe, project, kind)
    dice = scribe.dice
    when = scribe.moment(start)
    _write(scribe, thread, "open", when)
    seen_second = False
    for _ in range(dice.pick((0, 1, 1, 2, 2, 3, 3, 4, 5, 7))):
        when = scribe.moment(when.date() + timedelta(days=dice.pick((1, 1, 1, 2, 3, 5, 8))))
        if when.date() > LAST_DAY:
            break
        act = dice.pick(_ACTS)
        if act == "second" and seen_second:
            act = "talk"
        seen_second |= act == "second"
        _write(scribe, thread, act, when)
    about = {"project": project.name, "topic": thread.topic, "thing": thread.thing}
    words = {"p": project.name, "t": thread.topic, "d": thread.thing}
    for sort, said in thread.values.items():
        asks, value_type = (kind.ask_value, kind.value) if sort == "value" else (kind.ask_second, kind.second)
        scribe.facts.append(
            Fact(
                thread.number,
                sort,
                value_type,
                about,
                tuple(ask.format(**words) for ask in asks),
                tuple(said),
            )
        )


def _begin(scribe: Scribe, project: Project, kind: Kind) -> _Thread:
    dice = scribe.dice
    while True:
        topic, thing = dice.pick(kind.topics), dice.pick(scribe.company.things)
        if (project.name, topic, thing) not in scribe.taken:
            break
    scribe.taken.add((project.name, topic, thing))
    people = dice.sample(project.team, 4)
    if kind.outside and project.outside:
        people[dice.below(2)] = dice.pick(project.outside)
    words = {"p": project.name, "t": topic, "c": project.customer}
    title = dice.pick(SUBJECTS).format(
        P=project.name, T=topic.capitalize(), t=topic, c=project.customer, d=thing
    )
    return _Thread(scribe.new_thread(), kind, project, topic, thing, title, people, words)


def _write(scribe: Scribe, thread: _Thread, act: str, when: datetime) -> None:
    """One mail of the conversation, with the facts it states."""
    dice, company = scribe.dice, scribe.company
    sender, readers = _parties(dice, thread, act)
    said = _said(scribe, thread, act, sender, when)
    talk = _talk(scribe, thread, act, sender)
    body = compose(dice, company, sender, readers[0], said or [talk.pop()], talk, thread.slots)
    own = len(body)
    prefix = "" if act == "open" else "Re: "
    if thread.last is not None:
        old_body, old_sender, old_when = thread.last
        if act == "forward":
            prefix = "Fwd: "
            body += quoted(old_body, old_sender, old_when)
        elif dice.chance(sender.style.quote):
            body += quoted(old_body, old_sender, old_when)
    note = Note(thread.number, act, own, sender)
    message_id = scribe.send(note, readers, when, prefix + thread.subject, body)
    thread.last = (body[:own], sender, when)
    if act in ("open", "change"):
        thread.values["value"][-1] = (message_id, *thread.values["value"][-1][1:])
    elif act == "second":
        thread.values["second"][-1] = (message_id, *thread.values["second"][-1][1:])


def _parties(dice: Dice, thread: _Thread, act: str) -> tuple[Person, list[Person]]:
    if act == "forward":
        sender = thread.last[1] if thread.last and dice.chance(30) else thread.people[1]
        others = [person for person in thread.project.team if person is not sender]
        return sender, [dice.pick(others)]
    if act == "open":
        return thread.people[0], thread.people[1 : 2 + dice.below(3)]
    before = thread.last[1] if thread.last else None
    speakers = [person for person in thread.people[: 2 + dice.below(3)] if person is not before]
    sender = dice.pick(speakers)
    readers = [person for person in thread.people[:3] if person is not sender]
    return sender, readers[: 1 + dice.below(2)]


def _said(scribe: Scribe, thread: _Thread, act: str, sender: Person, when: datetime) -> list[str]:
    """The sentence that states the fact of this act, if it states one; remembers the value."""
    kind = thread.kind
    if act in ("open", "change"):
        name, value_type, templates = "value", kind.value, kind.opens if act == "open" else kind.changes
    elif act == "second":
        name, value_type, templates = "second", kind.second, kind.seconds
    else:
        return []
    history = thread.values.setdefault(name, [])
    value = scribe.value(kind, value_type, thread.project, when.date(), {old for _, _, old in history})
    history.append(("", when, value))
    slots = thread.slots | {"v" if name == "value" else "w": sender.style.show(value, value_type)}
    return [fill(scribe.dice, scribe.company, scribe.dice.pick(templates), slots)]


def _talk(scribe: Scribe, thread: _Thread, act: str, sender: Person) -> list[str]:
    """Sentences around the fact: the things of this mail, answers, small talk. Never empty."""
    dice, company = scribe.dice, scribe.company
    templates = {"open": OPENERS, "nudge": NUDGES, "forward": FORWARDS}.get(act, ANSWERS)
    chosen = [dice.pick(templates)]
    if dice.chance(sender.style.talk):
        chosen.append(dice.pick(thread.kind.chatter))
    if dice.chance(sender.style.talk):
        chosen.append(dice.pick(CHATTER))
    talk = [fill(dice, company, template, thread.slots) for template in chosen]
    things = [thread.thing] if act == "open" else []
    free = [
        thing
        for thing in dice.sample(company.things, 4)
        if (thread.project.name, thread.topic, thing) not in scribe.taken
    ]
    things += free[: dice.pick((1, 1, 1, 2, 2))]
    for thing in things:
        scribe.taken.add((thread.project.name, thread.topic, thing))
        template = dice.pick(DETAIL_AND_PROJECT if dice.chance(35) else DETAIL_SENTENCES)
        talk.append(fill(dice, company, template, thread.slots | {"d": thing}))
    return talk
