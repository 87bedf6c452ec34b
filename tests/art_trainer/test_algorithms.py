"""Every algorithm a config can choose: the same gradient as its textbook form, however it is computed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from art_trainer.attempts import trained_attempts
from art_trainer.config import GRPOConfig
from art_trainer.episodes import Group
from art_trainer.estimators import estimate
from art_trainer.learner import Learner
from art_trainer.losses import policy_loss
from art_trainer.rollout import rollout_groups
from tests.art_trainer.guess import GuessEnv, guess_policy, seeds
from tests.art_trainer.made_episodes import made_groups
from tests.art_trainer.tiny_models import tiny_model
from tests.art_trainer.updates import (
    caught_update,
    config,
    gradient_of_update,
    weights_of,
    with_logprobs,
    with_rewards,
)


def textbook_gradient(model: torch.nn.Module, groups: Sequence[Group], settings: GRPOConfig) -> torch.Tensor:
    """One padded batch, the whole model, the loss as the papers write it."""
    episodes = [episode for group in groups for episode in group.episodes]
    histories = [episode.histories[0] for episode in episodes]
    width = max(len(history.token_ids) for history in histories)
    ids = torch.zeros(len(histories), width, dtype=torch.long)
    mask, old = torch.zeros(len(histories), width, dtype=torch.bool), torch.zeros(len(histories), width)
    advantages = torch.zeros(len(histories), width)
    by_turn = [values for group in estimate(groups, settings) for values in group]
    for i, history in enumerate(histories):
        length = len(history.token_ids)
        ids[i, :length] = torch.tensor(history.token_ids)
        mask[i, :length] = torch.tensor(history.action_mask)
        old[i, mask[i]] = torch.tensor(history.logprobs)
        advantages[i, mask[i]] = torch.tensor(
            [by_turn[i][turn] for turn in history.turns], dtype=torch.float32
        )
    logprobs = model(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    loss = policy_loss(
        logprobs,
        old[:, 1:],
        advantages[:, 1:],
        mask[:, 1:],
        loss_type=settings.loss_type,
        importance_sampling_level=settings.importance_sampling_level,
        epsilon=settings.epsilon,
        epsilon_high=settings.clip_high,
        delta=settings.delta,
        max_length=settings.max_completion_length,
    )
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


ALGORITHMS: dict[str, dict[str, Any]] = {
    "dapo": {},
    "grpo": {"loss_type": "grpo", "scale_rewards": "group"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "bnpo": {"loss_type": "bnpo", "scale_rewards": "batch"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.3},
    "gspo": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon": 0.1,
        "epsilon_high": 0.1,
    },
    "two-sided": {"delta": 1.4},
    "rloo": {"advantage_estimator": "leave_one_out"},
    "reinforce++": {"advantage_estimator": "reinforce_plus_plus"},
    "reinforce++ baseline": {"advantage_estimator": "reinforce_plus_plus_baseline"},
    "reward to go": {"advantage_estimator": "reward_to_go", "gamma": 0.9},
    "gigpo": {"advantage_estimator": "gigpo", "gamma": 0.95},
    "gspo of turns": {"advantage_estimator": "gigpo", "importance_sampling_level": "sequence"},
}
"""Settings of each algorithm by its name."""


@pytest.mark.parametrize("settings", ALGORITHMS.values(), ids=ALGORITHMS)
def test_the_update_has_the_textbook_gradient(settings: dict[str, Any]) -> None:
    model = tiny_model()
    # Shifted by more than the clip in both directions, so that clipping is part of the comparison.
    groups = [with_logprobs(g, d) for g, d in zip(made_groups(model), (0.4, -0.4, 0.05), strict=True)]
    chosen = config(max_grad_norm=0.0, **settings)
    wanted = textbook_gradient(copy.deepcopy(model), groups, chosen)
    found, metrics = caught_update(model, groups, chosen)
    assert wanted.norm() > 1e-3
    assert (found - wanted).norm() <= 1e-5 * wanted.norm()
    assert metrics["clip_ratio"] > 0


@pytest.mark.parametrize("settings", ALGORITHMS.values(), ids=ALGORITHMS)
def test_every_algorithm_makes_what_was_better_than_expected_likelier(settings: dict[str, Any]) -> None:
    policy = guess_policy(hidden=32, max_new_tokens=1)
    learner = Learner(policy.model, config(num_iterations=2, **settings))
    for step in range(2):
        groups = rollout_groups(
            policy, GuessEnv, seeds(8, step), 8, rng_seed=step, record_states=learner.config.records_states
        )
        rows = [
            row
            for members in trained_attempts(groups, learner.config)
            for attempt in members
            for row in attempt.rows
        ]
        assert learner.update(groups)["trained_tokens"] > 0
        fresh = learner._runner.logprobs(learner._scorer, rows)
        gain = sum(
            float(row.advantages @ (logprobs - row.old_logprobs))
            for row, logprobs in zip(rows, fresh, strict=True)
        )
        assert gain > 0
    assert learner.step == 2


@pytest.mark.parametrize("how", [{"share_prefixes": False}, {"tokens_per_microbatch": 120}])
@pytest.mark.parametrize("name", ["grpo", "cispo", "gspo", "gigpo"])
def test_how_a_batch_is_computed_changes_no_gradient(name: str, how: dict[str, Any]) -> None:
    groups = [with_logprobs(group, 0.1) for group in made_groups(tiny_model())]
    settings = {"max_grad_norm": 0.0, "entropy_coef": 0.01, "beta": 0.1, **ALGORITHMS[name]}
    wanted = gradient_of_update(tiny_model(), groups, config(**settings))
    found = gradient_of_update(tiny_model(), groups, config(**settings, **how))
    assert (found - wanted).norm() <= 5e-6 * wanted.norm()


@pytest.mark.parametrize("name", ["dapo", "grpo", "cispo", "gspo", "reinforce++", "gigpo"])
def test_the_order_of_groups_and_members_changes_no_gradient(name: str) -> None:
    groups = made_groups(tiny_model())
    turned = [Group(group.episodes[::-1]) for group in groups[::-1]]
    settings = config(max_grad_norm=0.0, **ALGORITHMS[name])
    wanted = gradient_of_update(tiny_model(), groups, settings)
    found = gradient_of_update(tiny_model(), turned, settings)
    assert (found - wanted).norm() <= 5e-6 * wanted.norm()


@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("name", ["dapo", "grpo", "cispo", "gspo", "reinforce++ baseline", "reward to go"])
def test_equal_rewards_change_no_weight(name: str, drop: bool) -> None:
    model = tiny_model()
    # The same number of turns for all: a discounted reward is worth more to who earned it sooner.
    groups = [with_rewards(group, [0.1] * 4) for group in made_groups(model, turns=1)]
    stale = [with_logprobs(group, 0.1) for group in groups]
    before = weights_of(model)
    metrics = Learner(model, config(drop_zero_variance_groups=drop, **ALGORITHMS[name])).update(stale)
    assert torch.equal(weights_of(model), before)
    assert metrics["frac_reward_zero_std"] == 1
    assert (metrics["trained_tokens"] == 0) == drop
