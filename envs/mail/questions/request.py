"""The wording of a request for one mail, for generated and imported mailboxes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from art_gym.envs.mail.synthetic.fast_rng import FastRng
from art_gym.envs.mail.synthetic.language import QUESTION_CORES, QUESTION_PHRASES, WEEKDAYS

MIN_WORDS, MAX_WORDS = 14, 28
_WORD = re.compile(r"[^\W_]+")


def words_of(text: str) -> list[str]:
    """The lower-case words and numbers of a text, in order."""
    return _WORD.findall(text.lower())


def request(
    rng: FastRng,
    shape: str,
    roles: Mapping[str, str],
    noise: Mapping[str, Sequence[str]],
    strange: Callable[[str], bool],
) -> tuple[str, tuple[str, ...]]:
    """A request for one mail, 14 to 28 words long, and its identifying words in their order.

    Args:
        rng: The source of chance.
        shape: Which roles there are; a key of `QUESTION_CORES`.
        roles: The identifying word of each role.
        noise: Words for the slots ``x`` and ``y`` (matters), ``l`` (places) and ``n`` (names).
        strange: Whether a word may serve as noise: frequent elsewhere, absent from the wanted mail.
    """
    while True:
        core = rng.pick(QUESTION_CORES[shape]).format(**roles)
        sentence = rng.pick(QUESTION_PHRASES["requests"]).format(core=core)
        front = rng.chance(50)
        clause = rng.pick(QUESTION_PHRASES["before" if front else "after"])
        clause = clause.format(**_noise_words(rng, noise, strange))
        text = f"{clause} {sentence}" if front else f"{sentence}{clause}"
        is_question = front and sentence.startswith(("can", "do ", "could", "where"))
        text = text[0].upper() + text[1:] + ("?" if is_question else ".")
        found = words_of(text)
        if MIN_WORDS <= len(found) <= MAX_WORDS:
            identifying = {word.lower() for word in roles.values()}
            return text, tuple(word for word in dict.fromkeys(found) if word in identifying)


def _noise_words(
    rng: FastRng, noise: Mapping[str, Sequence[str]], strange: Callable[[str], bool]
) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for slot in ("x", "y", "l", "n", "day"):
        pool = WEEKDAYS[:5] if slot == "day" else noise[slot]
        for _ in range(30):
            word = rng.pick(pool)
            if word not in chosen.values() and (slot == "day" or strange(word.lower())):
                break
        chosen[slot] = word
    return chosen
