"""How much an episode repeats itself: the same call, the same words, the same script everywhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

from art_trainer.episodes import Episode, Turn

INVALID = "(invalid)"
"""Stands for the tool of a reply without a valid call."""
NO_CALL = "(no call)"
"""Stands for the tool where an environment names no calls."""

_GRAM = 3
_MOST_WORDS = 300


def tool_of(turn: Turn) -> str:
    """The name of the tool that a turn called."""
    if turn.error is not None:
        return INVALID
    return NO_CALL if turn.call is None else str(turn.call.get("name", NO_CALL))


def repeated_calls(turns: Sequence[Turn]) -> float:
    """The share of an episode's turns that do again exactly what an earlier turn did, in [0, 1]."""
    if len(turns) < 2:
        return 0.0
    return 1 - len({_action(turn) for turn in turns}) / len(turns)


def _action(turn: Turn) -> str:
    if turn.call is None:
        return turn.reply
    return json.dumps(turn.call, sort_keys=True, default=str)


def repeated_words(replies: Iterable[str]) -> float:
    """The share of three-word sequences that came before in the same reply, the highest of the replies.

    Only a reply's first 300 words are read. Source of the measure: the repetition of n-grams in S. Welleck et
    al., "Neural Text Generation with Unlikelihood Training", ICLR 2020 (seq-rep-n).
    """
    highest = 0.0
    for reply in replies:
        words = reply.split(None, _MOST_WORDS)[:_MOST_WORDS]
        grams = len(words) - _GRAM + 1
        if grams > 1:
            distinct = len(set(zip(words, words[1:], words[2:], strict=False)))
            highest = max(highest, 1 - distinct / grams)
    return highest


def script_of(episode: Episode) -> int:
    """A number that two episodes share exactly where all their replies are the same."""
    digest = hashlib.blake2b(digest_size=8)
    for turn in episode.turns:
        digest.update(turn.reply.encode("utf-8", "surrogatepass"))
        digest.update(b"\xff")
    return int.from_bytes(digest.digest(), "big")
