"""Plays a policy on a fixed list of starts, so that any two policies meet exactly the same ones.

The k-th episode of an evaluation depends on the split, the seed and k alone. Two evaluations of one
environment can therefore be compared pair by pair, which needs far fewer episodes than comparing averages.
An episode that a fault ended (a server that was down, an environment that raised) says nothing about the
policy: it is counted apart, in ``Evaluation.faults``, and left out of every average.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypedDict, Unpack

import gymnasium as gym
import numpy as np

from art_gym.errors import UnknownTask, did_you_mean
from art_gym.tasks import TaskSet
from art_trainer.episode_results import EpisodeResult, clusters_of
from art_trainer.episodes import Ending, Episode
from art_trainer.evaluation_starts import evaluation_split, evaluation_starts
from art_trainer.policy import Policy
from art_trainer.rollout import rollout
from art_trainer.starts import Start
from art_trainer.statistics import (
    Interval,
    mean_interval,
    paired_difference,
    paired_p_value,
    pass_at_k,
    rate_interval,
)

__all__ = [
    "Comparison",
    "EpisodeResult",
    "Evaluation",
    "PlayOptions",
    "compare",
    "evaluate",
    "evaluate_starts",
    "evaluation_split",
    "evaluation_starts",
]

_STATISTICS_SEED = 20_240_229
_LONGEST_FIELD = 40  # characters


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
        samples: Attempts at each start; those at one start follow each other in ``results``.
        tasks: What the environment tells of each task in a word or a number, such as its difficulty.
    """

    policy: str
    env_id: str
    split: str | None
    seed: int
    results: tuple[EpisodeResult, ...]
    seconds: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    samples: int = 1
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

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

        An episode that never reached its end, because the context was full, has not succeeded. Attempts at
        one task belong together in the interval.
        """
        if not self.tells_success:
            return None
        won = [float(bool(result.success)) for result in self.counted]
        rng = np.random.default_rng(_STATISTICS_SEED)
        return rate_interval(won, rng, clusters=clusters_of(self.counted))

    def pass_at(self, k: int) -> Interval | None:
        """The share of starts that at least one of k attempts solves, by :func:`pass_at_k`.

        Starts with fewer than k attempts that no fault ended are left out; ``None`` where none is left or the
        environment does not say what success is.
        """
        attempts: dict[tuple[str, int], list[bool]] = {}
        for result in self.counted:
            attempts.setdefault((result.task_id, result.seed), []).append(bool(result.success))
        enough = {start: won for start, won in attempts.items() if len(won) >= k}
        if not self.tells_success or not enough:
            return None
        solved = [pass_at_k(len(won), sum(won), k) for won in enough.values()]
        several = len({task for task, _ in enough}) > 1
        clusters = [task if several else seed for task, seed in enough]
        return rate_interval(solved, np.random.default_rng(_STATISTICS_SEED), clusters=clusters)

    def measured(self, metric: str) -> Interval | None:
        """A figure with its interval over tasks: ``success``, ``reward`` or one of the environment's metrics.

        ``None`` where no episode has it.
        """
        if metric in ("success", "reward"):
            found: Interval | None = getattr(self, metric)
            return found
        told = [result for result in self.counted if metric in result.metrics]
        if not told:
            return None
        values = [result.metrics[metric] for result in told]
        return mean_interval(values, np.random.default_rng(_STATISTICS_SEED), clusters=clusters_of(told))

    def by(self, name: str) -> dict[Any, Evaluation]:
        """The evaluation in parts, one for each value of a field of the tasks, such as ``difficulty``.

        Raises:
            ValueError: Where no task has such a field; names the near miss.
        """
        known = list(dict.fromkeys(field for told in self.tasks.values() for field in told))
        if name not in known:
            raise ValueError(f"the tasks of {self.env_id} tell no `{name}`{did_you_mean(name, known)}")
        parts: dict[Any, list[EpisodeResult]] = {}
        for result in self.results:
            parts.setdefault(self.tasks.get(result.task_id, {}).get(name), []).append(result)
        ordered = sorted(parts, key=lambda value: (value is None, str(type(value)), value))
        return {value: dataclasses.replace(self, results=tuple(parts[value])) for value in ordered}

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
        clusters = clusters_of(self.counted)
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
    """The paired difference between two evaluations, second minus first.

    Attributes:
        first: The first policy's name.
        second: The second policy's name.
        success: The difference of the success rates; ``None`` where the environment tells none.
        reward: The difference of the mean rewards.
        success_p: How likely such a difference of success is by chance, by :func:`paired_p_value`.
        reward_p: The same of the rewards.
    """

    first: str
    second: str
    success: Interval | None
    reward: Interval
    success_p: float | None = None
    reward_p: float | None = None


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
    clusters = clusters_of([a for a, _ in pairs])

    def difference(measure: Callable[[EpisodeResult], float]) -> tuple[Interval, float]:
        rng = np.random.default_rng(_STATISTICS_SEED)
        values = [measure(a) for a, _ in pairs], [measure(b) for _, b in pairs]
        interval = paired_difference(*values, rng, clusters=clusters)
        return interval, paired_p_value(*values, rng, clusters=clusters)

    reward, reward_p = difference(lambda result: result.reward)
    success, success_p = None, None
    if first.tells_success or second.tells_success:
        success, success_p = difference(lambda result: float(bool(result.success)))
    return Comparison(first.policy, second.policy, success, reward, success_p, reward_p)


class PlayOptions(TypedDict, total=False):
    """How :func:`evaluate` and :func:`evaluate_starts` play, and whom they tell; results are the same."""

    max_concurrent: int | None
    """How many episodes run side by side."""
    settings: Mapping[str, Any] | None
    """Kept in the result for the reader."""
    on_episode: Callable[[Episode], None] | None
    """Called with each episode as it ends, in no particular order."""
    transcripts: list[Episode] | None
    """Where given, the episodes are appended here, in the order of the starts."""


def evaluate(
    policy: Policy,
    make_env: Callable[[], gym.Env[str, str]],
    *,
    split: str | None = None,
    episodes: int | None = None,
    seed: int = 0,
    samples: int = 1,
    **options: Unpack[PlayOptions],
) -> Evaluation:
    """Play a policy on a split's tasks and summarise how it did.

    Args:
        policy: What plays.
        make_env: Makes one environment; called as often as episodes run side by side, and once more.
        split: Which tasks; see :func:`evaluation_split`.
        episodes: How many starts; every task of the split once where not given.
        seed: Two evaluations with the same seed meet the same starts.
        samples: Attempts at each start.
        options: See :class:`PlayOptions`.

    Raises:
        UnknownTask: Where the environment has tasks but no such split.
        ValueError: Where no episode is asked for.
    """
    env = make_env()
    try:
        starts = evaluation_starts(env, split=split, episodes=episodes, seed=seed, samples=samples)
        used_split = evaluation_split(env, split)
    finally:
        env.close()
    return evaluate_starts(policy, make_env, starts, split=used_split, seed=seed, samples=samples, **options)


def evaluate_starts(
    policy: Policy,
    make_env: Callable[[], gym.Env[str, str]],
    starts: Sequence[Start],
    *,
    split: str | None,
    seed: int,
    samples: int = 1,
    **options: Unpack[PlayOptions],
) -> Evaluation:
    """Play a policy from given starts; the arguments are those of :func:`evaluate`, which chooses them.

    Args:
        policy: What plays.
        make_env: Makes one environment.
        starts: Where the episodes start; attempts at one start follow each other.
        split: What split the tasks are of, for the reader.
        seed: What the starts were derived from, for the reader.
        samples: Attempts at each start, for the reader.
        options: See :class:`PlayOptions`.
    """
    env = make_env()
    try:
        env_id = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        known = getattr(env.unwrapped, "tasks", None)
    finally:
        env.close()
    began = time.perf_counter()
    played = rollout(
        policy,
        make_env,
        starts,
        max_concurrent=options.get("max_concurrent"),
        on_episode=options.get("on_episode"),
    )
    transcripts = options.get("transcripts")
    if transcripts is not None:
        transcripts.extend(played)
    return Evaluation(
        policy=policy.name,
        env_id=env_id,
        split=split,
        seed=seed,
        results=tuple(EpisodeResult.of(episode) for episode in played),
        seconds=time.perf_counter() - began,
        settings=dict(options.get("settings") or {}),
        samples=samples,
        tasks=_told(known, played) if isinstance(known, TaskSet) else {},
    )


def _told(tasks: TaskSet, played: Sequence[Episode]) -> dict[str, dict[str, Any]]:
    """What the tasks that were played say of themselves in a word or a number."""
    told = {}
    for task_id in dict.fromkeys(episode.task_id for episode in played):
        try:
            data = tasks.get(task_id).data
        except UnknownTask:  # an episode that failed before it had a task
            continue
        fields = {name: value for name, value in data.items() if _short(value)}
        if fields:
            told[task_id] = fields
    return told


def _short(value: object) -> bool:
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= _LONGEST_FIELD)
