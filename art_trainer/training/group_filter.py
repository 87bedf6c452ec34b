"""Dynamic sampling: resample groups that have no training signal.

A group whose attempts all have the same advantage has a policy gradient of zero: it costs a rollout and a
full pass and teaches nothing. DAPO (arXiv:2503.14476, section 3.2, "dynamic sampling") keeps sampling until a
batch is full of groups with a signal; the bound keeps a policy that always or never succeeds from sampling
forever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from art_trainer.algorithms.advantages import Array, estimate
from art_trainer.config import GRPOConfig
from art_trainer.types import Ending, Episode, Group


def is_trained_on(episode: Episode, config: GRPOConfig) -> bool:
    """Whether an episode of a whole group enters the loss; it counts in the baseline in any case."""
    cut_off = episode.ending is Ending.CONTEXT_FULL or any(turn.cut for turn in episode.turns)
    return not (config.mask_truncated_completions and cut_off)


def has_signal(group: Group, advantages: Sequence[Array], config: GRPOConfig) -> bool:
    """Whether any token of a group has a policy gradient."""
    return any(
        is_trained_on(episode, config) and episode.sampled_tokens > 0 and bool(np.any(values))
        for episode, values in zip(group.episodes, advantages, strict=True)
    )


def needs_replacement(groups: Sequence[Group], config: GRPOConfig) -> list[int]:
    """Return the indices of the groups that teach nothing: a member failed, or no advantage is left."""
    whole = [group for group in groups if group.whole]
    found = iter(estimate(whole, config))
    return [
        index
        for index, group in enumerate(groups)
        if not (group.whole and has_signal(group, next(found), config))
    ]


def resample_zero_variance_groups(
    groups: Sequence[Group], play: Callable[[int], Sequence[Group]], config: GRPOConfig
) -> tuple[list[Group], list[Group]]:
    """Replace groups that teach nothing by fresh ones, as often as ``config.resampling_budget`` allows.

    Args:
        groups: A step's groups.
        play: Plays so many groups of tasks not played in this step yet. A round asks for as many as are
            missing.
        config: The settings; without ``dynamic_sampling`` nothing is played.

    Returns:
        The groups to learn from, as many as before (the last may still teach nothing), and the replaced ones:
        what a policy's mean reward is taken over is both, for the kept ones are chosen by their rewards.
    """
    kept, replaced = list(groups), list[Group]()
    budget = config.resampling_budget
    while budget and (missing := needs_replacement(kept, config)[:budget]):
        fresh = play(len(missing))
        for index, group in zip(missing, fresh, strict=True):
            replaced.append(kept[index])
            kept[index] = group
        budget -= len(missing)
    return kept, replaced
