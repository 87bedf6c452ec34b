"""From groups of episodes to what an update trains on: rows of tokens with their advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from art_trainer.config import GRPOConfig
from art_trainer.critic import Critic, Valuation
from art_trainer.episodes import Episode, Group
from art_trainer.estimators import estimate
from art_trainer.packing import Row
from art_trainer.selection import has_signal, is_trained_on


@dataclass(frozen=True, slots=True)
class Attempt:
    """The rows of one episode of a kept group, and how many tokens of them are trained on."""

    rows: tuple[Row, ...]
    tokens: int


def trained_attempts(
    whole: Sequence[Group],
    config: GRPOConfig,
    critic: Critic | None = None,
    valuation: Valuation | None = None,
) -> list[list[Attempt]]:
    """Return the attempts to train on, by group.

    Args:
        whole: Groups without a failed member; advantages are taken over all of them.
        config: Which groups and attempts are left out, and how advantages are estimated.
        critic: Gives rows the targets of a value head, where there is one.
        valuation: What it said about these groups.
    """
    kept = []
    estimated = estimate(whole, config, None if valuation is None else valuation.values)
    for index, (group, values) in enumerate(zip(whole, estimated, strict=True)):
        if config.drop_zero_variance_groups and not has_signal(group, values, config):
            continue
        members = [
            _attempt(episode, advantages_T, (index, member), critic, valuation)
            for member, (episode, advantages_T) in enumerate(zip(group.episodes, values, strict=True))
            if is_trained_on(episode, config)
        ]
        if any(attempt.tokens for attempt in members):
            kept.append(members)
    return kept


def _attempt(
    episode: Episode,
    advantages_T: NDArray[np.float64],
    place: tuple[int, int],
    critic: Critic | None,
    valuation: Valuation | None,
) -> Attempt:
    """Return the rows of an episode, by its place among groups and attempts."""
    group, member = place
    rows = []
    for history in episode.histories:
        row = Row.from_history(history, advantages_T=advantages_T, weight=0.0, group=group)
        if critic is not None and valuation is not None:
            values_T, returns_T = valuation.values[group][member], valuation.returns[group][member]
            row = critic.with_targets(row, history, values_T, returns_T)
        rows.append(row)
    return Attempt(tuple(rows), sum(row.targets.size for row in rows))
