"""Generate the default mailbox: two years of mail of a fictional company, made from a seed in seconds.

>>> world = generate(7)
>>> len(world.messages) >= 6000
True

A company has 40 projects for as many customers, some 60 people and their 80 contacts. Each project has
conversations about most matters (`language.KINDS`), each person writes about several. So a single word, or
two, fits many mails, while three well chosen words fit one: a question is not solved by its first
keyword. Later mails correct what earlier ones said, answers quote, and series of near-duplicates lie between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np

from art_gym.envs.mail.message import Message
from art_gym.envs.mail.synthetic.company import Annotation, Company, Fact, make_company
from art_gym.envs.mail.synthetic.fast_rng import FastRng
from art_gym.envs.mail.synthetic.language import KINDS, Kind
from art_gym.envs.mail.synthetic.writing import (
    FIRST_DAY,
    LAST_DAY,
    MailboxBuilder,
    write_notices,
    write_reminders,
    write_status,
    write_thread,
)

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
        annotations: What the generator knows of each message, by Message-ID.
        facts: What a question can ask for, with the ids of the mails that state it.
    """

    seed: int
    company: Company = field(repr=False)
    owner: str
    messages: list[Message] = field(repr=False)
    annotations: dict[str, Annotation] = field(repr=False)
    facts: list[Fact] = field(repr=False)


def generate(seed: int, messages: int = 6000) -> World:
    """Generate a mailbox of at least ``messages`` mails; the same seed and size give the same mailbox.

    Raises:
        ValueError: If ``seed`` is negative or ``messages`` is not positive.
    """
    if seed < 0 or messages < 1:
        raise ValueError(f"seed must be >= 0 and messages >= 1, not seed={seed}, messages={messages}")
    rng = FastRng(np.random.default_rng(np.random.SeedSequence([seed, _STREAM])))
    company = make_company(rng)
    owner = f"office@{company.domain}"
    mailbox = MailboxBuilder(rng, company, owner)
    write_notices(mailbox)
    write_reminders(mailbox)
    for project in company.projects:
        write_status(mailbox, project)
    days = (LAST_DAY - FIRST_DAY).days - 7
    decks = {project.name: list[Kind]() for project in company.projects}
    while len(mailbox.messages) < messages:
        for project in rng.shuffled(company.projects):
            deck = decks[project.name]
            if not deck:
                deck.extend(rng.shuffled(KINDS))
            write_thread(mailbox, project, deck.pop(), FIRST_DAY + timedelta(days=rng.below(days)))
    ordered = sorted(mailbox.messages, key=lambda message: (message.date, message.message_id))
    return World(seed, company, owner, ordered, mailbox.annotations, mailbox.facts)
