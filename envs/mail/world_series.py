"""Runs of look-alikes: weekly status mails, company reminders and notices of extensions and seats."""

from __future__ import annotations

from datetime import datetime, timedelta

from art_gym.envs.mail.message import Address
from art_gym.envs.mail.world_model import Fact, Note, Person, Project, Value
from art_gym.envs.mail.world_phrases import (
    CHATTER,
    DETAIL_SENTENCES,
    EXTENSION_LINES,
    REMINDERS,
    SEAT_LINES,
    STATUS_LINES,
    STATUS_MORE,
)
from art_gym.envs.mail.world_text import compose, fill
from art_gym.envs.mail.world_threads import FIRST_DAY, LAST_DAY, Scribe


def write_status(scribe: Scribe, project: Project) -> None:
    """Weekly status mails of a project for some ten weeks: one text, other numbers, two authors."""
    dice, company = scribe.dice, scribe.company
    day = FIRST_DAY + timedelta(days=7 * dice.below(90) + 3)
    authors = dice.sample(project.team, 2)
    lines = [dice.pick(STATUS_LINES), dice.pick(STATUS_MORE)]
    slots = {"p": project.name, "t": "status", "c": project.customer}
    thread, percent, open_points = scribe.new_thread(), dice.between(5, 30), dice.between(10, 60)
    for _ in range(dice.between(7, 13)):
        sender = dice.pick(authors)
        readers = [person for person in project.team if person is not sender][: dice.between(1, 3)]
        percent = min(99, percent + dice.between(1, 7))
        open_points = max(1, open_points + dice.between(-6, 5))
        said = [
            fill(dice, company, line, slots | {"v": str(percent), "w": str(open_points)}) for line in lines
        ]
        talk = [fill(dice, company, dice.pick(CHATTER), slots)]
        if dice.chance(60):
            talk.append(
                fill(dice, company, dice.pick(DETAIL_SENTENCES), slots | {"d": dice.pick(company.things)})
            )
        when = scribe.moment(day)
        body = compose(dice, company, sender, readers[0], said, talk, slots)
        note = Note(thread, "status", len(body), sender, f"status {project.name}")
        scribe.send(note, readers, when, f"{project.name} status", body)
        day += timedelta(days=7)
        if day > LAST_DAY:
            break


def write_reminders(scribe: Scribe) -> None:
    """Reminders to everyone, each sent every few weeks by the same two colleagues."""
    dice, company = scribe.dice, scribe.company
    everyone = Address("Everyone", f"everyone@{company.domain}")
    for subject, template in REMINDERS:
        authors = dice.sample(company.staff, 2)
        day = FIRST_DAY + timedelta(days=dice.below(28))
        while day <= LAST_DAY:
            sender = dice.pick(authors)
            due = sender.style.show(day + timedelta(days=dice.between(4, 12)), "date")
            slots = {"p": "", "t": "reminder", "c": "", "v": due}
            said = [fill(dice, company, template, slots)]
            body = compose(dice, company, sender, dice.pick(company.staff), said, [], slots)
            note = Note(scribe.new_thread(), "reminder", len(body), sender, subject)
            scribe.send(note, everyone, scribe.moment(day), subject, body)
            day += timedelta(days=dice.pick((21, 28, 28, 35)))


def write_notices(scribe: Scribe) -> None:
    """One notice of a new extension and one of a new seat for every colleague."""
    dice, company = scribe.dice, scribe.company
    numbers = dice.sample(range(2000, 9000), 2 * len(company.staff))
    span = (LAST_DAY - FIRST_DAY).days
    for i, person in enumerate(company.staff):
        for sort, lines, word in (
            ("extension", EXTENSION_LINES, "extension"),
            ("seat", SEAT_LINES, "office"),
        ):
            number = numbers[2 * i + (sort == "seat")]
            when = scribe.moment(FIRST_DAY + timedelta(days=dice.below(span)))
            _notice(scribe, person, sort, word, dice.pick(lines), number, when)


def _notice(
    scribe: Scribe, person: Person, sort: str, word: str, line: str, number: int, when: datetime
) -> None:
    dice, company = scribe.dice, scribe.company
    sender = dice.pick(company.staff)
    slots = {"p": company.name, "t": word, "c": company.name, "f": person.name, "v": str(number)}
    said = [fill(dice, company, line, slots)]
    body = compose(dice, company, sender, dice.pick(company.staff), said, [], slots)
    thread = scribe.new_thread()
    note = Note(thread, sort, len(body), sender)
    everyone = Address("Everyone", f"everyone@{company.domain}")
    message_id = scribe.send(note, everyone, when, f"New {word}: {person.name}", body)
    asks = (f"what is the {word} number of {person.name}",)
    said_value: tuple[tuple[str, datetime, Value], ...] = ((message_id, when, number),)
    scribe.facts.append(Fact(thread, sort, "number", {"person": person.name}, asks, said_value))
