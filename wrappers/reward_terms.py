"""Combine a judge's score with the environment's reward, keeping ``score_terms`` the reward's parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

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
