"""Groups whose attempts differ in quality, because different players made them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from art_trainer.env_pool import EnvPool, MakeEnv
from art_trainer.episodes import Episode, Group
from art_trainer.errors import ConfigError
from art_trainer.evaluation import evaluation_starts
from art_trainer.policy import Conversation, Policy
from art_trainer.records.reader import iter_steps
from art_trainer.records.writer import FILE
from art_trainer.rollout import rollout
from art_trainer.scripted_policy import Player, ScriptedPolicy, find_player
from art_trainer.starts import Start

RANDOM = "random"
"""The player whose replies are played for one that is disturbed."""
NOISY = " with noise"
"""Ends the label of a player some of whose replies were random."""


@dataclass(frozen=True, slots=True)
class PlayedGroup:
    """A group, and who made each of its attempts."""

    group: Group
    players: tuple[str, ...]


class StrayingPolicy(ScriptedPolicy):
    """A scripted player some of whose replies are random ones instead, so that it fails in its own ways.

    Args:
        player: The player's name.
        noise: The largest share of random replies, in [0, 1]; each episode draws its own share below it.

    Raises:
        ValueError: Where ``noise`` is no share.
    """

    def __init__(self, player: str, noise: float) -> None:
        if not 0 <= noise <= 1:
            raise ValueError(f"noise is a share from 0 to 1, got {noise}")
        super().__init__(player)
        self.name = f"{player}{NOISY}"
        self._noise = noise

    def submit(self, conversation: Conversation) -> None:
        """Ask for the next reply.

        Raises:
            KeyError: The environment has no such player, or none that plays at random.
        """
        if conversation.state is None:
            rng = conversation.rng
            player, stray = find_player(conversation, self.baseline), find_player(conversation, RANDOM)
            conversation.state = _straying(player, stray, rng.uniform(0, self._noise), rng)
        super().submit(conversation)


def _straying(player: Player, stray: Player, share: float, rng: np.random.Generator) -> Player:
    def act(observation: str) -> str:
        # Of a player with a script, a random reply takes up a turn and not a line.
        if rng.random() < share:
            return stray(observation)
        try:
            return player(observation)
        except (
            LookupError,
            StopIteration,
        ):
            # It is in a situation that it would never have come to, and has no line for it.
            return stray(observation)

    return act


def mixed_starts(make_env: MakeEnv, *, groups: int, split: str | None = None, seed: int = 0) -> list[Start]:
    """Where so many groups start: different tasks of a split, drawn at random as long as there are any.

    Args:
        make_env: Makes the environment.
        groups: How many.
        split: As for :func:`art_trainer.evaluation.evaluation_starts`.
        seed: What is drawn.

    Raises:
        UnknownTask: Where the environment has tasks but no such split.
    """
    env = make_env()
    try:
        every = len(evaluation_starts(env, split=split, seed=seed))
        starts = evaluation_starts(env, split=split, episodes=max(groups, every), seed=seed)
    finally:
        env.close()
    drawn = np.random.default_rng(seed).permutation(len(starts))[:groups]
    return [starts[int(index)] for index in drawn]


def play_mixed_groups(
    policies: Sequence[Policy],
    make_env: MakeEnv,
    starts: Sequence[Start],
    size: int,
    *,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[PlayedGroup]:
    """Play each start ``size`` times, by one policy after the other in turn.

    Args:
        policies: Who plays; the first has its turn again after the last, and a group goes on where the one
            before it ended.
        make_env: Makes the environment.
        starts: One a group; its members meet the same task and the same chance.
        size: Attempts a group.
        on_episode: Called with each episode as it ends.

    Returns:
        The groups, in the order of their starts; some may not be whole.
    """
    played: dict[int, Episode] = {}  # attempts by their number, group by group
    with EnvPool(make_env) as pool:
        for turn, policy in enumerate(policies):
            numbers = range(turn, len(starts) * size, len(policies))
            begun = [_begun(starts[number // size], number // size, number % size) for number in numbers]
            played |= zip(numbers, rollout(policy, pool, begun, on_episode=on_episode), strict=True)
    groups = []
    for first in range(0, len(starts) * size, size):
        numbers = range(first, first + size)
        names = tuple(policies[number % len(policies)].name for number in numbers)
        groups.append(PlayedGroup(Group(tuple(played[number] for number in numbers)), names))
    return groups


def _begun(start: Start, group: int, member: int) -> Start:
    """One attempt's start: the group's, with randomness of its own for who plays."""
    words = [start.rng_seed] if isinstance(start.rng_seed, int) else start.rng_seed
    return Start(start.seed, start.options, group, (*words, member))


def recorded_groups(folder: Path, limit: int | None = None) -> list[PlayedGroup]:
    """The first groups that a run recorded and learned from.

    Every attempt's player is the step it was sampled at. What judges paid is taken off: the environment's own
    reward comes back, with the last turn.

    Args:
        folder: The run's folder.
        limit: Most groups; ``None`` for all, which may be more than the memory holds.

    Raises:
        ConfigError: Where it holds no such episodes, or no two of one group.
        RecordError: Where they are damaged.
    """
    groups: list[PlayedGroup] = []
    records = 0
    for record in iter_steps(folder):
        records += 1
        name = f"step-{record.step:06d}"
        for group in record.groups:
            members = tuple(map(_with_own_reward, group.episodes))
            if len(members) > 1:
                groups.append(PlayedGroup(Group(members), (name,) * len(members)))
        if limit is not None and len(groups) >= limit:
            return groups[:limit]
    if not records:
        raise ConfigError(f"{folder} holds no recorded episodes ({FILE})")
    if not groups:
        raise ConfigError(
            f"{folder} holds no two recorded episodes of one group: record more by log_episodes"
        )
    return groups


def _with_own_reward(episode: Episode) -> Episode:
    if episode.independent_reward is None or not episode.turns:
        return episode
    turns = [replace(turn, reward=0.0, score_terms={}) for turn in episode.turns]
    turns[-1] = replace(turns[-1], reward=episode.independent_reward)
    return replace(episode, turns=tuple(turns), independent_reward=None)
