"""What ``check_text_env`` holds, sentence by sentence: one verdict for each instead of the first fault."""

from __future__ import annotations

import contextlib
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from art_gym import _plays
from art_gym._plays import Case
from art_gym.checker import CHECKS
from art_gym.errors import ContractError

__all__ = ["Verdict", "sentences", "verdicts"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one sentence of the contract holds.

    Attributes:
        sentence: The sentence.
        held: ``None`` where it could not be judged, for an earlier one does not hold.
        detail: What was seen, where it was not held.
    """

    sentence: str
    held: bool | None
    detail: str = ""


def sentences() -> list[str]:
    """The sentences of the ``TextEnv`` contract, in the order in which they are checked."""
    return [_sentence(check) for check in CHECKS]


def verdicts(
    env: gym.Env[Any, Any], *, seeds: Iterable[int] = (0, 1, 2), steps: int = 30
) -> Iterator[Verdict]:
    """Judge an environment by every sentence of the contract, in turn.

    Args:
        env: A new environment, as for :func:`art_gym.check_text_env`.
        seeds: The seeds of the episodes that are played.
        steps: The most turns of a random episode.
    """
    sound = True
    with contextlib.closing(Case(env, seeds, steps)) as case:
        for check in CHECKS:
            sentence = _sentence(check)
            try:
                check(case)
            except ContractError as fault:
                sound = False
                yield Verdict(sentence, False, str(fault).removeprefix(sentence).strip())
            except Exception as fault:
                # A check relies on the ones before it; what it meets after a fault may be anything.
                if sound:
                    raise
                yield Verdict(sentence, None, f"{type(fault).__name__}: {fault}")
            else:
                yield Verdict(sentence, True)


def _sentence(check: Callable[[Case], None]) -> str:
    """The sentence that a check holds: the constant of its name."""
    name = check.__name__.removeprefix("check_").upper()
    text: str = ChainMap(vars(sys.modules[check.__module__]), vars(_plays))[name]
    return text
