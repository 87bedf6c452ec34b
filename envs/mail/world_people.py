"""Casting: a company, its staff, its customers' people, its projects and everybody's way of writing."""

from __future__ import annotations

from art_gym.envs.mail.message import Address
from art_gym.envs.mail.world_dice import Dice
from art_gym.envs.mail.world_model import Company, Person, Project, Style
from art_gym.envs.mail.world_phrases import GREETINGS, SIGN_OFFS
from art_gym.envs.mail.world_words import (
    COMPANIES,
    CONTEXTS,
    CUSTOMERS,
    DEPARTMENTS,
    DETAILS,
    FIRST_NAMES,
    PLACES,
    PROJECTS,
    SURNAMES,
)

STAFF = 60
OUTSIDERS = 80
PROJECT_COUNT = 40
THINGS = 62
"""Detail words of one world: few enough that each is shared by many mails of every project and topic."""
MATTERS = 60


def _style(dice: Dice) -> Style:
    return Style(
        greetings=tuple(dice.sample(GREETINGS, 3)),
        sign_offs=tuple(dice.sample(SIGN_OFFS, 2)),
        full_name=dice.chance(40),
        card=dice.chance(25),
        lower=dice.chance(8),
        aside=dice.between(20, 90),
        talk=dice.between(10, 90),
        quote=dice.between(5, 50),
        formats=dice.below(48),
    )


def _person(dice: Dice, first: str, last: str, employer: str, staff: bool) -> Person:
    department = dice.pick(tuple(DEPARTMENTS))
    domain = f"{employer.lower()}.example"
    local = f"{first}.{last}".lower() if staff else last.lower()
    return Person(
        first=first,
        last=last,
        address=Address(f"{first} {last}", f"{local}@{domain}"),
        employer=employer,
        department=department,
        role=dice.pick(DEPARTMENTS[department]),
        style=_style(dice),
    )


def cast(dice: Dice) -> Company:
    """Choose everyone and everything of one company."""
    name = dice.pick(COMPANIES)
    customers = dice.sample(CUSTOMERS, PROJECT_COUNT)
    firsts = dice.shuffled(FIRST_NAMES)
    lasts = dice.sample(SURNAMES, STAFF + OUTSIDERS)
    staff = tuple(_person(dice, firsts[i], lasts[i], name, True) for i in range(STAFF))
    outsiders = tuple(
        _person(dice, dice.pick(firsts), last, customers[i % len(customers)], False)
        for i, last in enumerate(lasts[STAFF:])
    )
    projects = tuple(
        Project(
            name=code,
            customer=customers[i],
            team=tuple(dice.sample(staff, dice.between(6, 9))),
            outside=tuple(person for person in outsiders if person.employer == customers[i]),
        )
        for i, code in enumerate(dice.sample(PROJECTS, PROJECT_COUNT))
    )
    return Company(
        name=name,
        domain=f"{name.lower()}.example",
        staff=staff,
        outsiders=outsiders,
        projects=projects,
        places=tuple(dice.sample(PLACES, 14)),
        things=tuple(dice.sample(DETAILS, THINGS)),
        matters=tuple(dice.sample(CONTEXTS, MATTERS)),
    )
