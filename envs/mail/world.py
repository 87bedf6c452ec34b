"""The default mailbox: two years of mail of a company that does not exist, made from a seed in seconds.

>>> world = generate(7)
>>> len(world.messages) >= 6000
True

A company has 40 projects for as many customers, some 60 people and their 80 contacts. Each project has
conversations about most matters (`world_kinds`), each person writes about several. So a single word, or
two, fits many mails, while three well chosen words fit one: a question is not solved by its first
keyword. Later mails correct what earlier ones said, answers quote, and series of near-duplicates lie between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np

from art_gym.envs.mail import questions_phrases, world_kinds, world_phrases, world_text, world_words
from art_gym.envs.mail.message import Message
from art_gym.envs.mail.world_dice import Dice
from art_gym.envs.mail.world_kinds import KINDS
from art_gym.envs.mail.world_model import Company, Fact, Kind, Note
from art_gym.envs.mail.world_people import cast
from art_gym.envs.mail.world_series import write_notices, write_reminders, write_status
from art_gym.envs.mail.world_threads import FIRST_DAY, LAST_DAY, Scribe, write_thread

_SLOT = re.compile(r"{\w+}")
_WORD = re.compile(r"[a-z]+")
_STREAM = 0x6D61696C
"""Keeps a world's generator apart from other uses of the same seed."""


@dataclass(frozen=True, slots=True)
class World:
    """A generated mailbox.

    Attributes:
        seed: The seed that made it.
        company: Its people, projects, customers and things.
        owner: The one mailbox that holds every message.
        messages: All mail in order of date.
        notes: What the generator knows of each message, by Message-ID.
        facts: What a question can ask for, with the ids of the mails that state it.
    """

    seed: int
    company: Company = field(repr=False)
    owner: str
    messages: list[Message] = field(repr=False)
    notes: dict[str, Note] = field(repr=False)
    facts: list[Fact] = field(repr=False)


def generate(seed: int, messages: int = 6000) -> World:
    """Generate a mailbox of at least ``messages`` mails; the same seed and size give the same mailbox.

    Raises:
        ValueError: When ``seed`` is negative or ``messages`` is not positive.
    """
    if seed < 0 or messages < 1:
        raise ValueError(f"seed must be >= 0 and messages >= 1, not seed={seed}, messages={messages}")
    dice = Dice(np.random.default_rng(np.random.SeedSequence([seed, _STREAM])))
    company = cast(dice)
    owner = f"office@{company.domain}"
    scribe = Scribe(dice, company, owner)
    write_notices(scribe)
    write_reminders(scribe)
    for project in company.projects:
        write_status(scribe, project)
    days = (LAST_DAY - FIRST_DAY).days - 7
    decks = {project.name: list[Kind]() for project in company.projects}
    while len(scribe.messages) < messages:
        for project in dice.shuffled(company.projects):
            deck = decks[project.name]
            if not deck:
                deck.extend(dice.shuffled(KINDS))
            write_thread(scribe, project, deck.pop(), FIRST_DAY + timedelta(days=dice.below(days)))
    ordered = sorted(scribe.messages, key=lambda message: (message.date, message.message_id))
    return World(seed, company, owner, ordered, scribe.notes, scribe.facts)


def vocabulary() -> list[str]:
    """Every lower-case word that a generated mail, its headers or a question about it can contain, sorted."""
    words: set[str] = {
        "re",
        "fwd",
        "on",
        "wrote",
        "eur",
        "euros",
        "am",
        "pm",
        "office",
        "example",
        "everyone",
        "new",
    }
    for module in (world_words, world_kinds, world_phrases, world_text, questions_phrases):
        for name, value in vars(module).items():
            if name.isupper() and name == name.strip("_"):
                for text in _texts(value):
                    words.update(_WORD.findall(_SLOT.sub(" ", text).lower()))
    return sorted(words)


def _texts(value: object) -> Iterator[str]:
    """All strings inside a constant."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, Kind):
        for name in value.__dataclass_fields__:
            yield from _texts(getattr(value, name))
