"""A dataset of tasks for TRL: its columns, and that it says where each episode starts."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import pytest

import art_gym  # noqa: F401 (registers the environments)
from art_gym.errors import UnknownTaskError
from art_trainer.errors import ConfigError
from art_trainer.trl import task_dataset
from tests.art_trainer.trl.trl_runs import SAY_ID, WORDS


def test_every_row_has_all_columns_and_the_first_observation() -> None:
    rows = task_dataset("art/2048-v0", size=3, env_args={"max_turns": 7}, free_text=True)
    assert rows.column_names == ["prompt", "seed", "task", "env"]
    for row in rows:
        assert json.loads(row["env"]) == {"id": "art/2048-v0", "args": {"max_turns": 7}}
        observation, _ = gym.make("art/2048-v0", max_turns=7).reset(seed=row["seed"])
        assert [message["role"] for message in row["prompt"]] == ["system", "user"]
        assert "\n\n".join(message["content"] for message in row["prompt"]) == observation
    assert len(set(rows["seed"])) == 3


def test_the_list_of_tools_is_left_to_the_chat_template() -> None:
    system = task_dataset("art/Email-v0", size=1)[0]["prompt"][0]["content"]
    listed = task_dataset("art/Email-v0", size=1, free_text=True)[0]["prompt"][0]["content"]
    assert listed.startswith(system)
    assert "- search(" not in system
    assert "- search(" in listed.removeprefix(system)


def test_tasks_come_once_each_and_then_again_with_other_seeds() -> None:
    rows = task_dataset(SAY_ID, size=9)
    assert [row["task"] for row in rows] == [f"train-{WORDS[k % 4]}" for k in range(9)]
    assert len(set(rows["seed"])) == 9
    assert len(task_dataset(SAY_ID)) == 4


def test_the_seed_decides_the_rows() -> None:
    assert task_dataset(SAY_ID, seed=1).to_list() == task_dataset(SAY_ID, seed=1).to_list()
    assert task_dataset(SAY_ID, seed=1)["seed"] != task_dataset(SAY_ID, seed=2)["seed"]


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"size": 0}, ValueError, "at least one row"),
        ({"split": "trian"}, UnknownTaskError, "did you mean `train`"),
        ({"env_args": {"fault": object()}}, ConfigError, "as JSON, but cannot be"),
        ({"env": "art/2048Duel-v0"}, ConfigError, "a game with several seats"),
        ({"env": "CartPole-v1"}, ConfigError, "is not a text environment: its observations are Box"),
        ({"env": "art/2048-v0", "env_args": {"max_turn": 3}}, ConfigError, "did you mean `max_turns`"),
    ],
)
def test_wrong_use_gets_an_error_message(wrong: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        task_dataset(**{"env": SAY_ID} | wrong)
