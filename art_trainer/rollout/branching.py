"""Branching rollouts: some attempts of a group begin in the middle of another one.

First the group's roots are played from the start. Then the replies that the policy itself found least likely
are looked up: there it might as well have replied otherwise. From each of them a new attempt branches. It has
the root's turns before that one for free, and samples the rest itself: fewer tokens an attempt, and returns
that are compared in equal states, see :func:`art_trainer.algorithms.advantages.branch_advantages`. After
TreeRL (arXiv:2506.11902), which branches at its most surprising tokens; here a turn is what can branch.

The environment is brought to the branch by its seed and the root's replies, which works for every
deterministic environment, wrapped or not, and costs a fraction of sampling them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Unpack

from art_trainer.inference.policy import Policy
from art_trainer.rollout.envs import EnvPool
from art_trainer.rollout.episodes import RolloutOptions, group_of, rollout_episodes, rollout_groups
from art_trainer.types import Branch, Episode, Group, GroupSpec


def rollout_branching_groups(
    policy: Policy,
    pool: EnvPool,
    tasks: Sequence[GroupSpec],
    branches: int,
    *,
    on_group: Callable[[int, Group], None] | None = None,
    **options: Unpack[RolloutOptions],
) -> list[Group]:
    """Play groups of which the last ``branches`` attempts branch from the others.

    Args:
        policy: The policy that plays.
        pool: The environments.
        tasks: What to play.
        branches: How many attempts of a group branch, fewer than its size; 0 for none.
        on_group: Called with each group as all are played, its index in ``tasks`` before it.
        **options: See :class:`~art_trainer.rollout.episodes.RolloutOptions`.
    """
    if not branches:
        return rollout_groups(policy, pool, tasks, on_group=on_group, **options)
    roots = rollout_groups(policy, pool, [replace(t, size=t.size - branches) for t in tasks], **options)
    specs = []
    for place, (task, group) in enumerate(zip(tasks, roots, strict=True)):
        for number, branch in enumerate(branch_points(group, branches), len(group.episodes)):
            parent = None if branch is None else group.episodes[branch.attempt]
            specs.append(replace(task.episode(number, place), branch=branch, parent=parent))
    grown = rollout_episodes(policy, pool, specs, **options)
    groups = []
    for place, group in enumerate(roots):
        more = grown[place * branches : (place + 1) * branches]
        groups.append(group_of([*group.episodes, *more]))
        if on_group is not None:
            on_group(place, groups[-1])
    return groups


def branch_points(group: Group, count: int) -> list[Branch | None]:
    """Return where to branch: before the least likely replies of the group, one branch each.

    ``None`` begins anew: if a first reply is among the least likely, or if there are not enough replies.
    """
    found = [
        (surprise, attempt, turn)
        for attempt, episode in enumerate(group.episodes)
        if not episode.failed
        for turn, surprise in _surprises(episode).items()
    ]
    # Of equal ones the earliest: an order that depends on nothing else.
    chosen = sorted(found, key=lambda one: (-one[0], one[2], one[1]))[:count]
    points = [Branch(attempt, turn) if turn else None for _, attempt, turn in chosen]
    return points + [None] * (count - len(points))


def _surprises(episode: Episode) -> dict[int, float]:
    """The negative log-prob of each sampled reply that was played, in nats, by turn."""
    return {
        span.turn: -sum(span.logprobs)
        for history in episode.histories
        for span in history.spans
        if span.turn is not None and span.turn < len(episode.turns)
    }
