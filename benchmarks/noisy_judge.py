"""A judge that is wrong by a known amount: how much error of a judge can training stand?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from art_gym.wrappers.judging import Attempt, JudgingError, Rubric, Score, check_group

_DIGITS = 9
"""Rewards that agree to so many are equal: sums of the same terms in other orders differ by rounding."""


class NoisyJudge:
    """Ranks by the environment's own reward, except for a share of the groups, whose scores it shuffles.

    An attempt's score is its place in the group by reward, from 0 for the worst to 1 for the best; equal
    rewards share the mean of their places, and a group whose rewards are all equal scores 0.5. With
    probability ``noise`` the scores of a group are dealt out again in a random order. Two things then hold
    exactly, whatever the rewards and their ties:

    * Kendall's tau-b with the true rewards is ``1 - noise`` in expectation: 1 for a group that is ranked,
      and 0 on average for one that is shuffled. An untied pair is ranked wrongly with probability
      ``noise / 2``.
    * Each attempt's advantage in GRPO is ``1 - noise`` times what a perfect ranking gives, in expectation:
      shuffling changes neither the mean nor the standard deviation of a group's scores. The rest is noise
      around 0.

    What happens to a group hangs on ``seed`` and the group's content alone: neither the attempts' order nor
    their ids, nor which groups came before, make a difference. The same group is always judged alike.

    Args:
        noise: The share of the groups that are shuffled, in [0, 1].
        seed: Which groups, and how.

    Raises:
        JudgingError: Where ``noise`` is no share, or ``seed`` is negative.
    """

    def __init__(self, noise: float, seed: int = 0) -> None:
        if not 0 <= noise <= 1:
            raise JudgingError(f"noise is a share from 0 to 1, got {noise}")
        if seed < 0:
            raise JudgingError(f"seed is at least 0, got {seed}")
        self.noise = noise
        self.seed = seed

    def __call__(self, group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        """Score the attempts of a group, by id.

        Args:
            group: Attempts at one task, with the environment's own rewards.
            rubric: Is not looked at.

        Raises:
            JudgingError: For a group that cannot be judged.
        """
        check_group(group)
        contents = {attempt.id: _content(attempt) for attempt in group}
        ordered = sorted(group, key=lambda attempt: contents[attempt.id])
        digest = hashlib.sha256(b"".join(sorted(contents.values()))).digest()
        rng = np.random.default_rng([self.seed, *digest])
        values_N = _places([round(attempt.reward, _DIGITS) for attempt in ordered])
        words = "ranked by its reward"
        if rng.random() < self.noise:
            values_N = rng.permutation(values_N)
            words = "shuffled"
        scores = {a.id: Score(float(v), words) for a, v in zip(ordered, values_N, strict=True)}
        return {attempt.id: scores[attempt.id] for attempt in group}


def _places(rewards: Sequence[float]) -> np.ndarray:
    """For each reward the share of the others that it beats; a draw is half a win."""
    if len(rewards) == 1:
        return np.array([0.5])
    rewards_N = np.asarray(rewards, dtype=np.float64)
    beaten_N = (rewards_N[:, None] > rewards_N[None, :]).sum(axis=1)
    drawn_N = (rewards_N[:, None] == rewards_N[None, :]).sum(axis=1) - 1
    places: np.ndarray = (beaten_N + 0.5 * drawn_N) / (len(rewards) - 1)
    return places


def _content(attempt: Attempt) -> bytes:
    """A digest of what the attempt did and what it earned."""
    steps = [(step.reply, step.observation, step.reward) for step in attempt.steps]
    text = json.dumps([attempt.task, attempt.ending, steps])
    return hashlib.sha256(text.encode()).digest()
