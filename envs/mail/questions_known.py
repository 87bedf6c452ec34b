"""Known-item questions of difficulty 1 about a generated world: three telling words and some noise."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import combinations

from art_gym.envs.mail.message import Message
from art_gym.envs.mail.questions_index import WordIndex, words_of
from art_gym.envs.mail.questions_model import Question
from art_gym.envs.mail.questions_request import request
from art_gym.envs.mail.world import World
from art_gym.envs.mail.world_dice import Dice
from art_gym.envs.mail.world_kinds import KINDS

PAIR_MATCHES = 6
"""Every two of the telling words match at least so many visible mails, the wanted one included."""
NOISE_MATCHES = 20
"""A word of noise stands in at least so many visible mails."""

_SHAPES = ("tpd", "tpd", "tpd", "spd", "std", "stp", "pde")


class Mailroom:
    """A world with what the makers of questions look up: its index, its dates and the role of every word."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.index = WordIndex(world.messages)
        self.dates = [_sent(message) for message in world.messages]
        self.row = {message.message_id: i for i, message in enumerate(world.messages)}
        company = world.company
        self.roles: dict[str, tuple[str, str]] = {}
        self.roles.update((topic, ("t", topic)) for kind in KINDS for topic in kind.topics)
        self.roles.update((p.name.lower(), ("p", p.name)) for p in company.projects)
        self.roles.update((p.customer.lower(), ("p", p.customer)) for p in company.projects)
        self.roles.update((place.lower(), ("p", place)) for place in company.places)
        self.roles.update((thing, ("d", thing)) for thing in company.things)
        self.noise = {
            "x": company.matters,
            "y": company.matters,
            "l": company.places,
            "n": tuple(person.first for person in company.staff),
        }

    def visible(self, asked_on: datetime) -> int:
        """The set of messages sent up to then."""
        return (1 << bisect_right(self.dates, asked_on)) - 1

    def asked_on(self, dice: Dice, row: int) -> datetime:
        """A time of asking after the message, and late enough that there is much to search."""
        total = len(self.dates)
        later = dice.between(max(row, total * 6 // 10), total - 1)
        return self.dates[later] + timedelta(hours=dice.between(1, 30))


def _sent(message: Message) -> datetime:
    if message.date is None:
        raise ValueError(f"message {message.message_id} has no date, but every generated one must")
    return message.date


def known_item(room: Mailroom, dice: Dice, row: int, split: str) -> Question | None:
    """A question that wants this mail, or ``None`` when no three words of it tell it from all others."""
    message = room.world.messages[row]
    asked_on = room.asked_on(dice, row)
    visible = room.visible(asked_on)
    found = _telling(room, dice, row, visible)
    if found is None:
        return None
    shape, roles = found
    index = room.index

    def strange(word: str) -> bool:
        held = index.holding(word) & visible
        return not held >> row & 1 and held.bit_count() >= NOISE_MATCHES

    text, telling = request(dice, shape, roles, room.noise, strange)
    return Question(
        id=f"known-{row:05d}",
        text=text,
        kind="known_item",
        difficulty=1,
        gold_ids=(message.message_id,),
        answers=(),
        answer_type=None,
        split=split,
        asked_on=asked_on,
        mailbox=room.world.owner,
        telling=telling,
    )


def _telling(room: Mailroom, dice: Dice, row: int, visible: int) -> tuple[str, Mapping[str, str]] | None:
    """A shape and the words for it: together only in this mail, each two of them in several."""
    for shape, roles in _candidates(room, dice, row):
        words = [word.lower() for word in roles.values()]
        if room.index.holding_all(words, visible) != 1 << row:
            continue
        pairs = combinations(words, 2)
        if all(room.index.holding_all(pair, visible).bit_count() >= PAIR_MATCHES for pair in pairs):
            return shape, roles
    return None


def _candidates(room: Mailroom, dice: Dice, row: int) -> list[tuple[str, dict[str, str]]]:
    """All ways to name this mail by three words that its sender wrote, the shapes in a random order."""
    message = room.world.messages[row]
    note = room.world.notes[message.message_id]
    body = message.body[: note.own]
    own = words_of(f"{message.subject} {body}")
    by_role: dict[str, list[str]] = {"t": [], "p": [], "d": [], "s": []}
    for word in dict.fromkeys(own):
        role = room.roles.get(word)
        if role is not None:
            by_role[role[0]].append(role[1])
    signed = set(own)
    by_role["s"] = [name for name in (note.sender.first, note.sender.last) if name.lower() in signed]
    ways: list[tuple[str, dict[str, str]]] = []
    for shape in dict.fromkeys(dice.shuffled(_SHAPES)):
        if shape == "pde":
            pairs = [(d, e) for d, e in combinations(by_role["d"], 2)]
            found = [{"p": p, "d": d, "e": e} for p in by_role["p"] for d, e in pairs]
        else:
            a, b, c = (by_role[role] for role in shape)
            found = [
                dict(zip(shape, words, strict=True)) for words in ((x, y, z) for x in a for y in b for z in c)
            ]
        ways.extend((shape, roles) for roles in dice.shuffled(found))
    return ways
