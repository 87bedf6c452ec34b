"""The check of what a text environment pays: trying must pay more than not trying."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from art_gym.baselines import Baseline, players
from art_gym.testing.degenerate import degenerate_policies
from art_gym.testing.rules import Rule, check, must_not_raise
from art_gym.testing.trajectories import Subject, reset, step

_EPISODES = 3
"""Episodes of a policy for each seed."""
TOLERATED = 0.1
"""Who succeeds less often than this may do better by not trying, so that turns may cost a little."""


@dataclass(frozen=True, slots=True)
class _Returns:
    """A policy's returns, by how its episodes ended; none of one whose episodes are too long to play."""

    succeeded: list[float]
    failed: list[float]


@check(Rule.TRYING_PAYS)
def _trying_pays(subject: Subject) -> Iterator[str]:
    trying = {name: _returns(subject, policy) for name, policy in players(subject.env).items()}
    successes = [value for played in trying.values() for value in played.succeeded]
    failures = [value for played in trying.values() if played.succeeded for value in played.failed]
    failures = failures or [value for played in trying.values() for value in played.failed]
    if not successes:
        return  # nothing is known of what success pays
    best = float(np.mean(successes))
    worst = float(np.mean(failures)) if failures else None
    for name, policy in degenerate_policies(subject.env).items():
        played = _returns(subject, policy)
        if played.succeeded or not played.failed:
            continue
        paid = float(np.mean(played.failed))
        share = break_even(best, worst, paid)
        if share > TOLERATED:
            wrong = "" if worst is None else f", without it {worst:.3g}"
            yield (
                f"{name[0].upper()}{name[1:]} never succeeded and earned {paid:.3g} on average; trying earns "
                f"{best:.3g} with success{wrong}. So who succeeds in less than {share:.0%} of the episodes "
                "does best by not trying. Not giving an answer must cost as much as a wrong one, "
                "also when the turns run out (on_truncation)."
            )


def break_even(succeeded: float, failed: float | None, idle: float) -> float:
    """How often an agent must succeed for trying to pay as much as a policy that earns ``idle``; at most 1.

    Args:
        succeeded: What an attempt earns that succeeds.
        failed: What one earns that does not; ``None`` if unknown, then as much as ``idle``.
        idle: What not trying earns.
    """
    if idle >= succeeded:
        return 1.0
    if failed is None or idle <= failed:
        return 0.0
    return (idle - failed) / (succeeded - failed)


def _returns(subject: Subject, policy: Baseline) -> _Returns:
    played = _Returns([], [])
    for number, seed in itertools.product(range(_EPISODES), subject.seeds):
        total, success = _play(subject, policy, seed, number)
        if success is None:
            return _Returns([], [])
        (played.succeeded if success else played.failed).append(total)
    return played


def _play(subject: Subject, policy: Baseline, seed: int, number: int) -> tuple[float, bool | None]:
    """The return and the success of an episode, ``None`` if it takes more turns than are to be played."""
    seen: Any = reset(subject.env, seed + 1_000 * number)
    total = 0.0
    with must_not_raise(Rule.BASELINE, "a scripted policy"):
        act = policy(subject.env, np.random.default_rng((seed, number)))
    for _ in range(subject.steps):
        with must_not_raise(Rule.BASELINE, "a scripted policy"):
            reply = act(seen.observation)
        seen = step(subject.env, reply)
        total += seen.reward
        if seen.ended:
            return total, bool(seen.info.get("success", False))
    return total, None
