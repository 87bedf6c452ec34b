from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch

from art_trainer.errors import DivergedError, UnsupportedModelError
from art_trainer.inference.sampling import SamplingParams, sampled_logprobs
from art_trainer.models import logprobs as scoring
from art_trainer.models.memory import WorkSizes
from art_trainer.models.optim import schedule_factor
from art_trainer.rollout.episodes import group_specs, rollout_groups
from art_trainer.training.learner import Learner, build_training_samples
from art_trainer.types import Ending, Episode, Group, Span, TokenHistory
from tests.art_trainer.inference.test_transformers_policy import STOPS, make_policy
from tests.art_trainer.made_episodes import made_episode, made_groups
from tests.art_trainer.tiny_models import EchoEnv, full_logprobs, lora_model, tiny_model
from tests.art_trainer.updates import (
    caught_update,
    config,
    gradient_of_update,
    weights_of,
    with_logprobs,
    with_rewards,
)


def test_a_group_with_a_failed_member_is_left_out() -> None:
    groups = made_groups(tiny_model(), groups=2)
    broken = replace(groups[1].episodes[0], ending=Ending.ENV_ERROR, error="ValueError: no")
    mixed = [groups[0], Group((broken, *groups[1].episodes[1:]))]
    wanted = gradient_of_update(tiny_model(), groups[:1], config())
    found, metrics = caught_update(tiny_model(), mixed, config())
    assert torch.equal(found, wanted)
    assert metrics["failed_groups"] == 1


@pytest.mark.parametrize("settings", [{}, {"advantage_estimator": "gae"}])
def test_a_batch_of_failures_changes_no_weight(settings: dict[str, Any]) -> None:
    model = tiny_model()
    episode = Episode("made", "t", 0, "start", (), (), Ending.POLICY_ERROR, error="gone")
    before = weights_of(model)
    learner = Learner(model, config(**settings))
    metrics = learner.update([Group((episode, episode))])
    assert torch.equal(weights_of(model), before)
    assert "reward" not in metrics
    assert learner.step == 1


def test_truncated_episodes_can_be_left_out_of_the_loss_but_not_of_the_baseline() -> None:
    (group,) = made_groups(tiny_model(), groups=1, size=3)
    first, second, third = with_rewards(group, [0.0, 0.0, 3.0]).episodes
    cut = Group((replace(first, ending=Ending.CONTEXT_FULL), second, third))
    (members,) = build_training_samples([cut], config(mask_truncated_completions=True))
    assert [sample[0].advantages[0] for sample in members] == [-1.0, 2.0]


@pytest.mark.parametrize(
    ("iterations", "steps", "taken"), [(1, 1, 1), (2, 1, 2), (1, 3, 3), (3, 2, 6), (1, 9, 3)]
)
def test_a_batch_has_the_optimizer_steps_asked_for(iterations: int, steps: int, taken: int) -> None:
    model = tiny_model()
    learner = Learner(model, config(num_iterations=iterations, steps_per_generation=steps, groups_per_step=9))
    count: list[int] = []
    learner.optimizer.register_step_post_hook(lambda *call: count.append(1))
    groups = made_groups(model)
    metrics = learner.update(groups)
    assert len(count) == taken
    assert metrics["trained_tokens"] == sum(e.sampled_tokens for group in groups for e in group.episodes)


def test_a_loss_that_is_not_a_number_changes_nothing_and_ends_after_so_many_in_a_row() -> None:
    model = tiny_model()
    good = made_groups(model)
    bad = [with_logprobs(group, float("nan")) for group in good]
    learner = Learner(model, config(max_skipped_updates=2))
    skipped = [learner.update(groups)["skipped_updates"] for groups in (bad, good, bad)]
    assert skipped == [1.0, 0.0, 1.0]
    before = weights_of(model)
    with pytest.raises(DivergedError, match="2 optimizer steps in a row"):
        learner.update(bad)
    assert torch.equal(weights_of(model), before)


def test_with_an_adapter_the_reference_is_the_model_without_it() -> None:
    model = lora_model()
    groups = made_groups(model)
    learner = Learner(model, config(beta=0.1, learning_rate=1e-2))
    assert learner.reference is None
    assert learner.update(groups)["kl"] == pytest.approx(0, abs=1e-7)
    assert learner.update(groups)["kl"] > 1e-6
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)


def test_filtered_sampling_takes_the_old_logprobs_from_the_whole_distribution() -> None:
    model = tiny_model()
    groups = [with_logprobs(group, 0.5) for group in made_groups(model)]  # a filter makes tokens likelier
    metrics = Learner(model, config(top_p=0.9)).update(groups)
    assert metrics["clip_ratio"] == 0
    assert metrics["kl"] == pytest.approx(0, abs=1e-9)


def test_a_sampled_token_that_the_filters_drop_counts_as_kept() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.1]])).expand(4, -1)
    found = sampled_logprobs(logits, torch.arange(4), [[0]] * 4, SamplingParams(top_k=2))
    assert found.exp().tolist() == pytest.approx([0.5 / 0.75, 0.25 / 0.75, 0.15 / 0.9, 0.1 / 0.85])


ALL = {"top_k": 20, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2}
EACH = [{"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.2}, {"repetition_penalty": 1.5}, ALL]


@pytest.mark.parametrize("family", ["qwen2", "mistral-sliding"])
@pytest.mark.parametrize("filters", EACH)
def test_the_models_own_sampler_needs_no_correction_under_any_filter(
    filters: dict[str, Any], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring.WorkSizes, "of", lambda device: WorkSizes(4096, 300 * 7, 4096))
    settings = config(temperature=1.3, max_completion_length=8, max_grad_norm=0.0, **filters)
    policy = make_policy(family, sampling=asdict(SamplingParams.for_training(settings, STOPS)))
    groups = rollout_groups(policy, lambda: EchoEnv(3), group_specs(range(3), 4))
    wanted = gradient_of_update(policy.model, groups, settings)
    corrected = replace(settings, importance_sampling_correction=True)
    found, metrics = caught_update(make_policy(family).model, groups, corrected)
    ratios = [metrics[f"sampling/importance_sampling_ratio/{end}"] for end in ("min", "max")]
    assert ratios == pytest.approx([1, 1], abs=1e-4)
    assert (found - wanted).norm() <= 1e-4 * wanted.norm()


@pytest.mark.parametrize(
    ("moved", "spread"), [(0.0, 1e-4), (3e-4, 0.3)], ids=["own weights", "older weights"]
)
def test_a_reply_of_fifty_tokens_at_top_p_080_keeps_its_weight(moved: float, spread: float) -> None:
    settings = config(max_completion_length=50, top_p=0.8, importance_sampling_correction=True)
    sampling = asdict(SamplingParams.for_training(settings))
    groups = rollout_groups(make_policy(stops=(), sampling=sampling), lambda: EchoEnv(1), group_specs([0], 4))
    (reply, *_) = groups[0].episodes[0].histories
    learner = make_policy().model
    whole = full_logprobs(learner, reply.token_ids)[np.array(reply.action_mask[1:])]
    assert whole.size == 50
    assert np.exp(whole.sum() - sum(reply.logprobs)) < 1e-4, "over all tokens the reply would weigh nothing"
    for parameter in learner.parameters():
        parameter.data += moved * torch.randn(parameter.shape, generator=torch.manual_seed(0))
    metrics = Learner(learner, settings).update([with_rewards(groups[0], [0.0, 1.0, 2.0, 3.0])])
    weights = [metrics[f"sampling/importance_sampling_ratio/{name}"] for name in ("min", "mean", "max")]
    assert weights == pytest.approx([1, 1, 1], abs=spread)


def test_metrics_of_rewards_success_and_terms() -> None:
    group = with_rewards(made_groups(tiny_model(), groups=1)[0], [1.0, 0.0, 0.5, 0.5])
    metrics = Learner(tiny_model(), config()).update([group])
    wanted = {
        "reward": 0.5,
        "reward_std": np.std([1.0, 0.0, 0.5, 0.5], ddof=1),
        "turns": np.mean([len(episode.turns) for episode in group.episodes]),
        "success": np.mean([episode.success for episode in group.episodes]),
        "score/outcome": np.mean([episode.score_terms["outcome"] for episode in group.episodes]),
        "invalid_actions": 0,
    }
    assert {name: metrics[name] for name in wanted} == pytest.approx(wanted)


def test_metrics_are_over_replaced_groups_too_and_learning_is_not() -> None:
    groups = made_groups(tiny_model())
    flat = with_rewards(groups[2], [0.0] * 4)
    settings = config(dynamic_sampling=True, max_grad_norm=0.0)
    wanted = gradient_of_update(tiny_model(), groups[:2], settings)
    metrics = Learner(tiny_model(), settings).update(groups[:2], [flat])
    rewards = [reward for group in (*groups[:2], flat) for reward in group.rewards]
    assert metrics["reward"] == pytest.approx(np.mean(rewards))
    assert metrics["resampled_groups"] == 1
    assert metrics["frac_reward_zero_std"] == pytest.approx(1 / 3)
    assert metrics["grad_norm"] == pytest.approx(wanted.norm().item(), rel=1e-5)


@pytest.mark.parametrize(
    "settings", [{"beta": 0.1}, {"top_p": 0.9}, {"importance_sampling_correction": True}]
)
def test_attempts_without_tokens_or_signal_need_no_pass_of_their_own(settings: dict[str, Any]) -> None:
    model = tiny_model()
    (group,) = made_groups(model, groups=1, size=2)
    silent = made_episode(0, 0.9, [TokenHistory((Span((1, 2, 3)),))])
    learner = Learner(model, config(**settings))
    metrics = learner.update([Group((*group.episodes, silent))])
    assert metrics["trained_tokens"] == sum(e.sampled_tokens for e in group.episodes)
    assert learner.update([with_rewards(group, [1.0, 1.0])])["trained_tokens"] == 0


def test_norms_and_biases_are_not_decayed_and_a_frozen_model_is_refused() -> None:
    learner = Learner(tiny_model(), config(weight_decay=0.1))
    decayed, free = learner.optimizer.param_groups
    assert {p.ndim for p in decayed["params"]} == {2}
    assert {p.ndim for p in free["params"]} == {1}
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    with pytest.raises(UnsupportedModelError, match="requires_grad"):
        Learner(tiny_model().requires_grad_(False), config())


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [("constant", [0.5, 1, 1, 1, 1]), ("linear", [0.5, 1, 1, 0.55, 0.1]), ("cosine", [0.5, 1, 1, 0.55, 0.1])],
)
def test_schedules_rise_to_one_and_fall_to_the_final_ratio(schedule: Any, factors: list[float]) -> None:
    found = [schedule_factor(s, 10, schedule, warmup_steps=2, final_ratio=0.1) for s in (0, 1, 2, 6, 10)]
    assert found == pytest.approx(factors)
    assert schedule_factor(99, 10, schedule, warmup_steps=2, final_ratio=0.1) == pytest.approx(factors[-1])
