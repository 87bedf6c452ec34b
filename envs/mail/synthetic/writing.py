"""Write the mails of a generated company: conversations, status reports, reminders and notices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from art_gym.envs.mail.message import Address, Message
from art_gym.envs.mail.synthetic.company import Annotation, Company, Fact, Person, Project, Value
from art_gym.envs.mail.synthetic.fast_rng import FastRng
from art_gym.envs.mail.synthetic.language import (
    COURSE,
    MONTHS,
    PHRASES,
    REFERENCES,
    REMINDERS,
    WEEKDAYS,
    Kind,
    ValueType,
)

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
_STATING = ("open", "change", "second")
"""The acts that state a value."""


class MailboxBuilder:
    """Collects the mails, annotations and facts of one company while they are written."""

    def __init__(self, rng: FastRng, company: Company, owner: str) -> None:
        self.rng = rng
        self.company = company
        self.messages: list[Message] = []
        self.annotations: dict[str, Annotation] = {}
        self.facts: list[Fact] = []
        self.threads = 0
        # What no mail has named together with project and topic, so that the three name a conversation.
        self.unnamed: dict[tuple[str, str], list[str]] = defaultdict(lambda: rng.shuffled(company.things))
        self._owner = owner

    def new_thread(self) -> int:
        """The number of a new conversation."""
        self.threads += 1
        return self.threads - 1

    def moment(self, day: date) -> datetime:
        """A moment in office hours of the day, or of the next weekday when that falls on a weekend."""
        day += timedelta(days=max(0, 7 - day.weekday()) if day.weekday() > 4 else 0)
        minutes = self.rng.between(7 * 60, 18 * 60)
        return datetime(
            day.year, day.month, day.day, minutes // 60, minutes % 60, self.rng.below(60), tzinfo=UTC
        )

    def send(
        self, annotation: Annotation, to: list[Person] | Address, when: datetime, subject: str, body: str
    ) -> str:
        """Put one mail into the mailbox and return its Message-ID."""
        mark = f"{self.rng.below(16**6):06x}.{len(self.messages):05d}"
        message_id = f"{mark}@{self.company.domain}"
        receivers = (to,) if isinstance(to, Address) else tuple(person.address for person in to)
        message = Message(
            message_id=message_id,
            date=when,
            sender=annotation.sender.address,
            to=receivers[:1],
            cc=receivers[1:],
            subject=subject,
            body=body,
            folders=(f"{self._owner}/inbox",),
            mailboxes=(self._owner,),
            duplicate_ids=(f"{mark}.copy@{self.company.domain}",) if self.rng.chance(2) else (),
        )
        self.messages.append(message)
        self.annotations[message_id] = annotation
        return message_id

    def draw(self, kind: Kind, value_type: ValueType, project: Project, day: date) -> Value:
        """A value of the type; dates lie after ``day``."""
        rng = self.rng
        if value_type == "amount":
            return rng.between(12, 999) * rng.pick((1, 5, 10, 10, 25, 50))
        if value_type == "date":
            return day + timedelta(days=rng.between(6, 60))
        if value_type == "time":
            return f"{rng.between(7, 18):02d}:{rng.pick((0, 5, 10, 15, 20, 30, 40, 45, 50)):02d}"
        if value_type == "number":
            return rng.between(*_NUMBERS[kind.name])
        if value_type == "place":
            return rng.pick(self.company.places)
        people = project.outside if kind.name == "audit" and len(project.outside) > 1 else self.company.staff
        return rng.pick(people).name

    def fill(self, template: str, slots: dict[str, str]) -> str:
        """The template with its slots filled; those of ``n l x day m`` that are not given fall anew."""
        rng, company = self.rng, self.company
        words: dict[str, str] = {
            "n": rng.pick(company.staff).first,
            "l": rng.pick(company.places),
            "x": rng.pick(company.matters),
            "day": WEEKDAYS[rng.below(5)],
            "m": rng.pick(MONTHS),
        }
        text = template.format(**(words | slots))
        return text[:1].upper() + text[1:]

    def compose(self, sender: Person, reader: Person, sentences: list[str]) -> str:
        """A mail body: greeting, the finished sentences in order, perhaps an aside, sign-off and name.

        The sender's style decides the tone, and ``reader`` is greeted.
        """
        rng, style = self.rng, sender.style
        text, *others = sentences
        if rng.chance(style.aside):
            others.append(self.fill(rng.pick(PHRASES["asides"]), {}))
        for sentence in others:
            text += (" ", " ", " ", "\n\n", "\n")[rng.below(5)] + sentence
        greeting = rng.pick(style.greetings).format(g=reader.first)
        name = sender.name if style.full_name else sender.first
        closing = [line for line in (rng.pick(style.sign_offs), name) if line]
        if style.card:
            closing.append(f"{sender.role}, {sender.department}, {sender.employer}")
        body = "\n".join((f"{greeting}\n\n{text}" if greeting else text, "", *closing))
        return body.lower() if style.lower else body


@dataclass(slots=True)
class _Thread:
    """One conversation while it is being written; the first of its people is the one whose task it is."""

    number: int
    kind: Kind
    project: Project
    subject: str
    people: list[Person]
    slots: dict[str, str]
    values: dict[str, list[tuple[str, datetime, Value]]] = field(default_factory=dict)
    act: str = ""
    """The part of the last mail in it."""
    due: str = ""
    """The answer that the last mail calls for."""
    last: tuple[str, Person, datetime, Person] | None = None
    """What the last mail said, who sent it, when, and to whom."""
    said: set[str] = field(default_factory=set)
    """The templates used, so that nobody says a thing twice."""


def write_thread(mailbox: MailboxBuilder, project: Project, kind: Kind, start: date) -> None:
    """Write one conversation about a matter of the project: an opening and up to seven mails after it."""
    thread = _begin(mailbox, project, kind)
    rng = mailbox.rng
    when = mailbox.moment(start)
    _write(mailbox, thread, "open", when)
    for _ in range(rng.pick((0, 1, 1, 2, 2, 3, 3, 4, 5, 7))):
        when = mailbox.moment(when.date() + timedelta(days=rng.pick((1, 1, 1, 2, 3, 5, 8))))
        if when.date() > LAST_DAY:
            break
        act = rng.pick(COURSE[thread.act])
        _write(mailbox, thread, "talk" if act == "ask" and "second" in thread.values else act, when)
    words = {name: thread.slots[name] for name in "ptd"}
    about = dict(zip(("project", "topic", "thing"), words.values(), strict=True))
    for sort, statements in thread.values.items():
        forms, value_type = (
            (kind.ask_value, kind.value) if sort == "value" else (kind.ask_second, kind.second)
        )
        asks = tuple(ask.format(**words) for ask in forms)
        mailbox.facts.append(Fact(thread.number, sort, value_type, about, asks, tuple(statements)))


def _begin(mailbox: MailboxBuilder, project: Project, kind: Kind) -> _Thread:
    rng = mailbox.rng
    topic = max(rng.shuffled(kind.topics), key=lambda name: len(mailbox.unnamed[project.name, name]))
    thing = _new_thing(mailbox, project.name, topic)
    able = [one for one in mailbox.company.staff if one.department in kind.departments]
    people = [rng.pick([one for one in able if one in project.team] or able or project.team)]
    people += rng.sample([person for person in project.team if person not in people], 3)
    if kind.outside and project.outside:
        people[1] = rng.pick(project.outside)
    slots = {"p": project.name, "t": topic, "c": project.customer, "d": thing, "k": rng.pick(kind.missing)}
    inside = {person.first for person in people}
    slots["n"] = rng.pick([one.first for one in mailbox.company.staff if one.first not in inside])
    slots["k"] = slots["k"].format(**slots)
    title = rng.pick(PHRASES["subjects"]).format(
        P=project.name, T=topic.capitalize(), t=topic, c=project.customer, a=kind.about.format(d=thing)
    )
    return _Thread(mailbox.new_thread(), kind, project, title, people, slots)


def _new_thing(mailbox: MailboxBuilder, project: str, topic: str) -> str:
    """A thing that no mail has named together with project and topic."""
    if not mailbox.unnamed[project, topic]:  # in a mailbox far above the usual size
        del mailbox.unnamed[project, topic]
    return mailbox.unnamed[project, topic].pop()


def _say(mailbox: MailboxBuilder, thread: _Thread, templates: Sequence[str], **slots: str) -> str:
    """One of the templates, filled; each names another new thing."""
    template = mailbox.rng.pick([one for one in templates if one not in thread.said] or templates)
    thread.said.add(template)
    if "{e}" in template:
        slots["e"] = _new_thing(mailbox, thread.project.name, thread.slots["t"])
    return mailbox.fill(template, thread.slots | slots)


def _write(mailbox: MailboxBuilder, thread: _Thread, act: str, when: datetime) -> None:
    """One mail of the conversation, with the facts it states."""
    rng = mailbox.rng
    sender, readers = _parties(rng, thread, act)
    sentences = []
    if act in ("change", "second", "talk", "ask") and thread.last and rng.chance(65):
        sentences = [_say(mailbox, thread, REFERENCES["self" if sender is thread.last[1] else thread.act])]
    sentences.append(_core(mailbox, thread, act, sender, when))
    for likely in (sender.style.talk + 20, sender.style.talk - 10):
        if rng.chance(likely):
            sentences.append(_say(mailbox, thread, PHRASES["notes"]))
    if rng.chance(sender.style.talk // 2):
        sentences.append(_say(mailbox, thread, PHRASES["closings"]))
    body = mailbox.compose(sender, readers[0], sentences)
    own = len(body)
    prefix = "" if act == "open" else "Fwd: " if act == "forward" else "Re: "
    if thread.last is not None and (act == "forward" or rng.chance(sender.style.quote)):
        body += quoted(*thread.last[:3])
    message_id = mailbox.send(
        Annotation(thread.number, act, own, sender), readers, when, prefix + thread.subject, body
    )
    thread.act, thread.last = act, (body[:own], sender, when, readers[0])
    if act in _STATING:
        statements = thread.values["second" if act == "second" else "value"]
        statements[-1] = (message_id, *statements[-1][1:])


def _parties(rng: FastRng, thread: _Thread, act: str) -> tuple[Person, list[Person]]:
    """Who writes and to whom: whose task it is states values, who was written to answers."""
    owner, *others = thread.people
    if thread.last is None:
        return owner, others[: 1 + rng.below(3)]
    _, before, _, reader = thread.last
    if act == "forward":
        return reader, [rng.pick([one for one in thread.project.team if one not in (reader, before)])]
    if act in ("answer", "thanks"):
        return reader, [before]
    if act in _STATING:
        return owner, [before] if before is not owner else others[: 1 + rng.below(2)]
    return before if act == "nudge" else rng.pick([one for one in others[:2] if one is not before]), [owner]


def _core(mailbox: MailboxBuilder, thread: _Thread, act: str, sender: Person, when: datetime) -> str:
    """What a mail is written for; remembers the value it states, or the answer it calls for."""
    kind = thread.kind
    if act in ("talk", "forward"):
        forms = kind.remarks if act == "talk" else [(form, "") for form in PHRASES["forward"]]
        remark, thread.due = mailbox.rng.pick([form for form in forms if form[0] not in thread.said] or forms)
        thread.due = thread.due or mailbox.rng.pick(PHRASES["forwarded"])
        return _say(mailbox, thread, [remark])
    if act not in _STATING:
        return _say(mailbox, thread, [thread.due] if act == "answer" else PHRASES[act])
    name, slot, value_type = ("second", "w", kind.second) if act == "second" else ("value", "v", kind.value)
    history = thread.values.setdefault(name, [])
    seen = {old for _, _, old in history}
    while (value := mailbox.draw(kind, value_type, thread.project, when.date())) in seen:
        pass
    history.append(("", when, value))
    templates = {"open": kind.opens, "change": kind.changes, "second": kind.seconds}[act]
    return _say(mailbox, thread, templates, **{slot: sender.style.show(value, value_type)})


def write_status(mailbox: MailboxBuilder, project: Project) -> None:
    """Weekly status mails of a project for some ten weeks: one text, other numbers, two authors."""
    rng, company = mailbox.rng, mailbox.company
    day = FIRST_DAY + timedelta(days=7 * rng.below(90) + 3)
    authors = rng.sample(project.team, 2)
    lines = [rng.pick(PHRASES["status_lines"]), rng.pick(PHRASES["status_more"])]
    slots = {"p": project.name, "t": "status", "c": project.customer}
    thread, percent, open_points = mailbox.new_thread(), rng.between(5, 30), rng.between(10, 60)
    for _ in range(rng.between(7, 13)):
        sender = rng.pick(authors)
        readers = [person for person in project.team if person is not sender][: rng.between(1, 3)]
        percent = min(99, percent + rng.between(1, 7))
        open_points = max(1, open_points + rng.between(-6, 5))
        statements = [
            mailbox.fill(line, slots | {"v": str(percent), "w": str(open_points)}) for line in lines
        ]
        details = rng.sample(PHRASES["status_details"], rng.between(1, 2))
        statements += [mailbox.fill(one, slots | {"e": rng.pick(company.things)}) for one in details]
        when = mailbox.moment(day)
        body = mailbox.compose(sender, readers[0], statements)
        annotation = Annotation(thread, "status", len(body), sender, f"status {project.name}")
        mailbox.send(annotation, readers, when, f"{project.name} status", body)
        day += timedelta(days=7)
        if day > LAST_DAY:
            break


def write_reminders(mailbox: MailboxBuilder) -> None:
    """Reminders to everyone, each sent every few weeks by the same two colleagues."""
    rng, company = mailbox.rng, mailbox.company
    everyone = Address("Everyone", f"everyone@{company.domain}")
    for subject, template in REMINDERS:
        authors = rng.sample(company.staff, 2)
        day = FIRST_DAY + timedelta(days=rng.below(28))
        while day <= LAST_DAY:
            sender = rng.pick(authors)
            due = sender.style.show(day + timedelta(days=rng.between(4, 12)), "date")
            body = mailbox.compose(sender, rng.pick(company.staff), [mailbox.fill(template, {"v": due})])
            annotation = Annotation(mailbox.new_thread(), "reminder", len(body), sender, subject)
            mailbox.send(annotation, everyone, mailbox.moment(day), subject, body)
            day += timedelta(days=rng.pick((21, 28, 28, 35)))


def write_notices(mailbox: MailboxBuilder) -> None:
    """One notice of a new extension and one of a new seat for every colleague."""
    rng, company = mailbox.rng, mailbox.company
    numbers = rng.sample(range(2000, 9000), 2 * len(company.staff))
    everyone = Address("Everyone", f"everyone@{company.domain}")
    for person in company.staff:
        for sort, word in (("extension", "extension"), ("seat", "office")):
            number, sender, thread = numbers.pop(), rng.pick(company.staff), mailbox.new_thread()
            when = mailbox.moment(FIRST_DAY + timedelta(days=rng.below((LAST_DAY - FIRST_DAY).days)))
            slots = {"f": person.name, "v": str(number)}
            lines = [mailbox.fill(rng.pick(PHRASES[f"{sort}_lines"]), slots)]
            body = mailbox.compose(sender, rng.pick(company.staff), lines)
            annotation = Annotation(thread, sort, len(body), sender)
            message_id = mailbox.send(annotation, everyone, when, f"New {word}: {person.name}", body)
            asks, about = (f"what is the {word} number of {person.name}",), {"person": person.name}
            stated = ((message_id, when, number),)
            mailbox.facts.append(Fact(thread, sort, "number", about, asks, stated))


def quoted(body: str, sender: Person, sent: datetime) -> str:
    """The body as it stands below a reply, with the usual line above it."""
    lines = "\n".join(f"> {line}" for line in body.split("\n"))
    return f"\n\nOn {sent.day} {MONTHS[sent.month - 1]} {sent.year} {sender.name} wrote:\n{lines}"
