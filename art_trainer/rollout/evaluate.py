"""Evaluation: a policy plays a fixed list of episodes, the same for every policy.

The k-th episode of an evaluation depends on the split, the seed and k alone. Two evaluations of one
environment can therefore be compared pair by pair, which needs far fewer episodes than comparing averages.
An episode that ended with a fault (a server was down, the environment raised) says nothing about the policy.
It is counted in ``Evaluation.faults`` and left out of every average.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypedDict, Unpack

import gymnasium as gym
import numpy as np

from art_gym.base import env_name
from art_gym.errors import UnknownTaskError, did_you_mean
from art_gym.tasks import TaskSet
from art_trainer.inference.policy import Policy
from art_trainer.inference.scripted_policy import ScriptedPolicy, named_player
from art_trainer.rollout.envs import EnvSource, maker
from art_trainer.rollout.episodes import require_known, rollout_episodes
from art_trainer.rollout.statistics import (
    mean_interval,
    paired_difference,
    paired_p_value,
    pass_at_k,
    rate_interval,
)
from art_trainer.types import Ending, Episode, EpisodeSpec, Interval

# The episode specs of an evaluation.

DEFAULT_EPISODES = 100
"""How many episodes an environment without tasks is played."""


def evaluation_starts(
    env: gym.Env[str, str],
    *,
    split: str | None = None,
    episodes: int | None = None,
    seed: int = 0,
    samples: int = 1,
) -> list[EpisodeSpec]:
    """Return the starts of an evaluation: task k of the split for episode k, repeated after the last task.

    Fewer episodes than tasks are a part of the split in a fixed random order: tasks are often listed by kind
    or difficulty, and the first of them would not be like the rest. An environment without tasks, or with one
    that it plays by default, is played from different seeds.

    Args:
        env: The environment; its ``tasks`` are used if it has them.
        split: Which of the environment's splits; see :func:`evaluation_split`.
        episodes: How many starts; by default every task once (``DEFAULT_EPISODES`` without tasks).
        seed: What the seeds of the resets and of the policy's sampling are derived from.
        samples: Attempts at each start: the same state, and for each attempt its own sampling seed. They
            follow each other in the list.

    Raises:
        UnknownTaskError: If the environment has tasks but no such split.
        ValueError: If ``episodes`` or ``samples`` is below 1.
    """
    if samples < 1:
        raise ValueError(f"an evaluation needs at least one attempt at each start, got samples={samples}")
    if episodes is not None and episodes < 1:
        raise ValueError(f"an evaluation needs at least one episode, got {episodes}")
    name = evaluation_split(env, split)
    tasks = [] if name is None else [task.id for task in env.unwrapped.tasks.split(name)]  # type: ignore[attr-defined]
    count = episodes or len(tasks) or DEFAULT_EPISODES
    if count < len(tasks):
        tasks = [tasks[k] for k in np.random.default_rng(0).permutation(len(tasks))]
    starts = []
    for k in range(count):
        options = {"task": tasks[k % len(tasks)]} if tasks else None
        reset_seed = int(np.random.SeedSequence((seed, k)).generate_state(1)[0])
        starts += [
            EpisodeSpec(seed=reset_seed, options=options, group=k, rng_seed=(seed, k, 1 + attempt))
            for attempt in range(samples)
        ]
    return starts


def evaluation_split(env: gym.Env[str, str], split: str | None) -> str | None:
    """Return the split to evaluate on; ``None`` if the environment's episodes differ by seed alone.

    Raises:
        UnknownTaskError: If the environment has tasks but no such split; suggests the nearest name.
    """
    tasks = getattr(env.unwrapped, "tasks", None)
    if not isinstance(tasks, TaskSet):
        return None
    if len(tasks) == 1 and getattr(env.unwrapped, "split", tasks[0].split) == tasks[0].split:
        return None
    if split is None:
        return "test" if "test" in tasks.splits else tasks.splits[0]
    tasks.split(split)
    return split


# The result of one episode, and of an evaluation.


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """Summary of one episode of an evaluation."""

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


def clusters_of(results: Sequence[EpisodeResult]) -> list[Hashable]:
    """Return each episode's cluster for an interval: its task, or its seed if there is only one task."""
    tasks = {result.task_id for result in results}
    return [result.task_id if len(tasks) > 1 else result.seed for result in results]


_STATISTICS_SEED = 20_240_229
_LONGEST_FIELD = 40  # characters


@dataclass(frozen=True)
class Evaluation:
    """The result of one policy on one list of starts.

    Attributes:
        policy: The policy's name.
        env_id: The environment played.
        split: The split of the environment's tasks, ``None`` for an environment without tasks.
        seed: What the starts were derived from.
        results: One result per episode, in the order of the starts.
        seconds: How long it took.
        settings: Other settings that the numbers depend on (environment arguments, temperature).
        samples: Attempts at each start; those at one start follow each other in ``results``.
        tasks: Short fields of each task, such as its difficulty.
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
        """The success rate; ``None`` if the environment does not report success.

        An episode that never reached its end, because the context was full, has not succeeded. Attempts at
        one task belong together in the interval.
        """
        if not self.reports_success:
            return None
        won = [float(bool(result.success)) for result in self.counted]
        rng = np.random.default_rng(_STATISTICS_SEED)
        return rate_interval(won, clusters_of(self.counted), rng)

    def pass_at(self, k: int) -> Interval | None:
        """The share of starts that at least one of k attempts solves, by :func:`pass_at_k`.

        Starts with fewer than k attempts that no fault ended are left out; ``None`` if none is left or the
        environment does not report success.
        """
        attempts: dict[tuple[str, int], list[bool]] = {}
        for result in self.counted:
            attempts.setdefault((result.task_id, result.seed), []).append(bool(result.success))
        enough = {start: won for start, won in attempts.items() if len(won) >= k}
        if not self.reports_success or not enough:
            return None
        solved = [pass_at_k(len(won), sum(won), k) for won in enough.values()]
        several = len({task for task, _ in enough}) > 1
        clusters = [task if several else seed for task, seed in enough]
        return rate_interval(solved, clusters, np.random.default_rng(_STATISTICS_SEED))

    def by(self, name: str) -> dict[Any, Evaluation]:
        """Split the evaluation by the values of a task field, such as ``difficulty``.

        Raises:
            ValueError: If no task has this field; suggests the nearest name.
        """
        require_field(self.env_id, self.tasks, name)
        parts: dict[Any, list[EpisodeResult]] = {}
        for result in self.results:
            parts.setdefault(self.tasks.get(result.task_id, {}).get(name), []).append(result)
        ordered = sorted(parts, key=lambda value: (value is None, str(type(value)), value))
        return {value: dataclasses.replace(self, results=tuple(parts[value])) for value in ordered}

    @cached_property
    def reports_success(self) -> bool:
        """Whether the environment reported success or failure for any episode."""
        return any(result.success is not None for result in self.counted)

    @cached_property
    def reward(self) -> Interval | None:
        """The mean reward of an episode; ``None`` if every episode ended with a fault."""
        if not self.counted:
            return None
        rewards = [result.reward for result in self.counted]
        rng = np.random.default_rng(_STATISTICS_SEED)
        return mean_interval(rewards, clusters_of(self.counted), rng)

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
        results = [EpisodeResult(**{**row, "ending": Ending(row["ending"])}) for row in data["results"]]
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
        success: The difference of the success rates; ``None`` if the environment does not report success.
        reward: The difference of the mean rewards.
        success_p: The p-value of the difference of success, by :func:`paired_p_value`.
        reward_p: The p-value of the difference of the rewards.
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
        ValueError: If the two did not meet the same starts, or no start is left.
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
        return paired_difference(*values, clusters, rng), paired_p_value(*values, clusters, rng)

    reward, reward_p = difference(lambda result: result.reward)
    success, success_p = None, None
    if first.reports_success or second.reports_success:
        success, success_p = difference(lambda result: float(bool(result.success)))
    return Comparison(first.policy, second.policy, success, reward, success_p, reward_p)


class PlayOptions(TypedDict, total=False):
    """Keyword arguments of :func:`evaluate` and :func:`evaluate_starts`; none changes the results."""

    max_concurrent: int | None
    """How many episodes run side by side."""
    settings: Mapping[str, Any] | None
    """Kept in the result for the reader."""
    on_episode: Callable[[Episode], None] | None
    """Called with each episode as it ends, in no particular order."""
    transcripts: list[Episode] | None
    """If given, the episodes are appended here, in the order of the starts."""


def evaluate(
    policy: Policy,
    make_env: EnvSource,
    *,
    split: str | None = None,
    episodes: int | None = None,
    seed: int = 0,
    samples: int = 1,
    **options: Unpack[PlayOptions],
) -> Evaluation:
    """Play a policy on a split's tasks and summarise how it did.

    Args:
        policy: The policy that plays.
        make_env: Makes one environment, called as often as episodes run side by side, and once more; or the
            environment's id, or one made by ``gym.make``.
        split: Which tasks; see :func:`evaluation_split`.
        episodes: How many starts; by default every task of the split once.
        seed: Two evaluations with the same seed meet the same starts.
        samples: Attempts at each start.
        options: See :class:`PlayOptions`.

    Raises:
        KeyError: If the environment has no baseline of a ``ScriptedPolicy``'s name.
        TypeError: For an option that there is not, or the name of a policy in place of one.
        UnknownTaskError: If the environment has tasks but no such split.
        ValueError: If ``episodes`` or ``samples`` is below 1.
    """
    if isinstance(policy, str):
        model, baseline = f"TransformersPolicy.from_pretrained({policy!r})", f"ScriptedPolicy({policy!r})"
        raise TypeError(f"policy is the text {policy!r}: give {model}, or for a baseline {baseline}")
    make_env = maker(make_env)
    with closing(make_env()) as env:
        if type(policy) is ScriptedPolicy:  # a subclass may say something of its own
            named_player(env.unwrapped, policy.baseline)
        starts = evaluation_starts(env, split=split, episodes=episodes, seed=seed, samples=samples)
        used_split = evaluation_split(env, split)
    return evaluate_starts(policy, make_env, starts, split=used_split, seed=seed, samples=samples, **options)


def evaluate_starts(
    policy: Policy,
    make_env: Callable[[], gym.Env[str, str]],
    starts: Sequence[EpisodeSpec],
    *,
    split: str | None,
    seed: int,
    samples: int = 1,
    **options: Unpack[PlayOptions],
) -> Evaluation:
    """Evaluate a policy on given starts; see :func:`evaluate`, which chooses them."""
    require_known(options, PlayOptions)
    with closing(make_env()) as env:
        env_id = env_name(env)
        known = getattr(env.unwrapped, "tasks", None)
    began = time.perf_counter()
    played = rollout_episodes(
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
        tasks=task_fields(known, (episode.task_id for episode in played)),
    )


def task_fields(tasks: object, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the short fields of an environment's tasks of these ids; empty if it has no tasks."""
    found: dict[str, dict[str, Any]] = {}
    if not isinstance(tasks, TaskSet):
        return found
    for task_id in dict.fromkeys(ids):
        try:
            data = tasks.get(task_id).data
        except UnknownTaskError:  # an episode that failed before it had a task
            continue
        fields = {name: value for name, value in data.items() if _short(value)}
        if fields:
            found[task_id] = fields
    return found


def require_field(env_id: str, tasks: Mapping[str, Mapping[str, Any]], name: str) -> None:
    """Raise ``ValueError`` if no task has a field of this name; suggest the nearest one."""
    known = list(dict.fromkeys(field for fields in tasks.values() for field in fields))
    if name not in known:
        raise ValueError(f"the tasks of {env_id} have no field `{name}`{did_you_mean(name, known)}")


def _short(value: object) -> bool:
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= _LONGEST_FIELD)
