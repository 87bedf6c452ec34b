"""Questions about a mailbox: for generated worlds, and for imported mail without any language model."""

from __future__ import annotations

import numpy as np

from art_gym.envs.mail.questions_facts import FactAsker
from art_gym.envs.mail.questions_imported import known_item_questions
from art_gym.envs.mail.questions_known import Mailroom, known_item
from art_gym.envs.mail.questions_load import LoadReport, load_annotated_qa, load_art_e
from art_gym.envs.mail.questions_lookalikes import lookalikes
from art_gym.envs.mail.questions_model import Question
from art_gym.envs.mail.world import World
from art_gym.envs.mail.world_dice import Dice

__all__ = [
    "LoadReport",
    "Question",
    "known_item_questions",
    "load_annotated_qa",
    "load_art_e",
    "world_questions",
]

KNOWN_ITEMS = 1400
LOOKALIKES = 300
FACTS = 500
TWO_MESSAGES = 250
UNANSWERABLE = 120


def world_questions(world: World, rng: np.random.Generator) -> list[Question]:
    """All questions about a generated world, spread over kinds, difficulties and splits.

    A default world gives some 2,400. Splits share no message and no conversation: every conversation
    belongs to one split. The same world and generator state give the same questions.
    """
    dice = Dice(rng)
    room = Mailroom(world)
    splits = _splits(world, dice)
    facts = FactAsker(room, dice, splits)
    return [
        *_known_items(room, dice, splits),
        *lookalikes(room, dice, splits, LOOKALIKES),
        *facts.single(FACTS),
        *facts.double(TWO_MESSAGES),
        *facts.nothing(UNANSWERABLE),
    ]


def _known_items(room: Mailroom, dice: Dice, splits: list[str]) -> list[Question]:
    world = room.world
    questions: list[Question] = []
    for row in dice.shuffled(range(len(world.messages))):
        if len(questions) == KNOWN_ITEMS:
            break
        note = world.notes[world.messages[row].message_id]
        question = known_item(room, dice, row, splits[note.thread])
        if question is not None:
            questions.append(question)
    return questions


def _splits(world: World, dice: Dice) -> list[str]:
    """A split for every conversation: 70% train, 10% validation, 20% test."""
    count = 1 + max(note.thread for note in world.notes.values())
    names = ["train"] * (count * 7 // 10) + ["validation"] * (count // 10)
    return dice.shuffled(names + ["test"] * (count - len(names)))
