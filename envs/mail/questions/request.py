"""The wording of a request for one mail, for generated and imported mailboxes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from art_gym.envs.mail.synthetic.fast_rng import FastRng
from art_gym.envs.mail.synthetic.language import QUESTION_CORES, QUESTION_PHRASES, WEEKDAYS

MIN_WORDS, MAX_WORDS = 12, 30
_TRIES = 30
"""Words tried for a slot."""
_WORD = re.compile(r"[^\W_]+")
_SLOT = re.compile(r"{(\w+)}")
_SENTENCE = re.compile(r"(?:^|[.?] )[a-z]")


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
    """A request for one mail, 12 to 30 words long, and its identifying words in their order.

    Args:
        rng: The source of chance.
        shape: Which roles there are; a key of `QUESTION_CORES`.
        roles: The identifying word of each role.
        noise: Words for the other slots of ``questions.toml``; what needs another slot is not said.
        strange: Whether a word may serve as noise: frequent elsewhere, absent from the wanted mail.
    """
    while True:
        text = rng.pick(QUESTION_PHRASES["requests"]).replace("{side}", rng.pick(QUESTION_PHRASES["sides"]))
        slots = set(_SLOT.findall(text)) - {"core", "day"}
        if not slots <= noise.keys():
            continue
        chosen = {"day": rng.pick(WEEKDAYS[:5]), "core": rng.pick(QUESTION_CORES[shape]).format(**roles)}
        for slot in sorted(slots):
            words = rng.sample(noise[slot], _TRIES)
            free = (word for word in words if word not in chosen.values() and strange(word.lower()))
            chosen[slot] = next(free, "")
        if not all(chosen.values()):
            continue
        text = _SENTENCE.sub(lambda start: start[0].upper(), text.format(**chosen))
        found = words_of(text)
        if MIN_WORDS <= len(found) <= MAX_WORDS:
            identifying = {word.lower() for word in roles.values()}
            return text, tuple(word for word in dict.fromkeys(found) if word in identifying)
