"""ART's sampler as TRL's ``rollout_func``: starts, tokens, budget, settings, errors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import gymnasium as gym
import pytest

from art_trainer.errors import ConfigError
from art_trainer.inference.sampling import SamplingParams
from art_trainer.trl import GymRollout, env_reward, task_dataset
from art_trainer.trl.rollout_func import _sampling_of
from tests.art_trainer.trl.trl_runs import QUIET, SAY_ID, logged, trainer, word_tokenizer

pytest.importorskip("trl", reason="TRL is not installed")

pytestmark = QUIET


class Seen(GymRollout):
    """Keeps what it gave TRL."""

    def __call__(self, prompts: Any, trainer: Any) -> dict[str, list[Any]]:
        self.asked, self.given = list(prompts), super().__call__(prompts, trainer)
        self.all = [*getattr(self, "all", []), self.given]
        return dict(self.given)


def train(folder: Path, rows: Any, *, reward_funcs: Any = env_reward, **args: Any) -> tuple[Any, Seen]:
    rollout = Seen(rows)
    made = trainer(folder, word_tokenizer(), rows, rollout_func=rollout, reward_funcs=reward_funcs, args=args)
    made.train()
    return made, rollout


def test_members_start_alike_and_play_what_is_played_outside(tmp_path: Path) -> None:
    rows, tokenizer = task_dataset(SAY_ID, size=8), word_tokenizer()
    received: dict[str, Any] = {}

    def reward(env_reward: Any, **columns: Any) -> Any:
        received.update(columns)
        return env_reward

    _, rollout = train(tmp_path, rows, reward_funcs=reward)
    given, episodes = rollout.given, rollout.given["episode"]
    # Equal prompts do not mean equal seeds: each episode has the seed and task of its own row.
    assert [e.seed for e in episodes] == received["seed"]
    assert [e.task_id for e in episodes] == received["task"]
    for group in (episodes[:4], episodes[4:]):
        assert len({(e.observation, e.seed, e.task_id) for e in group}) == 1
    assert len({tuple(t.reply for t in e.turns) for e in episodes}) > 2
    for episode, paid in zip(episodes, given["env_reward"], strict=True):
        outside = gym.make(SAY_ID)
        observation, _ = outside.reset(seed=episode.seed, options={"task": episode.task_id})
        assert observation == episode.observation
        outcomes = [outside.step(turn.reply)[:2] for turn in episode.turns]
        assert outcomes == [(turn.observation, turn.reward) for turn in episode.turns]
        assert paid == sum(float(reward) for _, reward in outcomes)
    # Tokens, masks and log-probs belong together.
    for row, prompt in enumerate(rollout.asked):
        asked = [{"role": "user", "content": prompt[-1]["content"]}]
        written = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
        assert given["prompt_ids"][row] == written
        mask, logprobs = given["env_mask"][row], given["logprobs"][row]
        assert len(mask) == len(logprobs) == len(given["completion_ids"][row])
        assert all((logprob < 0) == bool(sampled) for logprob, sampled in zip(logprobs, mask, strict=True))
        assert sum(mask) == episodes[row].sampled_tokens


def test_the_same_seed_samples_the_same_and_each_step_anew(tmp_path: Path) -> None:
    rows = task_dataset(SAY_ID, size=2)
    args = {"max_steps": 2, "learning_rate": 1e-9, "num_train_epochs": 9}
    runs = [train(tmp_path, rows, **args)[1] for _ in range(2)]
    first, again = ([given["completion_ids"] for given in run.all] for run in runs)
    assert first == again
    assert len(first) == 2
    assert first[0] != first[1]


def test_an_episode_ends_with_trls_budget_and_no_row_is_longer(tmp_path: Path) -> None:
    rows = task_dataset(SAY_ID, size=8, env_args={"max_turns": 50})
    for budget in (3, 60):
        _, rollout = train(tmp_path, rows, max_completion_length=budget)
        lengths = [len(ids) for ids in rollout.given["completion_ids"]]
        assert budget - 30 < max(lengths) <= budget
        assert "context_full" in {str(e.ending) for e in rollout.given["episode"]}
        assert all(e.sampled_tokens <= budget + 3 for e in rollout.given["episode"])
        for name in ("logprobs", "env_mask"):
            assert [len(values) for values in rollout.given[name]] == lengths


def test_an_episode_whose_environment_fails_is_left_out_and_training_continues(tmp_path: Path) -> None:
    rows = task_dataset(SAY_ID, size=8, env_args={"fault": "red", "invalid_action_penalty": 0.0})
    made, rollout = train(tmp_path, rows, max_steps=3, generation_kwargs={"max_new_tokens": 1})
    failed = [e.failed for given in rollout.all for e in given["episode"]]
    assert True in failed
    assert False in failed
    for given in rollout.all:
        assert [r is None for r in given["env_reward"]] == [e.failed for e in given["episode"]]
    assert all(reward == reward for reward in logged(made, "reward"))


def test_an_environment_that_never_begins_leaves_a_token_that_is_not_trained_on(tmp_path: Path) -> None:
    rows = task_dataset(SAY_ID, size=3, env_args={"fault": "begin"})
    made, rollout = train(tmp_path, rows, max_steps=4)
    lost = [row for row, e in enumerate(rollout.given["episode"]) if not e.turns]
    assert lost
    assert all(rollout.given["env_mask"][row] == [0] for row in lost)
    assert len(logged(made, "loss")) == 4


def test_sampling_follows_the_trainers_settings() -> None:
    settings = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1}
    override = {"max_new_tokens": 3, "top_k": 4, "stop_strings": "red"}
    found = _sampling_of(SimpleNamespace(**settings, max_completion_length=48, generation_kwargs=override))
    assert found == SamplingParams(**{**settings, **override, "stop_strings": ("red",)})
    greedy = SimpleNamespace(max_completion_length=48, generation_kwargs={"do_sample": False})
    assert _sampling_of(greedy) == SamplingParams(temperature=0.0, max_new_tokens=48)
    with pytest.raises(ConfigError, match="knows no generation_kwargs"):
        _sampling_of(SimpleNamespace(max_completion_length=48, generation_kwargs={"temprature": 1}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": None}, "no seed and task under"),
        ({"content": "green"}, "leave the prompts as task_dataset made them"),
        ({}, "draws all its randomness from np_random"),
    ],
)
def test_rows_that_were_changed_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    rows = task_dataset(SAY_ID, size=4, env_args={"drift": not changes})
    rows = rows.map(lambda row: {"prompt": [*row["prompt"][:-1], row["prompt"][-1] | changes]})
    with pytest.raises(ConfigError, match=message):
        train(tmp_path, rows)


def test_settings_that_are_not_supported_are_refused() -> None:
    trainer = Mock(is_fsdp_enabled=True)
    trainer.args = SimpleNamespace(
        use_vllm=True, chat_template_kwargs={"a": 1}, max_completion_length=8, generation_kwargs=None
    )
    trainer.processing_class.chat_template = None
    rollout = GymRollout(task_dataset(SAY_ID, size=1))

    def refused(message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            rollout([], trainer)

    refused("has no chat template")
    trainer.processing_class.chat_template = "{{ messages }}"
    refused("set use_vllm=False")
    trainer.args.use_vllm = False
    refused("cannot pass chat_template_kwargs")
    trainer.args.chat_template_kwargs = None
    refused("needs the whole model")


def test_a_template_that_rewrites_the_past_is_refused(tmp_path: Path) -> None:
    rows = task_dataset(SAY_ID, size=4)
    tokenizer = word_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace("m['content'] + '<end>'", "'over<end>'")
    made = trainer(tmp_path, tokenizer, rows, rollout_func=GymRollout(rows), reward_funcs=env_reward)
    with pytest.raises((ConfigError, ValueError), match="chat template"):
        made.train()


def test_datasets_of_several_environments_are_refused_and_several_of_one_are_not() -> None:
    rows = task_dataset(SAY_ID, size=2)
    GymRollout(rows, task_dataset(SAY_ID, size=2, seed=1))
    with pytest.raises(ConfigError, match="of one environment"):
        GymRollout(rows, task_dataset(SAY_ID, size=1, env_args={"max_turns": 3}))
    with pytest.raises(ConfigError, match="no column `env`"):
        GymRollout(rows.remove_columns("env"))
