"""Our sampler as TRL's ``rollout_func``: starts, tokens, budget, settings, and words for wrong use."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest

from art_trainer.errors import ConfigError
from art_trainer.trl import GymRollout, env_reward, environment_factory, task_dataset
from tests.art_trainer.trl.trl_runs import QUIET, SAY_ID, logged, trainer, word_tokenizer

trl = pytest.importorskip("trl", reason="TRL is not installed")

pytestmark = QUIET


class Seen(GymRollout):
    """Keeps what it gave TRL."""

    def __call__(self, prompts: Any, trainer: Any) -> dict[str, list[Any]]:
        self.asked, self.given = list(prompts), super().__call__(prompts, trainer)
        self.all = [*getattr(self, "all", []), self.given]
        return dict(self.given)


def train(folder: Path, rows: Any, **changes: Any) -> tuple[Any, Seen]:
    rollout = Seen(rows)
    how = {"reward_funcs": env_reward} | {k: v for k, v in changes.items() if k != "args"}
    made = trainer(folder, word_tokenizer(), rows, rollout_func=rollout, args=changes.get("args", {}), **how)
    made.train()
    return made, rollout


def test_members_start_alike_and_play_what_is_played_outside(tmp_path: Path) -> None:
    rows = task_dataset(SAY_ID, size=8)
    received: dict[str, Any] = {}

    def reward(env_reward: Any, **columns: Any) -> Any:
        received.update(columns)
        return env_reward

    _, rollout = train(tmp_path, rows, reward_funcs=reward)
    episodes = rollout.given["episode"]
    # Equal prompts do not mean equal seeds: each episode has the seed and task of its own row.
    assert [e.seed for e in episodes] == received["seed"]
    assert [e.task_id for e in episodes] == received["task"]
    for group in (episodes[:4], episodes[4:]):
        assert len({(e.observation, e.seed, e.task_id) for e in group}) == 1
    assert len({tuple(t.reply for t in e.turns) for e in episodes}) > 2
    for episode, paid in zip(episodes, rollout.given["env_reward"], strict=True):
        outside = gym.make(SAY_ID)
        observation, _ = outside.reset(seed=episode.seed, options={"task": episode.task_id})
        assert observation == episode.observation
        outcomes = [outside.step(turn.reply)[:2] for turn in episode.turns]
        assert outcomes == [(turn.observation, turn.reward) for turn in episode.turns]
        assert paid == sum(float(reward) for _, reward in outcomes)


def test_tokens_masks_and_logprobs_belong_together(tmp_path: Path) -> None:
    _, rollout = train(tmp_path, task_dataset(SAY_ID, size=8))
    given, tokenizer = rollout.given, word_tokenizer()
    for row, prompt in enumerate(rollout.asked):
        written = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt[-1]["content"]}],
            add_generation_prompt=True,
            return_dict=False,
        )
        assert given["prompt_ids"][row] == written
        mask, logprobs = given["env_mask"][row], given["logprobs"][row]
        assert len(mask) == len(logprobs) == len(given["completion_ids"][row])
        assert all((logprob < 0) == bool(sampled) for logprob, sampled in zip(logprobs, mask, strict=True))
        assert sum(mask) == given["episode"][row].sampled_tokens


def test_the_same_seed_samples_the_same_and_each_step_anew(tmp_path: Path) -> None:
    rows = task_dataset(SAY_ID, size=2)
    runs = [
        train(tmp_path, rows, args={"max_steps": 2, "learning_rate": 1e-9, "num_train_epochs": 9})[1]
        for _ in range(2)
    ]
    first, again = ([given["completion_ids"] for given in run.all] for run in runs)
    assert first == again
    assert len(first) == 2
    assert first[0] != first[1]


def test_an_episode_ends_with_trls_budget_and_no_row_is_longer(tmp_path: Path) -> None:
    rows = task_dataset(SAY_ID, size=8, env_args={"max_turns": 50})
    for budget in (3, 60):
        _, rollout = train(tmp_path, rows, args={"max_completion_length": budget})
        lengths = [len(ids) for ids in rollout.given["completion_ids"]]
        assert budget - 30 < max(lengths) <= budget
        assert "context_full" in {str(e.ending) for e in rollout.given["episode"]}
        assert all(e.sampled_tokens <= budget + 3 for e in rollout.given["episode"])
        for name in ("logprobs", "env_mask"):
            assert [len(values) for values in rollout.given[name]] == lengths


def test_a_fault_of_the_environment_is_left_out_and_training_goes_on(tmp_path: Path) -> None:
    rows = task_dataset(SAY_ID, size=8, env_args={"fault": "red", "invalid_action_penalty": 0.0})
    made, rollout = train(tmp_path, rows, args={"max_steps": 3, "generation_kwargs": {"max_new_tokens": 1}})
    failed = [e.failed for given in rollout.all for e in given["episode"]]
    assert True in failed
    assert False in failed
    for given in rollout.all:
        assert [r is None for r in given["env_reward"]] == [e.failed for e in given["episode"]]
    assert all(reward == reward for reward in logged(made, "reward"))


def test_where_the_environment_never_begins_there_is_a_token_not_trained_on(tmp_path: Path) -> None:
    rows = task_dataset(SAY_ID, size=3, env_args={"fault": "begin"})
    made, rollout = train(tmp_path, rows, args={"max_steps": 4})
    lost = [row for row, e in enumerate(rollout.given["episode"]) if not e.turns]
    assert lost
    assert all(rollout.given["env_mask"][row] == [0] for row in lost)
    assert len(logged(made, "loss")) == 4


def test_sampling_follows_the_trainers_settings(tmp_path: Path) -> None:
    asked = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "generation_kwargs": {"max_new_tokens": 3, "top_k": 4, "stop_strings": "red"},
    }
    _, rollout = train(tmp_path, task_dataset(SAY_ID, size=4), args=asked)
    assert rollout._policy is not None
    sampling = rollout._policy.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.7, 0.9, 4, 0.01)
    assert (sampling.repetition_penalty, sampling.max_new_tokens, sampling.stop_strings) == (1.1, 3, ("red",))


def test_greedy_is_asked_for_by_do_sample(tmp_path: Path) -> None:
    _, rollout = train(
        tmp_path, task_dataset(SAY_ID, size=4), args={"generation_kwargs": {"do_sample": False}}
    )
    assert rollout._policy is not None
    assert rollout._policy.sampling.greedy
    assert rollout._policy.sampling.max_new_tokens == 48
    assert len({tuple(ids) for ids in rollout.given["completion_ids"][:4]}) == 1


def _map_prompt(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"prompt": [*row["prompt"][:-1], row["prompt"][-1] | changes]}


@pytest.mark.parametrize(
    ("env_args", "changes", "args", "words"),
    [
        ({}, {"start": None}, {}, "does not say what the environment is reset with"),
        ({}, {"content": "green"}, {}, "leave the prompts as task_dataset made them"),
        ({"drift": True}, {}, {}, "draws all its chance from np_random"),
        ({}, {}, {"generation_kwargs": {"num_beam": 2, "temprature": 1}}, "knows no generation_kwargs"),
        ({}, {}, {"chat_template_kwargs": {"enable_thinking": False}}, "cannot hand chat_template_kwargs"),
    ],
)
def test_wrong_use_gets_words(
    tmp_path: Path, env_args: dict[str, Any], changes: dict[str, Any], args: dict[str, Any], words: str
) -> None:
    rows = task_dataset(SAY_ID, size=4, env_args=env_args)
    if changes:
        rows = rows.map(_map_prompt, fn_kwargs=changes)
    with pytest.raises(ConfigError, match=words):
        train(tmp_path, rows, args=args)


def test_a_tokenizer_without_a_chat_template_and_vllm_get_words() -> None:
    rollout = GymRollout(task_dataset(SAY_ID, size=1))
    config = {"max_completion_length": 8, "generation_kwargs": None, "chat_template_kwargs": None}
    fake = SimpleNamespace(
        model=None,
        processing_class=SimpleNamespace(chat_template=None),
        args=SimpleNamespace(use_vllm=True, **config),
        accelerator=SimpleNamespace(unwrap_model=lambda model: object(), state=SimpleNamespace()),
    )
    with pytest.raises(ConfigError, match="has no chat template"):
        rollout([], fake)
    fake.processing_class.chat_template = "{{ messages }}"
    with pytest.raises(ConfigError, match="set use_vllm=False"):
        rollout([], fake)
    fake.args.use_vllm, fake.is_fsdp_enabled = False, True
    with pytest.raises(ConfigError, match="needs the whole model"):
        rollout([], fake)


def test_a_template_that_rewrites_the_past_gets_words(tmp_path: Path) -> None:
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


def test_a_trl_without_the_hook_and_no_trl_get_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        def __init__(self, model: Any, reward_funcs: Any) -> None: ...

    rows = task_dataset(SAY_ID, size=1)
    with monkeypatch.context() as patch:
        patch.setattr(trl, "GRPOTrainer", Old)
        with pytest.raises(ConfigError, match=r"takes no rollout_func: pip install --upgrade \"trl>="):
            GymRollout(rows)
        with pytest.raises(ConfigError, match="takes no environment_factory"):
            environment_factory(SAY_ID)
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install \"art-gym\[trl\]\""):
        GymRollout(rows)


def test_the_prompts_start_is_json() -> None:
    start = task_dataset(SAY_ID, size=1)[0]["prompt"][-1]["start"]
    assert sorted(json.loads(start)) == ["seed", "task"]
