import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from art_trainer.advantages import turn_advantages
from art_trainer.attempts import trained_attempts
from art_trainer.episodes import Ending, Episode, Group, Span, TokenHistory
from art_trainer.errors import DivergedError, UnsupportedModelError
from art_trainer.learner import Learner
from art_trainer.optimization import schedule_factor
from tests.art_trainer.made_episodes import made_episode, made_groups
from tests.art_trainer.tiny_models import tiny_model
from tests.art_trainer.updates import (
    caught_update,
    config,
    gradient_of_update,
    weights_of,
    with_logprobs,
    with_rewards,
)


def test_an_episode_of_two_histories_weighs_as_one_of_all_their_tokens() -> None:
    model = tiny_model()
    (group,) = made_groups(model, groups=1, size=3)
    first, second, third = group.episodes
    turns = max(first.turns, second.turns, key=len)
    both = replace(first, turns=turns, histories=first.histories + second.histories)
    settings = config(loss_type="grpo", max_grad_norm=0.0)
    metrics = Learner(model, settings).update([Group((both, third))])
    assert metrics["trained_tokens"] == sum(e.sampled_tokens for e in group.episodes)


def test_rewarded_replies_become_likelier_and_the_others_less_likely() -> None:
    model = tiny_model()
    (group,) = made_groups(model, groups=1, size=2)
    group = with_rewards(group, [1.0, 0.0])
    learner = Learner(model, config(learning_rate=1e-4))
    learner.update([group])
    good, bad = (
        learner._runner.logprobs(learner._scorer, attempt.rows)[0]
        for attempt in trained_attempts([group], learner.config)[0]
    )
    assert good.sum() > sum(group.episodes[0].histories[0].logprobs)
    assert bad.sum() < sum(group.episodes[1].histories[0].logprobs)


def test_on_the_sampling_policy_nothing_is_clipped_and_the_divergence_is_zero() -> None:
    model = tiny_model()
    metrics = Learner(model, config()).update(made_groups(model))
    assert metrics["clip_ratio"] == 0
    assert metrics["kl"] == pytest.approx(0, abs=1e-9)
    assert 0 < metrics["entropy"] < math.log(300)
    assert metrics["grad_norm"] > 0


def test_a_group_with_a_failed_member_is_left_out_whole() -> None:
    model = tiny_model()
    groups = made_groups(model, groups=2)
    broken = replace(groups[1].episodes[0], ending=Ending.ENV_ERROR, error="ValueError: no")
    mixed = [groups[0], Group((broken, *groups[1].episodes[1:]))]
    wanted = gradient_of_update(tiny_model(), groups[:1], config())
    assert torch.equal(gradient_of_update(tiny_model(), mixed, config()), wanted)
    metrics = Learner(model, config()).update(mixed)
    assert metrics["failed_groups"] == 1


def test_a_batch_of_nothing_but_failures_is_survived() -> None:
    model = tiny_model()
    episode = Episode("made", "t", 0, "start", (), (), Ending.POLICY_ERROR, error="gone")
    before = weights_of(model)
    learner = Learner(model, config())
    metrics = learner.update([Group((episode, episode))])
    assert torch.equal(weights_of(model), before)
    assert "reward" not in metrics
    assert learner.step == 1


def test_with_reward_to_go_each_turns_tokens_have_their_own_advantage() -> None:
    model = tiny_model()
    (group,) = made_groups(model, groups=1, size=3, seed=3)
    learner = Learner(model, config(advantage_estimator="reward_to_go", gamma=0.5))
    (members,) = trained_attempts([group], learner.config)
    wanted = turn_advantages([[turn.reward for turn in e.turns] for e in group.episodes], 0.5)
    assert len({len(values) for values in wanted}) > 1
    for attempt, episode, values in zip(members, group.episodes, wanted, strict=True):
        turns = episode.histories[0].turns
        assert attempt.rows[0].advantages == pytest.approx([values[turn] for turn in turns])
    before = weights_of(model)
    learner.update([group])
    assert not torch.equal(weights_of(model), before)


def test_truncated_episodes_can_be_left_out_of_the_loss_but_not_of_the_baseline() -> None:
    model = tiny_model()
    (group,) = made_groups(model, groups=1, size=3)
    first, second, third = with_rewards(group, [0.0, 0.0, 3.0]).episodes
    cut = Group((replace(first, ending=Ending.TRUNCATED), second, third))
    learner = Learner(model, config(mask_truncated_completions=True))
    (members,) = trained_attempts([cut], learner.config)
    assert [attempt.rows[0].advantages[0] for attempt in members] == [-1.0, 2.0]


@pytest.mark.parametrize(
    ("iterations", "steps", "taken"), [(1, 1, 1), (2, 1, 2), (1, 3, 3), (3, 2, 6), (1, 9, 3)]
)
def test_a_batch_is_passed_over_as_often_and_in_as_many_parts_as_asked(
    iterations: int, steps: int, taken: int
) -> None:
    model = tiny_model()
    learner = Learner(model, config(num_iterations=iterations, steps_per_generation=steps, groups_per_step=9))
    count: list[int] = []
    learner.optimizer.register_step_post_hook(lambda *call: count.append(1))
    groups = made_groups(model)
    metrics = learner.update(groups)
    assert len(count) == taken
    assert metrics["trained_tokens"] == sum(e.sampled_tokens for group in groups for e in group.episodes)


def test_later_passes_are_held_against_the_policy_that_sampled() -> None:
    model = tiny_model()
    metrics = Learner(model, config(num_iterations=4, learning_rate=1e-2)).update(made_groups(model))
    assert metrics["kl"] > 1e-4
    assert metrics["clip_ratio"] > 0


def test_a_loss_that_is_not_a_number_changes_nothing_and_in_the_end_stops() -> None:
    model = tiny_model()
    groups = [with_logprobs(group, float("nan")) for group in made_groups(model)]
    learner = Learner(model, config(max_skipped_updates=3))
    before = weights_of(model)
    assert learner.update(groups)["skipped_updates"] == 1
    assert learner.update(groups)["skipped_updates"] == 1
    with pytest.raises(DivergedError, match=r"3 optimizer steps in a row .* lower learning_rate"):
        learner.update(groups)
    assert torch.equal(weights_of(model), before)


def test_a_good_update_between_bad_ones_starts_the_count_again() -> None:
    model = tiny_model()
    good = made_groups(model)
    bad = [with_logprobs(group, float("nan")) for group in good]
    learner = Learner(model, config(max_skipped_updates=2))
    skipped = [learner.update(groups)["skipped_updates"] for groups in (bad, good, bad, good)]
    assert skipped == [1.0, 0.0, 1.0, 0.0]


def test_gradients_are_clipped_to_the_given_length() -> None:
    model = tiny_model()
    groups = made_groups(model)
    whole = gradient_of_update(tiny_model(), groups, config(max_grad_norm=0.0))
    clipped = gradient_of_update(tiny_model(), groups, config(max_grad_norm=1e-3))
    assert whole.norm() > 1e-2
    assert clipped.norm().item() == pytest.approx(1e-3, rel=1e-3)
    assert torch.nn.functional.cosine_similarity(whole, clipped, dim=0).item() > 0.9999


def test_divergence_to_the_reference_holds_the_policy_back() -> None:
    found = {}
    for beta in (1e-6, 10.0):
        model = tiny_model()
        groups = made_groups(model)
        learner = Learner(model, config(beta=beta, num_iterations=6))
        first = learner.update(groups)
        second = learner.update(groups)
        assert second["kl"] > 0
        found[beta] = second["kl"]
        assert first["kl"] < second["kl"] or beta > 1
    assert found[10.0] < found[1e-6] / 2


def test_the_reference_stays_as_the_policy_was_at_the_start() -> None:
    model = tiny_model()
    before = weights_of(model)
    learner = Learner(model, config(beta=0.1))
    learner.update(made_groups(model))
    assert learner.reference is not None
    assert torch.equal(weights_of(learner.reference), before)
    assert not torch.equal(weights_of(model), before)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_with_an_adapter_the_reference_is_the_model_without_it() -> None:
    model = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
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


def test_a_sampler_of_its_own_is_corrected_and_told_of() -> None:
    groups = [with_logprobs(group, -0.3) for group in made_groups(tiny_model())]
    plain = gradient_of_update(tiny_model(), made_groups(tiny_model()), config(max_grad_norm=0.0))
    settings = config(
        importance_sampling_correction=True, importance_sampling_mode="token_truncate", max_grad_norm=0.0
    )
    found, metrics = caught_update(tiny_model(), groups, settings)
    # Every token is e^0.3 times likelier to the learner than to the sampler; the ratio starts at 1.
    assert (found - math.exp(0.3) * plain).norm() <= 1e-5 * plain.norm()
    assert metrics["clip_ratio"] == 0
    assert metrics["sampling/sampling_logp_difference/mean"] == pytest.approx(0.3, abs=1e-5)
    assert metrics["sampling/sampling_logp_difference/max"] == pytest.approx(0.3, abs=1e-5)
    for name in ("min", "mean", "max"):
        ratio = metrics[f"sampling/importance_sampling_ratio/{name}"]
        assert ratio == pytest.approx(math.exp(0.3), rel=1e-5)


def test_sequences_the_sampler_saw_too_differently_are_masked() -> None:
    first, second, third = made_groups(tiny_model())
    settings = config(importance_sampling_correction=True, max_grad_norm=0.0)
    found, metrics = caught_update(tiny_model(), [first, with_logprobs(second, -9.0), third], settings)
    assert metrics["sampling/importance_sampling_ratio/min"] == 0
    # The masked group's tokens still count among the step's.
    tokens = [sum(e.sampled_tokens for e in group.episodes) for group in (first, second, third)]
    wanted = gradient_of_update(tiny_model(), [first, third], config(max_grad_norm=0.0))
    share = (tokens[0] + tokens[2]) / sum(tokens)
    assert (found - share * wanted).norm() <= 1e-5 * wanted.norm()


def test_without_correction_there_is_no_second_pass() -> None:
    learner = Learner(tiny_model(), config())
    learner._score = None  # type: ignore[assignment, method-assign]
    metrics = learner.update(made_groups(tiny_model()))
    assert not any(name.startswith("sampling/") for name in metrics)


def test_a_batch_without_signal_has_nothing_to_correct() -> None:
    groups = [with_rewards(group, [1.0] * 4) for group in made_groups(tiny_model())]
    metrics = Learner(tiny_model(), config(importance_sampling_correction=True)).update(groups)
    assert metrics["trained_tokens"] == 0


def test_the_entropy_bonus_raises_entropy() -> None:
    found = {}
    for coefficient in (0.0, 1.0):
        model = tiny_model()
        learner = Learner(model, config(entropy_coef=coefficient, num_iterations=5))
        groups = made_groups(model)
        learner.update(groups)
        found[coefficient] = learner.update(groups)["entropy"]
    assert found[1.0] > found[0.0]


def test_metrics_tell_of_rewards_success_and_terms() -> None:
    model = tiny_model()
    group = with_rewards(made_groups(model, groups=1)[0], [1.0, 0.0, 0.5, 0.5])
    metrics = Learner(model, config()).update([group])
    assert metrics["reward"] == 0.5
    assert metrics["reward_std"] == pytest.approx(np.std([1.0, 0.0, 0.5, 0.5], ddof=1))
    assert metrics["turns"] == np.mean([len(episode.turns) for episode in group.episodes])
    assert metrics["invalid_actions"] == 0
    assert "score/outcome" in metrics
    assert 0 <= metrics["success"] <= 1


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
def test_an_attempt_that_never_spoke_needs_no_second_pass(settings: dict[str, Any]) -> None:
    model = tiny_model()
    (group,) = made_groups(model, groups=1, size=2)
    silent = made_episode(0, 0.9, [TokenHistory((Span((1, 2, 3)),))])
    metrics = Learner(model, config(**settings)).update([Group((*group.episodes, silent))])
    assert metrics["trained_tokens"] == sum(e.sampled_tokens for e in group.episodes)


def test_a_model_that_is_frozen_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="nothing to train"):
        Learner(tiny_model().requires_grad_(False), config())


def test_norms_and_biases_are_not_decayed() -> None:
    model = tiny_model()
    learner = Learner(model, config(weight_decay=0.1))
    decayed, free = learner.optimizer.param_groups
    assert {p.ndim for p in decayed["params"]} == {2}
    assert {p.ndim for p in free["params"]} == {1}
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)


def test_the_learning_rate_follows_its_schedule() -> None:
    model = tiny_model()
    settings = config(max_steps=4, lr_scheduler_type="linear", lr_final_ratio=0.2)
    learner = Learner(model, settings)
    groups = made_groups(model)
    rates = [learner.update(groups)["learning_rate"] for _ in range(4)]
    assert rates == pytest.approx([1e-3, 0.8e-3, 0.6e-3, 0.4e-3])
    assert learner.learning_rate == pytest.approx(0.2e-3)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.55, 0.1]),
        ("cosine", [0.5, 1.0, 1.0, 0.55, 0.1]),
    ],
)
def test_schedules_rise_to_one_and_fall_to_the_final_ratio(schedule: Any, factors: list[float]) -> None:
    found = [schedule_factor(s, 10, schedule, warmup_steps=2, final_ratio=0.1) for s in (0, 1, 2, 6, 10)]
    assert found == pytest.approx(factors)
    assert schedule_factor(99, 10, schedule, warmup_steps=2, final_ratio=0.1) == pytest.approx(factors[-1])


def test_an_episode_made_by_hand_trains_as_it_is() -> None:
    model = tiny_model()
    (group,) = made_groups(model, groups=1, size=2)
    silent = made_episode(0, 0.9, [])  # it never got to speak: it counts in the baseline only
    metrics = Learner(model, config()).update([Group((*group.episodes, silent))])
    assert metrics["trained_tokens"] == sum(e.sampled_tokens for e in group.episodes)
