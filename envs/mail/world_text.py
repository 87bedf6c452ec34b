"""From sentences to a mail: filling slots, putting them in somebody's order, greeting and signing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from art_gym.envs.mail.world_dice import Dice
from art_gym.envs.mail.world_model import Company, Person
from art_gym.envs.mail.world_phrases import ASIDES
from art_gym.envs.mail.world_words import MONTHS, WEEKDAYS


def fill(dice: Dice, company: Company, template: str, slots: Mapping[str, str]) -> str:
    """The template with its slots filled; chance words (``n l x y day m``) fall anew."""
    text = template.format(
        n=dice.pick(company.staff).first,
        l=dice.pick(company.places),
        x=dice.pick(company.matters),
        y=dice.pick(company.matters),
        day=WEEKDAYS[dice.below(5)],
        m=dice.pick(MONTHS),
        **slots,
    )
    return text[:1].upper() + text[1:]


def compose(
    dice: Dice,
    company: Company,
    sender: Person,
    reader: Person,
    said: list[str],
    talk: list[str],
    slots: Mapping[str, str],
) -> str:
    """A mail body: greeting, what must be said, what is said besides, sign-off and name.

    Args:
        dice: The source of chance.
        company: Whose mailbox this is.
        sender: Who writes; the style decides the order and the tone.
        reader: Who is greeted.
        said: Finished sentences that belong at the heart of the mail, in order.
        talk: Finished sentences that may stand before or after them.
        slots: What the templates of the aside may name.
    """
    style = sender.style
    if dice.chance(style.aside):
        talk = [*talk, fill(dice, company, dice.pick(ASIDES), slots)]
    talk = dice.shuffled(talk)
    cut = dice.below(len(talk) + 1)
    sentences = [*talk[:cut], *said, *talk[cut:]]
    text = sentences[0]
    for sentence in sentences[1:]:
        text += (" ", " ", " ", "\n\n", "\n")[dice.below(5)] + sentence
    greeting = dice.pick(style.greetings).format(g=reader.first)
    name = sender.name if style.full_name else sender.first
    closing = [line for line in (dice.pick(style.sign_offs), name) if line]
    if style.card:
        closing.append(f"{sender.role}, {sender.department}, {sender.employer}")
    body = "\n".join((f"{greeting}\n\n{text}" if greeting else text, "", *closing))
    return body.lower() if style.lower else body


def quoted(body: str, sender: Person, sent: datetime) -> str:
    """The body as it stands below a reply, with the usual line above it."""
    lines = "\n".join(f"> {line}" for line in body.split("\n"))
    return f"\n\nOn {sent.day} {MONTHS[sent.month - 1]} {sent.year} {sender.name} wrote:\n{lines}"
