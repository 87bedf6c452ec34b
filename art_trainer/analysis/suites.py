"""Evaluation suites: a fixed list of tasks and seeds, and how they are played and measured.

A suite lists every task and seed, so it stays the same when an environment's splits change. It includes a
hash of the tasks (:func:`task_list_sha256`), so that a changed environment is noticed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import NoneType
from typing import Annotated, Any

import gymnasium as gym
import yaml

from art_gym.errors import ArtGymError, did_you_mean
from art_gym.tasks import ProvidesGrading, TaskSet
from art_trainer.config import Amount, Check, Count, Whole, check_fields, read_settings
from art_trainer.errors import ConfigError
from art_trainer.rollout.evaluate import Evaluation, attempts, evaluation_split, evaluation_starts
from art_trainer.tracking.run_dir import read_yaml, write_text
from art_trainer.types import EpisodeSpec

AUTO = "auto"
"""The metric is success if the environment reports it, else the reward."""


def _are_starts(starts: Sequence[object]) -> bool:
    return len(starts) > 0 and all(
        isinstance(start, tuple)
        and [type(part) for part in start] in ([str, int], [NoneType, int])
        and start[1] >= 0
        for start in starts
    )


_STARTS = "a list of at least one task's id (or null) with its seed from 0, as in [known-04975, 7]"
Starts = Annotated[tuple[tuple[str | None, int], ...], Check(_STARTS, _are_starts)]


@dataclass(frozen=True, slots=True)
class Suite:
    """An evaluation suite.

    Attributes:
        env: The environment's id.
        starts: Task id (``None`` if episodes differ by seed alone) and seed of each episode.
        name: Its name; empty for a suite made by a command's flags.
        about: One line for readers.
        env_args: Arguments of the environment.
        split: The split of the tasks, for readers.
        seed: Seed of the policy's randomness.
        samples: Episodes for each entry of ``starts``.
        temperature: Sampling temperature of a model; 0 is greedy.
        max_completion_length: Most tokens of a model's reply.
        metric: Policies are ranked by it: ``success``, ``reward``, one of the environment's metrics, or
            :data:`AUTO`.
        task_list_sha256: Hash of the tasks; empty if unknown.

    Raises:
        ConfigError: If a value is out of range.
    """

    env: str
    starts: Starts
    name: str = ""
    about: str = ""
    env_args: dict[str, Any] = field(default_factory=dict)
    split: str | None = None
    seed: Whole = 0
    samples: Count = 1
    temperature: Amount = 0.0
    max_completion_length: Count = 256
    metric: str = AUTO
    task_list_sha256: str = ""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def episodes(self) -> int:
        """Number of episodes of one policy."""
        return len(self.starts) * self.samples

    def rollout_starts(self) -> list[EpisodeSpec]:
        """The episodes to play, samples of one start after each other."""
        return [
            start
            for place, (task, seed) in enumerate(self.starts)
            for start in attempts(place, task, seed, seed=self.seed, samples=self.samples)
        ]

    def metric_of(self, evaluations: Iterable[Evaluation]) -> str:
        """The metric that policies are ranked by, :data:`AUTO` resolved."""
        if self.metric != AUTO:
            return self.metric
        return "success" if any(evaluation.reports_success for evaluation in evaluations) else "reward"

    def to_mapping(self) -> dict[str, Any]:
        """A copy for JSON or YAML, without default values."""
        mapping = dataclasses.asdict(self)
        plain = dataclasses.asdict(Suite(self.env, self.starts))
        kept = {name: value for name, value in mapping.items() if name == "env" or value != plain[name]}
        return {**kept, "starts": [list(start) for start in self.starts]}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], where: str = "the suite") -> Suite:
        """Read a suite from YAML or JSON.

        Args:
            mapping: As :meth:`to_mapping` gives it.
            where: Its name in errors.

        Raises:
            ConfigError: If a name is unknown or missing, or a value has a wrong type or is out of range.
        """
        starts = mapping.get("starts")
        if isinstance(starts, list):
            starts = tuple(tuple(start) if isinstance(start, list) else start for start in starts)
        try:
            return read_settings(cls, {"env": None, **mapping, "starts": starts or ()})
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None


_ENDING = ".yaml"
_FOLDER = resources.files("art_trainer.analysis") / "suite_files"


def suite_names() -> tuple[str, ...]:
    """Names of the suites in the package, sorted."""
    files = (Path(file.name) for file in _FOLDER.iterdir())
    return tuple(sorted(file.stem for file in files if file.suffix == _ENDING))


def load_suite(name: str) -> Suite:
    """Load a suite by name or from a file.

    Args:
        name: One of :func:`suite_names`, or a path that ends in ``.yaml``, ``.yml`` or ``.json``.

    Raises:
        ConfigError: If it does not exist or is malformed.
    """
    if name.endswith((_ENDING, ".yml", ".json")):
        file = Path(name)
        try:
            mapping = read_yaml(file)  # JSON is YAML too
        except (ValueError, OSError) as error:
            raise ConfigError(f"--suite: {error}") from error
        suite = Suite.from_mapping({"name": file.stem, **mapping}, str(file))
        if len(set(suite.starts)) != len(suite.starts):
            twice = next(start for start in suite.starts if suite.starts.count(start) > 1)
            raise ConfigError(f"{file}: the start {list(twice)} is listed twice: set samples instead")
        return suite
    known = suite_names()
    if name not in known:
        raise ConfigError(f"no suite `{name}`{did_you_mean(name, known)} A file of your own ends in .yaml")
    text = (_FOLDER / f"{name}{_ENDING}").read_text("utf-8")
    return Suite.from_mapping({"name": name, **yaml.safe_load(text)}, f"suite {name}")


def write_suite(file: Path, suite: Suite) -> None:
    """Write a suite file for :func:`load_suite`, one line an episode."""
    mapping = suite.to_mapping()
    starts = mapping.pop("starts")
    mapping.pop("name", None)
    head = yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True, width=100)
    lines = [f"- {json.dumps(start, ensure_ascii=False)}\n" for start in starts]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, f"{head}starts:\n{''.join(lines)}")


def starts_of(
    env: gym.Env[str, str], *, split: str | None, episodes: int | None, seed: int
) -> tuple[str | None, tuple[tuple[str | None, int], ...]]:
    """The split and the episodes that :func:`~art_trainer.rollout.evaluate.evaluate` plays.

    Raises:
        UnknownTaskError: If the environment has tasks but no such split.
    """
    starts = evaluation_starts(env, split=split, episodes=episodes, seed=seed)
    listed = tuple(((start.options or {}).get("task"), start.seed) for start in starts)
    return evaluation_split(env, split), listed


def task_list_sha256(
    make_env: Callable[[], gym.Env[str, str]], starts: Sequence[tuple[str | None, int]]
) -> str:
    """Hash a list of tasks: sha256 of canonical JSON (an object a start, sorted keys, no spaces, ASCII).

    It covers, for each start: the task's id, split and seed; the prompt and the first observation with the
    instructions; the environment's data of the task, with the answer; and what the grading depends on
    (:class:`art_gym.tasks.ProvidesGrading`): hidden tests, tolerances, the digest of a mailbox. It does not
    cover the environment's arguments, which are in the suite, nor its code: a result records versions and
    commit, and ``art-trainer eval --verify`` plays it again.

    Args:
        make_env: Makes the environment.
        starts: Task (``None`` if episodes differ by seed alone) and seed of each episode.

    Raises:
        ConfigError: If the environment has no such task, or its data is not JSON.
    """
    try:
        with closing(make_env()) as env:
            described = [_described(env, task, seed) for task, seed in starts]
    except ArtGymError as error:
        raise ConfigError(f"the environment does not have all tasks of the suite: {error}") from error
    try:
        text = json.dumps(described, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    except TypeError as error:
        raise ConfigError(f"the environment's data of its tasks is not JSON: {error}") from error
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def check_task_list(make_env: Callable[[], gym.Env[str, str]], suite: Suite) -> str:
    """Hash a suite's tasks as the environment has them now, and compare with the suite's hash.

    Raises:
        ConfigError: If they are not the tasks that the suite was made with.
    """
    found = task_list_sha256(make_env, suite.starts)
    if suite.task_list_sha256 not in ("", found):
        raise ConfigError(
            f"suite {suite.name or suite.env}: the tasks of {suite.env} have changed since it was made "
            f"(task list {found[:12]}…, the suite's is {suite.task_list_sha256[:12]}…), so results cannot be "
            "compared with earlier ones: use the version it was made with, or make the suite again with "
            "`art-trainer make-suite`"
        )
    return found


def _described(env: gym.Env[str, str], task: str | None, seed: int) -> dict[str, Any]:
    known = getattr(env.unwrapped, "tasks", None)
    if task is not None and isinstance(known, TaskSet):
        known.get(task)
    try:
        observation, info = env.reset(seed=seed, options=None if task is None else {"task": task})
    except Exception as fault:  # the rollout reports it
        return {"seed": seed, "task": task, "fault": type(fault).__name__}
    described: dict[str, Any] = {"seed": seed, "task": info.get("task_id", task), "observation": observation}
    if isinstance(known, TaskSet):
        found = known.get(str(described["task"]))
        described |= {"prompt": found.prompt, "split": found.split, "data": dict(found.data)}
        if isinstance(env.unwrapped, ProvidesGrading):
            described["grading"] = dict(env.unwrapped.grading(found))
    return described
