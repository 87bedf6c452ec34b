"""The conformance kit: ``check_text_env`` holds an environment to every sentence of the ``TextEnv`` contract.

Stricter than Gymnasium's ``check_env``, which it also runs. The checks go from the form of what is returned
to determinism and snapshots, so the first to fail is the one to mend first.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Final

import gymnasium as gym
from gymnasium.utils.env_checker import check_env

from art_gym._check_form import FORM_CHECKS
from art_gym._check_play import PLAY_CHECKS
from art_gym._plays import Case, promised

__all__ = ["CHECKS", "check_text_env"]

GYMNASIUM: Final = "gymnasium.utils.env_checker.check_env must pass without a warning."


def check_text_env(env: gym.Env[Any, Any], *, seeds: Iterable[int] = (0, 1, 2), steps: int = 30) -> None:
    """Check that an environment keeps every sentence of the ``TextEnv`` contract.

    Args:
        env: A new environment, not yet reset; wrappers are taken off. More instances come from its ``spec``
            where it has one, else they are deep copies.
        seeds: The seeds of the episodes that are played.
        steps: The most turns of a random episode; one more episode goes to the turn limit.

    Raises:
        ContractError: For the first sentence that does not hold, with what was seen.
    """
    case = Case(env, seeds, steps)
    with contextlib.closing(case):
        for check in CHECKS:
            check(case)


def check_gymnasium(case: Case) -> None:
    """Hold :data:`GYMNASIUM`."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("error")
        with promised(GYMNASIUM, "It"):
            # Without a spec Gymnasium cannot make the other render modes, and warns that it cannot.
            check_env(case.env, skip_render_check=case.env.spec is None)


CHECKS: Final[tuple[Callable[[Case], None], ...]] = (*FORM_CHECKS, *PLAY_CHECKS, check_gymnasium)
"""One check for each sentence, in the order in which they are made."""
