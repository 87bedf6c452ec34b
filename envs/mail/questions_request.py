"""Wrapping telling words in a request the way people do, with noise around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from art_gym.envs.mail.questions_index import words_of
from art_gym.envs.mail.questions_phrases import AFTER, BEFORE, CORES, REQUESTS
from art_gym.envs.mail.world_dice import Dice
from art_gym.envs.mail.world_words import WEEKDAYS

MIN_WORDS, MAX_WORDS = 14, 28


def request(
    dice: Dice,
    shape: str,
    roles: Mapping[str, str],
    noise: Mapping[str, Sequence[str]],
    strange: Callable[[str], bool],
) -> tuple[str, tuple[str, ...]]:
    """A request for one mail, 14 to 28 words long, and its telling words in the order they stand in.

    Args:
        dice: The source of chance.
        shape: Which roles there are; a key of `CORES`.
        roles: The telling word of each role.
        noise: Words for the slots ``x`` and ``y`` (matters), ``l`` (places) and ``n`` (names).
        strange: Whether a word may serve as noise: frequent elsewhere, absent from the wanted mail.
    """
    while True:
        core = dice.pick(CORES[shape]).format(**roles)
        asked = dice.pick(REQUESTS).format(core=core)
        front = dice.chance(50)
        clause = dice.pick(BEFORE if front else AFTER).format(**_noise_words(dice, noise, strange))
        text = f"{clause} {asked}" if front else f"{asked}{clause}"
        text = (
            text[0].upper()
            + text[1:]
            + ("?" if asked.startswith(("can", "do ", "could", "where")) and front else ".")
        )
        found = words_of(text)
        if MIN_WORDS <= len(found) <= MAX_WORDS:
            telling = {word.lower() for word in roles.values()}
            return text, tuple(word for word in dict.fromkeys(found) if word in telling)


def _noise_words(
    dice: Dice, noise: Mapping[str, Sequence[str]], strange: Callable[[str], bool]
) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for slot in ("x", "y", "l", "n", "day"):
        pool = WEEKDAYS[:5] if slot == "day" else noise[slot]
        for _ in range(30):
            word = dice.pick(pool)
            if word not in chosen.values() and (slot == "day" or strange(word.lower())):
                break
        chosen[slot] = word
    return chosen
