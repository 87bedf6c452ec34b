"""PPO: the learner with a critic."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from art_trainer.algorithms.advantages import estimate, rewards_to_go
from art_trainer.config import GRPOConfig
from art_trainer.errors import UnsupportedModelError
from art_trainer.models.value_head import value_loss
from art_trainer.training.critic import Critic, turn_starts
from art_trainer.training.learner import Learner
from art_trainer.types import Group, Span, TokenHistory
from tests.art_trainer.made_episodes import made_episode, made_groups, made_history
from tests.art_trainer.tiny_models import tiny_model
from tests.art_trainer.updates import (
    config,
    gradients_of,
    padded_policy_loss,
    weights_of,
    with_logprobs,
    with_rewards,
)


def ppo(**settings: Any) -> GRPOConfig:
    return config(**{"advantage_estimator": "gae", "max_grad_norm": 0.0, **settings})


def ppo_learner(model: torch.nn.Module, **settings: Any) -> tuple[Learner, Critic]:
    """A learner and its critic, whose head is not zero any more."""
    learner = Learner(model, ppo(**settings))
    learner.critic.head.observe(np.array([0.0, 0.5, 1.0]))
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        learner.critic.head.weight.copy_(0.1 * torch.randn(48, generator=generator))
    return learner, learner.critic


def test_a_value_should_be_the_lambda_return() -> None:
    groups = made_groups(tiny_model())
    one_step, whole = (
        ppo_learner(tiny_model(), gamma=0.9, lam=lam)[0]._estimate_values(groups) for lam in (0.0, 1.0)
    )
    for i, group in enumerate(groups):
        for j, episode in enumerate(group.episodes):
            rewards = [turn.reward for turn in episode.turns]
            after = np.append(one_step.values[i][j][1:], 0.0)
            assert one_step.returns[i][j] == pytest.approx(np.array(rewards) + 0.9 * after)
            assert whole.returns[i][j] == pytest.approx(rewards_to_go(rewards, 0.9))


def textbook_gradients(learner: Learner, groups: list[Group]) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's and the head's gradient, an episode at a time without packing."""
    settings, estimates = learner.config, learner._estimate_values(groups)
    model, head = copy.deepcopy(learner.model), copy.deepcopy(learner.critic.head)
    advantages = estimate(groups, settings, estimates.values)
    episodes = [episode for group in groups for episode in group.episodes]
    tokens = sum(episode.sampled_tokens for episode in episodes)
    turns = sum(len(episode.turns) for episode in episodes)
    columns = (advantages, estimates.returns, estimates.values)
    flat = [[x for group in numbers for x in group] for numbers in columns]
    policy, value = torch.zeros(()), torch.zeros(())
    for episode, advantages_T, returns_T, values_T in zip(episodes, *flat, strict=True):
        history = episode.histories[0]
        ids, mask = torch.tensor([history.token_ids]), torch.tensor(history.action_mask)
        out = model(input_ids=ids, output_hidden_states=True)
        logprobs = out.logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[None, :, 0]
        old, per_token = torch.zeros(1, len(mask)), torch.zeros(1, len(mask))
        old[0, mask] = torch.tensor(history.logprobs)
        per_token[0, mask] = torch.tensor(advantages_T[list(history.turns)], dtype=torch.float32)
        own = padded_policy_loss(logprobs, old[:, 1:], per_token[:, 1:], mask[None, 1:], loss_type="dapo")
        policy = policy + own * episode.sampled_tokens / tokens
        places = torch.tensor(list(turn_starts(history).values())) - 1
        outputs = head(out.hidden_states[-1][0, places])
        scaled = (torch.tensor(head.scaled(x), dtype=torch.float32) for x in (values_T, returns_T))
        value = value + value_loss(outputs, *scaled, settings.cliprange_value)[0].sum() / turns
    weights = list(model.parameters())
    of_policy = torch.autograd.grad(policy, weights, retain_graph=True)
    of_value = torch.autograd.grad(
        value, weights, retain_graph=True, materialize_grads=True, allow_unused=True
    )
    both = [a + settings.vf_coef * b for a, b in zip(of_policy, of_value, strict=True)]
    return torch.cat([g.flatten() for g in both]), torch.autograd.grad(value, [head.weight])[0]


@pytest.mark.parametrize("vf_coef", [0.0, 0.7])
def test_the_update_has_the_textbook_gradient(vf_coef: float) -> None:
    model = tiny_model()
    # Shifted by more than the clip in both directions, so that clipping is part of the comparison.
    groups = [with_logprobs(g, d) for g, d in zip(made_groups(model), (0.4, -0.4, 0.05), strict=True)]
    settings = {"vf_coef": vf_coef, "gamma": 0.9, "lam": 0.8, "epsilon_high": 0.28}
    learner, critic = ppo_learner(model, **settings)
    wanted = textbook_gradients(ppo_learner(model, **settings)[0], groups)
    of_head: list[torch.Tensor] = []
    critic.optimizer.register_step_pre_hook(lambda *call: of_head.append(critic.head.weight.grad.clone()))  # type: ignore[union-attr]
    of_model, _ = gradients_of(learner, groups)
    for ours, theirs in zip([*of_model, *of_head], wanted, strict=True):
        assert theirs.norm() > 1e-3
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


def test_a_model_without_a_decoder_of_its_own_is_refused() -> None:
    learner, _ = ppo_learner(tiny_model())
    learner._scorer._has_decoder = False
    with pytest.raises(UnsupportedModelError, match="does not separate decoder and head"):
        learner.update(made_groups(tiny_model()))


def test_the_critic_learns_the_returns() -> None:
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


def test_attempts_alone_teach_and_so_do_equal_rewards() -> None:
    model = tiny_model()
    groups = [with_rewards(group, [float(i)]) for i, group in enumerate(made_groups(model, size=1))]
    metrics = Learner(model, ppo(num_generations=1)).update(groups)
    assert metrics["trained_tokens"] == sum(e.sampled_tokens for g in groups for e in g.episodes)
    assert metrics["grad_norm"] > 0


def test_a_loss_that_is_not_a_number_changes_neither_policy_nor_head() -> None:
    model = tiny_model()
    learner, critic = ppo_learner(model)
    groups = made_groups(model)
    learner.update(groups)
    weights, head = weights_of(model), copy.deepcopy(critic.tensors())
    metrics = learner.update([with_logprobs(group, float("nan")) for group in groups])
    assert metrics["skipped_updates"] == 1
    assert torch.equal(weights_of(model), weights)
    assert critic.head.weight.grad is None
    after = critic.tensors()
    scaled = {"head/mean", "head/square", "head/batches", "head/weight", "head/bias"}
    assert all(torch.equal(after[name], head[name]) for name in head.keys() - scaled)


def test_turns_without_tokens_are_bridged_and_histories_read_apart() -> None:
    model = tiny_model()
    first = made_history(model, [1, 2, 3], 2, np.random.default_rng(0))
    spans = [replace(s, turn=None if s.turn is None else s.turn + 3) for s in first.spans]
    episode = made_episode(0, 1.0, [first, TokenHistory(tuple(spans))])
    assert len(episode.turns) == 5  # turn 2 is in neither history
    learner, _ = ppo_learner(model, lam=1.0)
    estimates = learner._estimate_values([Group((episode,))])
    values, returns = estimates.values[0][0], estimates.returns[0][0]
    assert values[3] == pytest.approx(values[0], abs=1e-6)  # the same tokens
    assert values[2] == values[3]
    assert returns == pytest.approx(np.ones(5))
    silent = made_episode(0, 0.25, [TokenHistory((Span((1, 2, 3)),))])
    assert learner.update([Group((episode, silent))])["trained_tokens"] == episode.sampled_tokens


def test_a_turn_starts_at_its_first_token_that_a_position_predicts() -> None:
    reply, observation, later = Span((5, 6), 0, (-1.0, -1.0)), Span((7,)), Span((8, 9), 2, (-1.0, -1.0))
    assert turn_starts(TokenHistory((reply, observation, later))) == {0: 1, 2: 3}
    assert turn_starts(TokenHistory((Span((5,), 0, (-1.0,)), observation, later))) == {2: 2}
