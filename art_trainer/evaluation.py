"""Plays a policy on a fixed list of starts, so that any two policies meet exactly the same ones.

The k-th episode of an evaluation depends on the split, the seed and k alone. Two evaluations of one
environment can therefore be compared pair by pair, which needs far fewer episodes than comparing averages.
An episode that a fault ended (a server that was down, an environment that raised) says nothing about the
policy: it is counted apart, in ``Evaluation.faults``, and left out of every average.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np

from art_gym.tasks import TaskSet
from art_trainer.episodes import Ending, Episode
from art_trainer.policy import Policy
from art_trainer.rollout import Start, rollout
from art_trainer.statistics import Interval, mean_interval, paired_difference, wilson_interval

DEFAULT_EPISODES = 100
"""How many episodes an environment without tasks is played."""

_STATISTICS_SEED = 20_240_229


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """What an evaluation keeps of one episode."""

    task_id: str
    seed: int
    ending: Ending
    success: bool | None
    reward: float
    score_terms: Mapping[str, float]
    metrics: Mapping[str, float]
    turns: int
    invalid_actions: int
    tokens: int
    error: str | None = None

    @property
    def fault(self) -> bool:
        """Whether a fault, not the policy's play, ended the episode."""
        return self.ending in (Ending.ENV_ERROR, Ending.POLICY_ERROR)

    @classmethod
    def of(cls, episode: Episode) -> EpisodeResult:
        """Summarise an episode."""
        return cls(
            task_id=episode.task_id,
            seed=episode.seed,
            ending=episode.ending,
            success=episode.success,
            reward=episode.reward,
            score_terms=episode.score_terms,
            metrics=dict(episode.metrics),
            turns=len(episode.turns),
            invalid_actions=episode.invalid_actions,
            tokens=episode.sampled_tokens,
            error=episode.error,
        )


@dataclass(frozen=True)
class Evaluation:
    """How one policy did on one list of starts.

    Attributes:
        policy: The policy's name.
        env_id: The environment played.
        split: The split of the environment's tasks, ``None`` for an environment without tasks.
        seed: What the starts were derived from.
        results: One result per episode, in the order of the starts.
        seconds: How long it took.
        settings: What else the numbers depend on (environment arguments, temperature), for the reader.
    """

    policy: str
    env_id: str
    split: str | None
    seed: int
    results: tuple[EpisodeResult, ...]
    seconds: float
    settings: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def counted(self) -> tuple[EpisodeResult, ...]:
        """The episodes that no fault ended; all averages are over these."""
        return tuple(result for result in self.results if not result.fault)

    @property
    def faults(self) -> int:
        """How many episodes a fault ended."""
        return len(self.results) - len(self.counted)

    @cached_property
    def success(self) -> Interval | None:
        """The success rate; ``None`` where the environment does not say what success is.

        An episode that never reached its end, because the context was full, has not succeeded.
        """
        if not self.tells_success:
            return None
        return wilson_interval(sum(bool(result.success) for result in self.counted), len(self.counted))

    @cached_property
    def tells_success(self) -> bool:
        """Whether the environment said of any episode if it succeeded."""
        return any(result.success is not None for result in self.counted)

    @cached_property
    def reward(self) -> Interval | None:
        """The mean reward of an episode; ``None`` where every episode was ended by a fault."""
        if not self.counted:
            return None
        rewards = [result.reward for result in self.counted]
        clusters = _clusters(self.counted)
        return mean_interval(rewards, np.random.default_rng(_STATISTICS_SEED), clusters=clusters)

    @cached_property
    def score_terms(self) -> dict[str, float]:
        """The mean of each named part of the reward; a part an episode does not name counts as 0."""
        return self._means([result.score_terms for result in self.counted], missing=0.0)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The mean of each of the environment's metrics, over the episodes that report it."""
        return self._means([result.metrics for result in self.counted])

    @property
    def turns(self) -> float:
        """Replies per episode."""
        return sum(result.turns for result in self.counted) / max(1, len(self.counted))

    @property
    def tokens(self) -> float:
        """Sampled tokens per episode; 0 for a policy without tokens."""
        return sum(result.tokens for result in self.counted) / max(1, len(self.counted))

    @property
    def invalid_rate(self) -> float:
        """The share of replies that held no valid call, in [0, 1]."""
        replies = sum(result.turns for result in self.counted)
        return sum(result.invalid_actions for result in self.counted) / max(1, replies)

    def to_json(self) -> dict[str, Any]:
        """A JSON-able copy, from which :meth:`from_json` rebuilds the evaluation exactly."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evaluation:
        """Rebuild an evaluation from :meth:`to_json`'s result, also after a trip through a JSON file."""
        rest = {key: value for key, value in data.items() if key != "results"}
        results = (
            EpisodeResult(**{**result, "ending": Ending(result["ending"])}) for result in data["results"]
        )
        return cls(**rest, results=tuple(results))

    @staticmethod
    def _means(rows: Sequence[Mapping[str, float]], missing: float | None = None) -> dict[str, float]:
        names = dict.fromkeys(name for row in rows for name in row)
        means = {}
        for name in names:
            values = [row.get(name, missing) for row in rows]
            known = [value for value in values if value is not None]
            means[name] = sum(known) / len(known)
        return means


@dataclass(frozen=True, slots=True)
class Comparison:
    """The paired difference between two evaluations, second minus first."""

    first: str
    second: str
    success: Interval | None
    reward: Interval


def compare(first: Evaluation, second: Evaluation) -> Comparison:
    """Compare two policies start by start; a start that a fault spoiled for either is left out.

    Raises:
        ValueError: Where the two did not meet the same starts, or no start is left.
    """
    seeds = [[result.seed for result in evaluation.results] for evaluation in (first, second)]
    pairs = [(a, b) for a, b in zip(first.results, second.results, strict=False) if not (a.fault or b.fault)]
    same_tasks = all(a.task_id == b.task_id for a, b in pairs)
    if first.env_id != second.env_id or seeds[0] != seeds[1] or not same_tasks:
        raise ValueError(
            f"{first.policy} and {second.policy} did not meet the same starts (environment, split, seed and "
            "number of episodes must be the same), so no difference between pairs can be taken"
        )
    if not pairs:
        raise ValueError(
            f"a fault ended every episode of {first.policy} or {second.policy}: nothing to compare"
        )
    rng = np.random.default_rng(_STATISTICS_SEED)
    clusters = _clusters([a for a, _ in pairs])
    reward = paired_difference(
        [a.reward for a, _ in pairs], [b.reward for _, b in pairs], rng, clusters=clusters
    )
    success = None
    if first.tells_success or second.tells_success:
        success = paired_difference(
            [float(bool(a.success)) for a, _ in pairs],
            [float(bool(b.success)) for _, b in pairs],
            rng,
            clusters=clusters,
        )
    return Comparison(first.policy, second.policy, success, reward)


def _clusters(results: Sequence[EpisodeResult]) -> list[Hashable]:
    """What belongs together in an interval: the episodes of one task; of an only task, those of one seed."""
    tasks = {result.task_id for result in results}
    return [result.task_id if len(tasks) > 1 else result.seed for result in results]


def evaluation_starts(
    env: gym.Env[str, str], *, split: str | None = None, episodes: int | None = None, seed: int = 0
) -> list[Start]:
    """The starts of an evaluation: task k of the split for episode k, around again after the last.

    An environment without tasks, or with only one, is played from different seeds instead.

    Args:
        env: The environment; its ``tasks`` are used where it has them.
        split: Which of the environment's splits; see :func:`evaluation_split`.
        episodes: How many; every task once where not given (``DEFAULT_EPISODES`` without tasks).
        seed: What the seeds of the resets and of the policy's sampling are derived from.

    Raises:
        UnknownTask: Where the environment has tasks but no such split.
        ValueError: Where no episode is asked for.
    """
    if episodes is not None and episodes < 1:
        raise ValueError(f"an evaluation needs at least one episode, got {episodes}")
    name = evaluation_split(env, split)
    tasks = [] if name is None else [task.id for task in env.unwrapped.tasks.split(name)]  # type: ignore[attr-defined]
    count = episodes or len(tasks) or DEFAULT_EPISODES
    starts = []
    for k in range(count):
        options = {"task": tasks[k % len(tasks)]} if tasks else None
        reset_seed = int(np.random.SeedSequence((seed, k)).generate_state(1)[0])
        starts.append(Start(seed=reset_seed, options=options, group=k, rng_seed=(seed, k, 1)))
    return starts


def evaluation_split(env: gym.Env[str, str], split: str | None) -> str | None:
    """The split to evaluate on; ``None`` where the environment's episodes differ by seed alone.

    Args:
        env: The environment.
        split: The split asked for; where not given, ``"test"`` if there is one, else the first.

    Raises:
        UnknownTask: Where the environment has tasks but no such split; names the near miss.
    """
    tasks = getattr(env.unwrapped, "tasks", None)
    if not isinstance(tasks, TaskSet) or len(tasks) == 1:
        return None
    if split is None:
        return "test" if "test" in tasks.splits else tasks.splits[0]
    tasks.split(split)
    return split


def evaluate(
    policy: Policy,
    make_env: Callable[[], gym.Env[str, str]],
    *,
    split: str | None = None,
    episodes: int | None = None,
    seed: int = 0,
    max_concurrent: int | None = None,
    settings: Mapping[str, Any] | None = None,
    on_episode: Callable[[Episode], None] | None = None,
    transcripts: list[Episode] | None = None,
) -> Evaluation:
    """Play a policy on a split's tasks and summarise how it did.

    Args:
        policy: What plays.
        make_env: Makes one environment; called as often as episodes run side by side, and once more.
        split: Which tasks; see :func:`evaluation_split`.
        episodes: How many episodes; every task of the split once where not given.
        seed: Two evaluations with the same seed meet the same starts.
        max_concurrent: How many episodes run side by side.
        settings: Kept in the result for the reader.
        on_episode: Called with each episode as it ends, in no particular order.
        transcripts: Where given, the episodes are appended here, in the order of the starts.

    Raises:
        UnknownTask: Where the environment has tasks but no such split.
    """
    env = make_env()
    try:
        starts = evaluation_starts(env, split=split, episodes=episodes, seed=seed)
        env_id = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        used_split = evaluation_split(env, split)
    finally:
        env.close()
    began = time.perf_counter()
    played = rollout(policy, make_env, starts, max_concurrent=max_concurrent, on_episode=on_episode)
    if transcripts is not None:
        transcripts.extend(played)
    return Evaluation(
        policy=policy.name,
        env_id=env_id,
        split=used_split,
        seed=seed,
        results=tuple(EpisodeResult.of(episode) for episode in played),
        seconds=time.perf_counter() - began,
        settings=dict(settings or {}),
    )
