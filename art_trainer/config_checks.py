"""Settings that are each in range but do not go together, with words for what to set instead."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from art_trainer.best_model import best_model_for
from art_trainer.errors import ConfigError

if TYPE_CHECKING:
    from art_trainer.config import GRPOConfig

DISCOUNTED = ("reward_to_go", "gigpo", "gae")
"""Estimators that look at when a reward came."""
NORMALISED = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")
"""Estimators that divide by the batch's standard deviation themselves."""

_OF_CRITIC = ("lam", "vf_coef", "cliprange_value", "value_learning_rate")
"""Settings of the value head alone."""


def check_together(config: GRPOConfig) -> None:
    """Check a config whose values are each in range.

    Raises:
        ConfigError: Where two settings contradict each other; the message says what to set.
    """
    _check_sampling(config)
    _check_clipping(config)
    _check_correction(config)
    _check_advantages(config)
    _check_groups(config)
    _check_critic(config)
    best_model_for(config)


def _check_sampling(config: GRPOConfig) -> None:
    if config.temperature <= 0:
        raise ConfigError(
            "temperature is 0, but greedy attempts at one task are all alike and teach nothing: "
            "set it above 0 (1.0), and eval_temperature to 0 for greedy evaluation"
        )
    if not 0 < config.top_p <= 1:
        raise ConfigError(f"top_p is {config.top_p}: set it above 0 and at most 1 (1 switches it off)")
    if config.min_p is not None and not 0 <= config.min_p < 1:
        raise ConfigError(f"min_p is {config.min_p}: set it from 0 to below 1, or null to switch it off")
    if not 0 < config.repetition_penalty < math.inf:
        raise ConfigError(
            f"repetition_penalty is {config.repetition_penalty}: set a finite number above 0 "
            "(1 switches it off)"
        )
    if isinstance(config.stop_strings, str) or not all(config.stop_strings):
        raise ConfigError(f"stop_strings is {config.stop_strings!r}: set a list of texts that are not empty")


def _check_clipping(config: GRPOConfig) -> None:
    if config.epsilon >= 1:
        raise ConfigError(f"epsilon is {config.epsilon}: a ratio is never below 0, so set it below 1 (0.2)")
    if config.epsilon_high is not None and config.epsilon_high < 0:
        raise ConfigError(f"epsilon_high is {config.epsilon_high}: set 0 or more, or null for epsilon")
    if config.loss_type == "cispo":
        if config.clip_high < 1:
            raise ConfigError(
                f"epsilon_high is {config.clip_high}, but for loss_type 'cispo' it is the highest ratio a "
                "token is weighed with (TRL's meaning), and fresh tokens have 1: set it above 1 (5.0)"
            )
        if config.delta is not None:
            raise ConfigError(
                f"delta is {config.delta}, but loss_type 'cispo' bounds all ratios by epsilon_high: set "
                "delta to null"
            )
    elif config.delta is not None and config.delta <= 1 + config.clip_high:
        raise ConfigError(
            f"delta is {config.delta}, but ratios up to 1 + epsilon_high = {1 + config.clip_high:g} are not "
            "clipped: set it above that, or null for no bound"
        )


def _check_correction(config: GRPOConfig) -> None:
    low, high = config.importance_sampling_clip_min, config.importance_sampling_clip_max
    if low is not None and high is not None and low >= high:
        raise ConfigError(
            f"importance_sampling_clip_min ({low}) is not below importance_sampling_clip_max ({high})"
        )
    if config.max_staleness and not config.importance_sampling_correction:
        raise ConfigError(
            f"max_staleness is {config.max_staleness}, so attempts are sampled by older weights than "
            "learn from them: set importance_sampling_correction to true, which weighs them by how far the "
            "weights have moved, or max_staleness to 0"
        )
    if (
        config.importance_sampling_correction
        and config.importance_sampling_mode.endswith("truncate")
        and low is None
        and high is None
    ):
        raise ConfigError(
            f"importance_sampling_mode is {config.importance_sampling_mode!r}, but there is nothing to "
            "truncate at: set importance_sampling_clip_max (3.0)"
        )


def _check_advantages(config: GRPOConfig) -> None:
    estimator = config.advantage_estimator
    if config.gamma != 1 and estimator not in DISCOUNTED:
        raise ConfigError(
            f"gamma is {config.gamma}, but advantage_estimator {estimator!r} does not discount: set it to "
            "'reward_to_go', 'gigpo' or 'gae', or gamma to 1"
        )
    if config.step_advantage_weight != 1 and estimator != "gigpo":
        raise ConfigError(
            f"step_advantage_weight is {config.step_advantage_weight}, but advantage_estimator {estimator!r} "
            "has no step advantages: set it to 'gigpo', or step_advantage_weight to 1"
        )
    if config.scale_rewards != "none" and estimator in NORMALISED:
        raise ConfigError(
            f"scale_rewards is {config.scale_rewards!r}, but advantage_estimator {estimator!r} divides by "
            "the batch's standard deviation already: set scale_rewards to 'none'"
        )
    if config.scale_rewards == "batch" and estimator == "gigpo":
        raise ConfigError(
            "scale_rewards is 'batch', but 'gigpo' compares within groups: set 'none', or 'group' to divide "
            "by each group's standard deviation"
        )


def _check_groups(config: GRPOConfig) -> None:
    if config.num_generations < 2 and not config.has_critic:
        raise ConfigError(
            "num_generations is 1, but GRPO's baseline is the mean over a group: set at least 2, or "
            "advantage_estimator to 'gae', whose baseline is a value head"
        )
    if config.steps_per_generation > config.groups_per_step:
        raise ConfigError(
            f"steps_per_generation ({config.steps_per_generation}) is above groups_per_step "
            f"({config.groups_per_step}): an optimizer step needs at least one group"
        )
    if config.max_resampled_groups is not None and config.max_resampled_groups < 1:
        raise ConfigError(
            f"max_resampled_groups is {config.max_resampled_groups}: set at least 1, or null for "
            "groups_per_step (dynamic_sampling switches it off)"
        )
    if config.dynamic_sampling and config.advantage_estimator == "reinforce_plus_plus":
        raise ConfigError(
            "dynamic_sampling is on, but advantage_estimator 'reinforce_plus_plus' compares with the whole "
            "batch, where a group of equal rewards teaches too: switch it off, or set the estimator to "
            "'reinforce_plus_plus_baseline'"
        )


def _check_critic(config: GRPOConfig) -> None:
    if config.has_critic:
        if config.scale_rewards == "group":
            raise ConfigError(
                "scale_rewards is 'group', but advantage_estimator 'gae' compares with a value head and not "
                "with a group: set 'batch' to whiten advantages over the batch, or 'none'"
            )
        if config.dynamic_sampling:
            raise ConfigError(
                "dynamic_sampling is on, but with advantage_estimator 'gae' a group of equal rewards teaches "
                "too: switch it off"
            )
        return
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in _OF_CRITIC and value != field.default:
            raise ConfigError(
                f"{field.name} is {value}, but advantage_estimator {config.advantage_estimator!r} has no "
                f"value head: set it to 'gae', or {field.name} to {field.default}"
            )
