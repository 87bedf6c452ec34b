"""Groups of attempts of different quality, to evaluate judges: played by several players, or recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from art_gym.baselines import noisy
from art_trainer.errors import ConfigError
from art_trainer.inference.policy import Conversation, Policy
from art_trainer.inference.scripted_policy import RANDOM, ScriptedPolicy, make_player
from art_trainer.rollout.envs import EnvPool, MakeEnv
from art_trainer.rollout.episodes import GroupCollector, rollout_episodes
from art_trainer.rollout.evaluate import evaluation_starts
from art_trainer.tracking.episode_store import FILE, iter_steps, require_observations
from art_trainer.types import Episode, Group, GroupSpec


@dataclass(frozen=True, slots=True)
class LabelledGroup:
    """A group with the name of the player of each attempt."""

    group: Group
    players: tuple[str, ...]


class NoisyScriptedPolicy(ScriptedPolicy):
    """Scripted player with some replies replaced by random ones, so that it fails in various ways.

    Args:
        player: The player's name.
        noise: Largest share of random replies, in [0, 1]; each episode draws its own share below it.

    Raises:
        ValueError: If ``noise`` is not in [0, 1].
    """

    def __init__(self, player: str, noise: float) -> None:
        if not 0 <= noise <= 1:
            raise ValueError(f"noise is not between 0 and 1: {noise}")
        super().__init__(player)
        self.name = f"{player} with noise"
        self._noise = noise

    def submit(self, conversation: Conversation) -> None:
        """Ask for the next reply.

        Raises:
            KeyError: The environment has no such player, or none that plays at random.
        """
        if conversation.state is None:
            rng = conversation.rng
            player, random = make_player(conversation, self.baseline), make_player(conversation, RANDOM)
            conversation.state = noisy(player, random, rng.uniform(0, self._noise), rng)
        super().submit(conversation)


def mixed_starts(
    make_env: MakeEnv, *, groups: int, size: int, split: str | None = None, seed: int = 0
) -> list[GroupSpec]:
    """Choose the tasks and seeds of groups: different tasks of a split, drawn at random, while there are any.

    Args:
        make_env: Makes the environment.
        groups: Number of groups.
        size: Attempts a group.
        split: As for :func:`art_trainer.rollout.evaluate.evaluation_starts`.
        seed: Seed of the draw.

    Raises:
        UnknownTaskError: If the environment has tasks but no such split.
    """
    with closing(make_env()) as env:
        every = len(evaluation_starts(env, split=split, seed=seed))
        starts = evaluation_starts(env, split=split, episodes=max(groups, every), seed=seed)
    drawn = np.random.default_rng(seed).permutation(len(starts))[:groups].tolist()
    return [GroupSpec(starts[one].seed, size, (seed, one, 1), starts[one].options) for one in drawn]


def play_mixed_groups(
    policies: Sequence[Policy],
    make_env: MakeEnv,
    starts: Sequence[GroupSpec],
    *,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[LabelledGroup]:
    """Play groups, by the policies in turn.

    Args:
        policies: The players; a group continues where the one before it ended.
        make_env: Makes the environment.
        starts: Of :func:`mixed_starts`.
        on_episode: Called with each episode as it ends.

    Returns:
        The groups, in the order of ``starts``; some may not be whole.
    """
    collector = GroupCollector(starts)
    count = len(collector.episodes)
    names = cycle(policy.name for policy in policies)
    with EnvPool(make_env) as pool:
        for turn, policy in enumerate(policies):
            numbers = range(turn, count, len(policies))
            specs = [collector.episodes[number] for number in numbers]
            played = rollout_episodes(policy, pool, specs, on_episode=on_episode)
            for number, episode in zip(numbers, played, strict=True):
                collector.add(number, episode)
    groups = collector.groups()
    return [LabelledGroup(group, tuple(islice(names, len(group.episodes)))) for group in groups]


def recorded_groups(folder: Path, limit: int | None = None) -> list[LabelledGroup]:
    """Read the first groups that a run recorded and learned from.

    Every attempt's player is the step at which it was sampled. Judges' rewards are replaced by the
    environment's own, at the last turn.

    Args:
        folder: The run's folder.
        limit: Most groups; ``None`` for all.

    Raises:
        ConfigError: If it holds no two recorded episodes of one group.
        RecordError: If the records are damaged.
    """
    require_observations(folder)
    groups = (
        LabelledGroup(Group(members), (f"step-{record.step:06d}",) * len(members))
        for record in iter_steps(folder)
        for group in record.groups
        if len(members := tuple(map(_with_own_reward, group.episodes))) > 1
    )
    found = list(islice(groups, limit))
    if not found:
        raise ConfigError(
            f"{folder} holds no two recorded episodes of one group ({FILE}): record more by log_episodes"
        )
    return found


def _with_own_reward(episode: Episode) -> Episode:
    if episode.independent_reward is None or not episode.turns:
        return episode
    turns = [replace(turn, reward=0.0, score_terms={}) for turn in episode.turns]
    turns[-1] = replace(turns[-1], reward=episode.independent_reward)
    return replace(episode, turns=tuple(turns), independent_reward=None)
