"""Wrappers that change the reward and keep ``score_terms`` correct.

Gymnasium's ``TransformReward`` and ``ClipReward`` change the number alone; afterwards the named parts in
``info["score_terms"]`` no longer sum to it. These add or change a term, so that the sum stays the reward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, SupportsFloat, get_args

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from art_gym.errors import did_you_mean
from art_gym.wrappers.judging.base import JudgingError

RewardMode = Literal["replace", "add", "weighted"]
"""How a judge's score is combined with the environment's reward."""


def own_terms(info: Mapping[str, Any], reward: float) -> dict[str, float]:
    """The environment's score terms; its reward as the term ``environment`` if it names none."""
    return dict(info.get("score_terms", {"environment": float(reward)}))


@dataclass(frozen=True, slots=True)
class RewardMix:
    """How a judge's score is combined with the environment's reward.

    Attributes:
        mode: ``"replace"``: the score alone is paid. ``"add"``: the score is added to the environment's
            reward. ``"weighted"``: ``weight`` of the score, and ``1 - weight`` of the environment's reward.
        weight: The score's share with ``"weighted"``, from 0 to 1.

    Raises:
        JudgingError: For an unknown mode, or a weight out of range.
    """

    mode: RewardMode = "replace"
    weight: float = 0.5

    def __post_init__(self) -> None:
        if self.mode not in get_args(RewardMode):
            raise JudgingError(f"no mode `{self.mode}`{did_you_mean(str(self.mode), get_args(RewardMode))}")
        if not 0 <= self.weight <= 1:
            raise JudgingError(f"weight is the score's share of the reward, from 0 to 1, not {self.weight}")

    def terms(self, own: Mapping[str, float], term: str, score: float | None) -> dict[str, float]:
        """The named parts of a step's reward.

        Args:
            own: The environment's.
            term: The name of the judge's.
            score: ``None`` before the last step.
        """
        own_share = {"replace": 0.0, "add": 1.0, "weighted": 1 - self.weight}[self.mode]
        terms = {name: own_share * value for name, value in own.items()} if own_share else {}
        if score is not None:
            share = self.weight if self.mode == "weighted" else 1.0
            terms[term] = terms.get(term, 0.0) + share * score
        return terms


class _RewardTerms(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Pays the sum of the terms that :meth:`terms` makes of the environment's."""

    def terms(self, own: dict[str, float]) -> dict[str, float]:
        """The named parts of the reward that is paid, from those of the environment's reward."""
        raise NotImplementedError

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step, with the reward changed."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        terms = self.terms(own_terms(info, float(reward)))
        paid = sum(terms.values(), 0.0)
        return observation, paid, terminated, truncated, info | {"score_terms": terms}


class StepPenalty(_RewardTerms):
    """Subtract the same amount at every step, so that of two ways to one end the shorter pays more.

    Args:
        env: Any environment.
        penalty: What a step costs, the term ``step_penalty``; 0 or more.

    Raises:
        ValueError: For a penalty that is negative or no number.
    """

    def __init__(self, env: gym.Env[Any, Any], penalty: float) -> None:
        if not 0 <= penalty < math.inf:
            raise ValueError(f"penalty is subtracted at every step and must be 0 or more, not {penalty}")
        RecordConstructorArgs.__init__(self, penalty=penalty)
        gym.Wrapper.__init__(self, env)
        self.penalty = float(penalty)

    def terms(self, own: dict[str, float]) -> dict[str, float]:
        """The environment's, and the penalty."""
        own["step_penalty"] = own.get("step_penalty", 0.0) - self.penalty
        return own


class RewardScale(_RewardTerms):
    """Multiply every reward, and every term of it, by the same factor.

    Args:
        env: Any environment.
        scale: The factor.

    Raises:
        ValueError: For a factor that is no number.
    """

    def __init__(self, env: gym.Env[Any, Any], scale: float) -> None:
        if not math.isfinite(scale):
            raise ValueError(f"scale must be a number, not {scale}")
        RecordConstructorArgs.__init__(self, scale=scale)
        gym.Wrapper.__init__(self, env)
        self.scale = float(scale)

    def terms(self, own: dict[str, float]) -> dict[str, float]:
        """The environment's, multiplied."""
        return {name: self.scale * value for name, value in own.items()}


class RewardClip(_RewardTerms):
    """Keep every step's reward within bounds; what was cut off or filled up is the term ``clip``.

    Args:
        env: Any environment.
        low: The least that a step pays.
        high: The most.

    Raises:
        ValueError: If there is no number from ``low`` to ``high``.
    """

    def __init__(self, env: gym.Env[Any, Any], low: float = -math.inf, high: float = math.inf) -> None:
        if not low <= high or low == math.inf or high == -math.inf:
            raise ValueError(f"no reward is from {low} to {high}: set low to at most high")
        RecordConstructorArgs.__init__(self, low=low, high=high)
        gym.Wrapper.__init__(self, env)
        self.low, self.high = float(low), float(high)

    def terms(self, own: dict[str, float]) -> dict[str, float]:
        """The environment's, and the term that brings their sum into bounds."""
        reward = sum(own.values(), 0.0)
        clipped = min(max(reward, self.low), self.high)
        return own if clipped == reward else {**own, "clip": own.get("clip", 0.0) + clipped - reward}
