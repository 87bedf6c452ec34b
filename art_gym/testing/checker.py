"""Check a text environment against every rule of the ``TextEnv`` contract.

Stricter than Gymnasium's ``check_env``, which it also runs. The checks go from the format of what is returned
to determinism and snapshots, so the first that fails is the one to fix first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from art_gym.errors import ContractError
from art_gym.testing import behaviour_checks, format_checks  # noqa: F401 (they register their checks)
from art_gym.testing.rules import ADVICE, CHECKS, Rule, broken
from art_gym.testing.trajectories import Subject

__all__ = ["ADVICE", "CHECKS", "CheckResult", "Rule", "check_results", "check_text_env"]


def check_text_env(
    env: gym.Env[Any, Any], *, seeds: Iterable[int] = (0, 1, 2), steps: int = 30, publish: bool = False
) -> None:
    """Check an environment against every rule of the ``TextEnv`` contract.

    Args:
        env: A new environment, not yet reset; wrappers are taken off. More instances are made from its
            ``spec``; without one they are deep copies.
        seeds: The seeds of the episodes that are played.
        steps: The most turns of a random episode; one more episode goes to the turn limit.
        publish: Whether it must also keep the rules for published environments, ``ADVICE``.

    Raises:
        ContractError: For the first rule that is broken, with what was seen.
    """
    with contextlib.closing(Subject(env, seeds, steps)) as subject:
        for rule in CHECKS:
            if publish or rule not in ADVICE:
                _check(rule, subject)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of checking one rule."""

    rule: Rule
    passed: bool | None
    """``None`` if it could not be checked, because an earlier rule is broken."""
    detail: str = ""
    """What was seen, if the rule did not pass."""


def check_results(env: gym.Env[Any, Any]) -> Iterator[CheckResult]:
    """Check every rule in turn, also ``ADVICE``, and yield each result; see :func:`check_text_env`."""
    sound = True
    with contextlib.closing(Subject(env, (0, 1, 2), steps=30)) as subject:
        for rule in CHECKS:
            try:
                _check(rule, subject)
            except ContractError as fault:
                sound = False
                own = str(fault).startswith(rule)  # or another rule broke on the way, whose turn comes
                yield CheckResult(rule, False if own else None, str(fault).removeprefix(rule).strip())
            except Exception as fault:
                # A check relies on the ones before it: after a broken rule it may fail in any way.
                if sound:
                    raise
                yield CheckResult(rule, None, f"{type(fault).__name__}: {fault}")
            else:
                yield CheckResult(rule, True)


def _check(rule: Rule, subject: Subject) -> None:
    for seen in CHECKS[rule](subject):
        raise broken(rule, seen)
