"""The rewards of the coding environment: only the hidden tests of a submitted answer pay."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from art_gym.envs.coding.judge import Verdict

_QUICK = 0.1
_LOADS = 0.05


REWARDS: Mapping[str, Callable[[Verdict], float]] = {
    "all": lambda verdict: float(verdict.solved),
    "fraction": lambda verdict: verdict.fraction,
}
"""What the hidden tests pay, from 0 to 1, by the name that ``gym.make`` takes."""


def score_terms(reward: str, verdict: Verdict, turns_left: float) -> dict[str, float]:
    """The reward of a submission in named parts.

    ``tests`` is what the hidden tests pay. A solution earns ``quick`` besides, up to 0.1 for turns left; a
    program that is paid nothing for its tests, but loads and has what is to be called, earns ``loads``, 0.05.

    Args:
        reward: A name in `REWARDS`.
        verdict: On the hidden tests.
        turns_left: The share of the turns that were not used.

    Raises:
        ValueError: If the sandbox could not judge.
    """
    if verdict.infrastructure:
        raise ValueError(f"a failure of the sandbox is paid in neither direction: {verdict.infrastructure}")
    terms = {"tests": REWARDS[reward](verdict)}
    if verdict.solved:
        terms["quick"] = _QUICK * turns_left
    elif verdict.loaded and not terms["tests"]:
        terms["loads"] = _LOADS
    return terms
