"""PPO: the learner with a critic."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from art_trainer.advantages import rewards_to_go
from art_trainer.checkpoint import list_checkpoints, read_checkpoint, write_checkpoint
from art_trainer.config import GRPOConfig
from art_trainer.critic import turn_starts
from art_trainer.episodes import Group, Span, TokenHistory
from art_trainer.errors import CheckpointError, ConfigError, UnsupportedModelError
from art_trainer.estimators import estimate
from art_trainer.learner import Learner
from art_trainer.losses import policy_loss
from art_trainer.trainer import GRPOTrainer
from art_trainer.value_head import value_loss
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.made_episodes import made_episode, made_groups, made_history
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_model
from tests.art_trainer.updates import config, weights_of, with_logprobs, with_rewards

peft = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def ppo(**settings: Any) -> GRPOConfig:
    return config(**{"advantage_estimator": "gae", "max_grad_norm": 0.0, **settings})


def ppo_learner(model: torch.nn.Module, **settings: Any) -> Learner:
    """A learner whose head is not zero any more."""
    learner = Learner(model, ppo(**settings))
    assert learner.critic is not None
    learner.critic.head.observe(np.array([0.0, 0.5, 1.0]))
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        learner.critic.head.weight.copy_(0.1 * torch.randn(48, generator=generator))
    return learner


def read_plainly(learner: Learner, model: torch.nn.Module, history: TokenHistory) -> torch.Tensor:
    """The head's values where each turn's first token is predicted, by a forward over the whole history."""
    assert learner.critic is not None
    ids = torch.tensor([history.token_ids])
    hidden = model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
    turns = [None if span.turn is None else span.turn for span in history.spans for _ in span.token_ids]
    places = [i for i, turn in enumerate(turns) if turn is not None and turns[i - 1] != turn]
    return learner.critic.head(hidden[torch.tensor(places) - 1])  # type: ignore[no-any-return]


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "deepseek-v3", "mistral-sliding"])
def test_a_value_is_read_where_the_turns_first_token_is_predicted(family: str) -> None:
    model = tiny_model(family)
    groups = made_groups(model, groups=2)
    learner = ppo_learner(model)
    assert learner.critic is not None
    valuation = learner._assess(groups)
    assert valuation is not None
    for group, found in zip(groups, valuation.values, strict=True):
        for episode, values_T in zip(group.episodes, found, strict=True):
            wanted = read_plainly(learner, model, episode.histories[0]).detach().double().numpy()
            assert values_T == pytest.approx(learner.critic.head.unscaled(wanted), abs=1e-5)


def test_what_a_value_should_be_is_the_lambda_return() -> None:
    groups = made_groups(tiny_model())
    one_step = ppo_learner(tiny_model(), gamma=0.9, lam=0.0)._assess(groups)
    whole = ppo_learner(tiny_model(), gamma=0.9, lam=1.0)._assess(groups)
    assert one_step is not None
    assert whole is not None
    for i, group in enumerate(groups):
        for j, episode in enumerate(group.episodes):
            rewards = [turn.reward for turn in episode.turns]
            after = np.append(one_step.values[i][j][1:], 0.0)
            assert one_step.returns[i][j] == pytest.approx(np.array(rewards) + 0.9 * after)
            assert whole.returns[i][j] == pytest.approx(rewards_to_go(rewards, 0.9))


def textbook_gradients(
    learner: Learner, groups: Sequence[Group], advantages: Any, returns: Any, values: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's and the head's gradient, an episode at a time without packing."""
    settings, critic = learner.config, learner.critic
    assert critic is not None
    model = copy.deepcopy(learner.model)
    head = copy.deepcopy(critic.head)
    episodes = [episode for group in groups for episode in group.episodes]
    tokens = sum(episode.sampled_tokens for episode in episodes)
    turns = sum(len(episode.turns) for episode in episodes)
    flat = [[x for group in numbers for x in group] for numbers in (advantages, returns, values)]
    policy, value = torch.zeros(()), torch.zeros(())
    for episode, advantages_T, returns_T, values_T in zip(episodes, *flat, strict=True):
        history = episode.histories[0]
        ids, mask = torch.tensor([history.token_ids]), torch.tensor(history.action_mask)
        out = model(input_ids=ids, output_hidden_states=True)
        logprobs = out.logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[None, :, 0]
        old = torch.zeros(1, len(mask))
        old[0, mask] = torch.tensor(history.logprobs)
        per_token = torch.zeros(1, len(mask))
        per_token[0, mask] = torch.tensor(advantages_T[list(history.turns)], dtype=torch.float32)
        own = policy_loss(logprobs, old[:, 1:], per_token[:, 1:], mask[None, 1:], loss_type="dapo")
        policy = policy + own * episode.sampled_tokens / tokens
        places = torch.tensor(list(turn_starts(history).values())) - 1
        said = head(out.hidden_states[-1][0, places])
        scaled = (torch.tensor(head.scaled(x), dtype=torch.float32) for x in (values_T, returns_T))
        value = value + value_loss(said, *scaled, settings.cliprange_value)[0].sum() / turns
    weights = [p for p in model.parameters() if p.requires_grad]
    of_policy = torch.autograd.grad(policy, weights, retain_graph=True)
    of_value = torch.autograd.grad(value, weights, retain_graph=True, allow_unused=True)
    of_head = torch.autograd.grad(value, [head.weight])[0]
    both = [
        a + settings.vf_coef * (torch.zeros_like(a) if b is None else b)
        for a, b in zip(of_policy, of_value, strict=True)
    ]
    return torch.cat([g.flatten() for g in both]), of_head


def caught(learner: Learner, groups: Sequence[Group]) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients an update gives the model's and the head's optimizers."""
    assert learner.critic is not None
    head = learner.critic.head
    found: list[torch.Tensor] = []

    def catch_model(*call: object) -> None:
        grads = [p.grad for p in learner.model.parameters() if p.grad is not None]
        found.append(torch.cat([g.flatten() for g in grads]))

    def catch_head(*call: object) -> None:
        assert head.weight.grad is not None
        found.append(head.weight.grad.clone())

    handles = [
        learner.optimizer.register_step_pre_hook(catch_model),
        learner.critic.optimizer.register_step_pre_hook(catch_head),
    ]
    learner.update(groups)
    for handle in handles:
        handle.remove()
    of_model, of_head = found
    return of_model, of_head


@pytest.mark.parametrize("vf_coef", [0.0, 0.7])
def test_the_update_has_the_textbook_gradient(vf_coef: float) -> None:
    model = tiny_model()
    groups = [with_logprobs(g, d) for g, d in zip(made_groups(model), (0.4, -0.4, 0.05), strict=True)]
    learner = ppo_learner(model, vf_coef=vf_coef, gamma=0.9, lam=0.8, epsilon_high=0.28)
    twin = ppo_learner(model, vf_coef=vf_coef, gamma=0.9, lam=0.8, epsilon_high=0.28)
    valuation = twin._assess(groups)
    assert valuation is not None
    advantages = estimate(groups, learner.config, valuation.values)
    wanted = textbook_gradients(twin, groups, advantages, valuation.returns, valuation.values)
    found = caught(learner, groups)
    for ours, theirs in zip(found, wanted, strict=True):
        assert theirs.norm() > 1e-3
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.parametrize("how", [{"share_prefixes": False}, {"tokens_per_microbatch": 120}])
def test_how_a_batch_is_computed_changes_no_gradient(how: dict[str, Any]) -> None:
    groups = made_groups(tiny_model())
    wanted = caught(ppo_learner(tiny_model()), groups)
    found = caught(ppo_learner(tiny_model(), **how), groups)
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


def test_a_model_whose_logits_are_not_its_head_alone_has_the_same_gradient() -> None:
    groups = made_groups(tiny_model())
    wanted = caught(ppo_learner(tiny_model()), groups)
    learner = ppo_learner(tiny_model())
    learner._scorer._splits_head = learner._scorer.prunes = False
    for ours, theirs in zip(caught(learner, groups), wanted, strict=True):
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


def test_a_model_without_a_decoder_of_its_own_is_refused() -> None:
    learner = ppo_learner(tiny_model())
    learner._scorer._has_decoder = False
    with pytest.raises(UnsupportedModelError, match="does not part decoder and head"):
        learner.update(made_groups(tiny_model()))


def test_the_critic_learns_what_comes() -> None:
    model = tiny_model()
    groups = made_groups(model)
    learner = Learner(model, ppo(learning_rate=0.0, value_learning_rate=0.05, lam=1.0, cliprange_value=None))
    before = weights_of(model)
    metrics = [learner.update(groups) for _ in range(40)]
    assert metrics[0]["explained_variance"] == pytest.approx(0, abs=1e-9)
    rewards = [rewards_to_go([t.reward for t in e.turns]) for g in groups for e in g.episodes]
    assert metrics[0]["value"] == pytest.approx(np.concatenate(rewards).mean())
    assert metrics[-1]["explained_variance"] > 0.6
    assert metrics[-1]["value_loss"] < metrics[0]["value_loss"] / 2
    assert torch.equal(weights_of(model), before)


def test_the_clip_holds_values_back_between_passes() -> None:
    settings = {"learning_rate": 0.0, "value_learning_rate": 0.1, "num_iterations": 4}
    groups = made_groups(tiny_model())
    held = Learner(tiny_model(), ppo(cliprange_value=0.01, **settings)).update(groups)
    free = Learner(tiny_model(), ppo(cliprange_value=None, **settings)).update(groups)
    assert held["value_clip_ratio"] > 0.1
    assert free["value_clip_ratio"] == 0


def test_attempts_alone_teach_and_so_do_equal_rewards() -> None:
    model = tiny_model()
    groups = [with_rewards(group, [float(i)]) for i, group in enumerate(made_groups(model, size=1))]
    metrics = Learner(model, ppo(num_generations=1)).update(groups)
    assert metrics["trained_tokens"] == sum(e.sampled_tokens for g in groups for e in g.episodes)
    assert metrics["grad_norm"] > 0


def test_a_loss_that_is_not_a_number_changes_neither_policy_nor_head() -> None:
    model = tiny_model()
    learner = ppo_learner(model)
    assert learner.critic is not None
    groups = made_groups(model)
    learner.update(groups)
    weights, head = weights_of(model), copy.deepcopy(learner.critic.tensors())
    metrics = learner.update([with_logprobs(group, float("nan")) for group in groups])
    assert metrics["skipped_updates"] == 1
    assert torch.equal(weights_of(model), weights)
    assert learner.critic.head.weight.grad is None
    after = learner.critic.tensors()
    scaled = {"head/mean", "head/square", "head/batches", "head/weight", "head/bias"}
    assert all(torch.equal(after[name], head[name]) for name in head.keys() - scaled)


def test_turns_without_tokens_are_bridged_and_histories_read_apart() -> None:
    model = tiny_model()
    rng = np.random.default_rng(0)
    first = made_history(model, [1, 2, 3], 2, rng)
    spans = [replace(s, turn=None if s.turn is None else s.turn + 3) for s in first.spans]
    episode = made_episode(0, 1.0, [first, TokenHistory(tuple(spans))])
    assert len(episode.turns) == 5  # turn 2 is in neither history
    learner = ppo_learner(model, lam=1.0)
    valuation = learner._assess([Group((episode,))])
    assert valuation is not None
    values, returns = valuation.values[0][0], valuation.returns[0][0]
    assert values[3] == pytest.approx(values[0], abs=1e-6)  # the same tokens
    assert values[2] == values[3]
    assert returns == pytest.approx(np.ones(5))
    silent = made_episode(0, 0.25, [TokenHistory((Span((1, 2, 3)),))])
    assert learner.update([Group((episode, silent))])["trained_tokens"] == episode.sampled_tokens


def test_a_turn_starts_at_its_first_token_that_something_predicts() -> None:
    said = Span((5, 6), 0, (-1.0, -1.0))
    read, later = Span((7,)), Span((8, 9), 2, (-1.0, -1.0))
    assert turn_starts(TokenHistory((said, read, later))) == {0: 1, 2: 3}
    lone = Span((5,), 0, (-1.0,))
    assert turn_starts(TokenHistory((lone, read, later))) == {2: 2}


def test_a_batch_of_nothing_but_failures_is_survived() -> None:
    learner = ppo_learner(tiny_model())
    assert learner.update([])["value"] == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scale_rewards": "group"}, "compares with a value head and not"),
        ({"dynamic_sampling": True}, "a group of equal rewards teaches too: switch it off"),
        ({"lam": 1.5}, "lam is 1.5: set between 0 and 1"),
        ({"vf_coef": -0.1}, "vf_coef is -0.1: set a finite number, 0 or more"),
        ({"cliprange_value": 0.0}, "above 0, or null for no bound"),
        ({"advantage_estimator": "group", "lam": 1.0}, "'group' has no value head: set it to 'gae', or lam"),
        ({"advantage_estimator": "group", "value_learning_rate": 0.1}, "or value_learning_rate to None"),
        ({"advantage_estimator": "group", "num_generations": 1}, "'gae', whose baseline is a value head"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GRPOConfig(**{"advantage_estimator": "gae", **settings})


@peft
def test_beside_an_adapter_the_head_is_trained_whole_and_kept(tmp_path: Path) -> None:
    def adapted() -> Learner:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
        return Learner(model, ppo(learning_rate=1e-2))

    first, second = adapted(), adapted()
    groups = [made_groups(tiny_model(), seed=n) for n in range(3)]
    for batch in groups[:2]:
        first.update(batch)
    assert first.critic is not None
    assert bool((first.critic.head.weight != 0).all())
    parts = {"tokenizer": byte_tokenizer(), "state": {"learner": first.state()}}
    write_checkpoint(
        tmp_path / "saved", model=first.model, optimizer=first.optimizer, critic=first.critic, **parts
    )
    wanted = {**first.update(groups[2]), "time/update": 0.0}
    state = read_checkpoint(
        tmp_path / "saved", model=second.model, optimizer=second.optimizer, critic=second.critic
    )
    second.restore(state["learner"])
    assert {**second.update(groups[2]), "time/update": 0.0} == wanted


@pytest.mark.parametrize("saved_with_head", [True, False])
def test_a_checkpoint_of_a_run_with_another_estimator_is_refused(
    saved_with_head: bool, tmp_path: Path
) -> None:
    with_head, without = Learner(tiny_model(), ppo()), Learner(tiny_model(seed=1), config())
    saved, other = (with_head, without) if saved_with_head else (without, with_head)
    write_checkpoint(
        tmp_path / "saved", model=saved.model, tokenizer=byte_tokenizer(), optimizer=saved.optimizer,
        critic=saved.critic, state={},
    )  # fmt: skip
    before = weights_of(other.model)
    words = f"written with{'' if saved_with_head else 'out'} a value head: set advantage_estimator"
    with pytest.raises(CheckpointError, match=words):
        read_checkpoint(tmp_path / "saved", model=other.model, optimizer=other.optimizer, critic=other.critic)
    assert torch.equal(weights_of(other.model), before)


def trainer(folder: Path, **settings: Any) -> GRPOTrainer:
    given: dict[str, Any] = {
        "learning_rate": 2e-3,
        "value_learning_rate": 1e-2,
        "advantage_estimator": "gae",
        "num_generations": 1,
        "groups_per_step": 16,
        "max_completion_length": 1,
        "max_steps": 4,
        "output_dir": str(folder),
        **settings,
    }
    return GRPOTrainer(guess_policy(), GuessEnv, GRPOConfig(**given))


def test_a_resumed_run_is_the_one_that_was_never_stopped(tmp_path: Path) -> None:
    def numbers(folder: Path) -> list[dict[str, float]]:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [
            {k: v for k, v in line.items() if "time" not in k and "per_second" not in k} for line in lines
        ]

    whole = trainer(tmp_path / "whole", num_iterations=2)
    whole.train()
    half = trainer(tmp_path / "half", num_iterations=2, save_steps=2)
    half.train()
    rest = trainer(tmp_path / "rest", num_iterations=2)
    rest.load_checkpoint(list_checkpoints(tmp_path / "half" / "checkpoints")[0])
    assert rest.step == 2
    rest.train()
    assert numbers(tmp_path / "rest") == numbers(tmp_path / "whole")[2:]
    assert torch.equal(weights_of(rest.policy.model), weights_of(whole.policy.model))
    assert rest.learner.critic is not None
    assert whole.learner.critic is not None
    ours, theirs = rest.learner.critic.tensors(), whole.learner.critic.tensors()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for one in (whole, half, rest):
        one.close()


def test_ppo_learns_to_guess(tmp_path: Path) -> None:
    learner = trainer(
        tmp_path, groups_per_step=64, num_iterations=2, steps_per_generation=2, lr_final_ratio=0.1,
        max_steps=16,
    )  # fmt: skip
    rewards, explained = [], []
    while learner.step < learner.config.max_steps:
        metrics = learner.update_policy(learner.collect_episodes())
        rewards.append(metrics["reward"])
        explained.append(metrics["explained_variance"])
    learner.close()
    assert np.mean(rewards[:2]) < 0.2
    assert np.mean(rewards[-3:]) > np.mean(rewards[:2]) + 0.15
    assert np.mean(explained[-5:]) > 0.02
