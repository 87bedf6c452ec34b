"""Training tasks are drawn by the variance of their success."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from art_gym.env import TextEnv
from art_gym.tasks import Task
from art_gym.tools import Outcome, tool
from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError
from art_trainer.training.task_sampler import TaskSampler
from art_trainer.training.trainer import GRPOTrainer
from art_trainer.types import Ending, Group
from tests.art_trainer.guess import SETTINGS, GuessEnv, guess_policy
from tests.art_trainer.made_episodes import made_episode

TASKS = [
    Task(f"{level}-{n}", "Do it.", data={"difficulty": level}) for level in (1, 2, 3) for n in range(100)
]


def attempts(task_id: str, successes: int, of: int = 8) -> Group:
    one = made_episode(0, 0.0, [])
    return Group(tuple(replace(one, task_id=task_id, success=n < successes) for n in range(of)))


def levels_of(sampler: TaskSampler, draws: int = 50) -> Counter[str]:
    rng = np.random.default_rng(0)
    return Counter(task_id[0] for _ in range(draws) for task_id in sampler.draw(32, rng))


def test_levels_that_are_always_or_never_solved_are_drawn_less() -> None:
    sampler = TaskSampler(TASKS)
    assert max(levels_of(sampler).values()) < 1.15 * 32 * 50 / 3  # nothing is known
    solved = {"1": 8, "2": 4, "3": 0}
    sampler.observe([attempts(f"{level}-{n}", solved[level]) for level in solved for n in range(10)])
    drawn = levels_of(sampler)
    assert drawn["2"] > 2 * max(drawn["1"], drawn["3"])
    assert min(drawn.values()) > 0  # nothing is given up


def test_within_a_level_a_task_of_the_middle_is_drawn_more_and_old_attempts_fade() -> None:
    sampler = TaskSampler(TASKS[:100])
    for _ in range(3):
        sampler.observe([attempts("1-0", 4), *(attempts(f"1-{n}", 8) for n in range(1, 100))])
    rng = np.random.default_rng(0)
    often = Counter(task_id for _ in range(200) for task_id in sampler.draw(10, rng))
    assert often["1-0"] > 4 * np.median([often[f"1-{n}"] for n in range(1, 100)])
    for _ in range(100):
        sampler.observe([])
    later = Counter(task_id for _ in range(200) for task_id in sampler.draw(10, rng))
    assert later["1-0"] < 2 * np.median([later[f"1-{n}"] for n in range(1, 100)])


def test_tasks_of_a_step_differ_and_repeat_only_if_there_are_too_few() -> None:
    rng = np.random.default_rng(0)
    assert len(set(TaskSampler(TASKS).draw(300, rng))) == 300
    assert len(TaskSampler(TASKS[:3]).draw(10, rng)) == 10


def test_a_restored_sampler_goes_on_alike_and_failed_attempts_do_not_count() -> None:
    sampler, fresh = TaskSampler(TASKS), TaskSampler(TASKS)
    sampler.observe([attempts("2-7", 3), attempts("1-1", 8)])
    fresh.restore(json.loads(json.dumps(sampler.state())))
    assert sampler.draw(32, np.random.default_rng(1)) == fresh.draw(32, np.random.default_rng(1))
    failed = Group((replace(made_episode(0, 0.0, []), task_id="3-1", ending=Ending.ENV_ERROR, error="x"),))
    sampler.observe([failed, attempts("of another split", 3)])
    assert sampler.state().keys() == {"2-7", "1-1"}


class Sums(TextEnv):
    """Twelve tasks: say the number."""

    def __init__(self) -> None:
        super().__init__([Task(f"say-{n}", f"Say {n}.", data={"number": n}) for n in range(12)], max_turns=1)

    def begin(self, task: Task) -> str:
        return task.prompt

    @tool
    def say(self, number: int) -> Outcome:
        """Say it.

        Args:
            number: Which.
        """
        right = number == self.task.data["number"]
        return Outcome("", {"right": float(right)}, ends=True, success=right)


def trainer(folder: Path, env: Any = Sums, **settings: Any) -> GRPOTrainer:
    config = GRPOConfig(output_dir=str(folder), **{**SETTINGS, "task_sampling": "thompson", **settings})
    return GRPOTrainer(guess_policy(0, hidden=16), env, config)


def test_a_resumed_run_draws_the_tasks_that_it_would_have(tmp_path: Path) -> None:
    drawn = []
    for name in ("whole", "parts"):
        made = trainer(tmp_path / name, keep_going=True)
        steps = []
        for step in range(3):
            if name == "parts" and step == 2:
                saved = made.save_checkpoint(tmp_path / "saved")
                made.close()
                made = trainer(tmp_path / "resumed", keep_going=True)
                made.load_checkpoint(saved)
            groups = made.collect_episodes()
            steps.append([group.task_id for group in groups])
            made.update_policy(groups)
        made.close()
        drawn.append(steps)
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0][0])) == SETTINGS["groups_per_step"]


def test_what_cannot_be_sampled_so_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task_sampling chooses between tasks, GuessEnv has 0"):
        trainer(tmp_path, GuessEnv)
    with pytest.raises(ConfigError, match=r"max_staleness is 1, so tasks are announced"):
        GRPOConfig(task_sampling="thompson", max_staleness=1, importance_sampling_correction=True)
    sampler = TaskSampler(TASKS)
    unknown = Group((replace(made_episode(0, 0.0, []), task_id="1-1", success=None),))
    with pytest.raises(ConfigError, match="goes by success"):
        sampler.observe([unknown])
