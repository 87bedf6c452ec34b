"""``RubricReward``: pays a rubric's score at the end of an episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, SupportsFloat, get_args

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from art_gym.base import add_terms, require_choice
from art_gym.wrappers.judging.base import AttemptRecorder, Judge, judge_group
from art_gym.wrappers.judging.rubric_judge import RubricJudge

RewardMode = Literal["replace", "add", "weighted"]
"""How a judge's score is combined with the environment's reward."""

_TERM = "rubric"


class RubricReward(gym.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Pay a judge's score of the finished episode, at its last step; truncated episodes have one too.

    At every step ``info`` has ``independent_reward``, the environment's own reward, and at the end
    ``rubric``: ``{"score", "explanation", "parts"}``. ``score_terms`` are rewritten so that they sum to the
    reward paid; everything else, such as ``success``, stays as it is.

    A judge that compares attempts sees a group of one here: give it the group, see
    :class:`~art_gym.wrappers.judging.AttemptRecorder`. The transcript is in the wrapper: after
    ``env.unwrapped.restore`` it is not the restored episode's, so take no snapshots below a ``RubricReward``.

    Args:
        env: Any environment with text observations and actions.
        judge: By default a ``RubricJudge`` with the classic rubric.
        mode: ``"replace"``: the last step pays the score, those before it nothing. ``"add"``: the score comes
            on top of the environment's reward. ``"weighted"``: every step pays ``1 - weight`` of the
            environment's reward, the last one also ``weight`` of the score.
        weight: The score's share with ``mode="weighted"``, from 0 to 1.
        clock: Seconds since any moment, such as ``time.perf_counter``, to time the steps by: from an
            observation to the next, so the agent's thinking counts. Without it no times are known, and the
            same replies always get the same score.

    Raises:
        ValueError: For an unknown mode, or a weight out of range.
        JudgingError: From ``step``, for what cannot be judged.
        JudgeFailedError: From an episode's last ``step``, if the judge has no answer. The episode then has
            no reward.
    """

    def __init__(
        self,
        env: gym.Env[str, str],
        judge: Judge | None = None,
        *,
        mode: RewardMode = "replace",
        weight: float = 0.5,
        clock: Callable[[], float] | None = None,
    ) -> None:
        require_choice("mode", mode, get_args(RewardMode))
        if not 0 <= weight <= 1:
            raise ValueError(f"weight is the score's share of the reward, from 0 to 1, not {weight}")
        # A judge may hold what cannot be copied, such as a connection.
        RecordConstructorArgs.__init__(
            self, _disable_deepcopy=True, judge=judge, mode=mode, weight=weight, clock=clock
        )
        gym.Wrapper.__init__(self, env)
        self.judge: Judge = RubricJudge() if judge is None else judge
        self.shares = {"replace": (0.0, 1.0), "add": (1.0, 1.0), "weighted": (1 - weight, weight)}[mode]
        """What the environment's reward and the score count."""
        self._clock = clock
        self._since = 0.0
        self._recorder = AttemptRecorder()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode; an unfinished one is dropped."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._recorder.begin(observation, info)
        if self._clock is not None:
            self._since = self._clock()
        return observation, info

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step, and judge the episode if it ends with it."""
        observation, own, terminated, truncated, info = self.env.step(action)
        own = float(own)
        seconds = None
        if self._clock is not None:  # since the latest observation was handed out
            now = self._clock()
            seconds, self._since = now - self._since, now
        self._recorder.add(action, observation, own, terminated, truncated, info, seconds=seconds)
        result: dict[str, Any] = {}
        own_share, share = self.shares
        own_terms = info.get("score_terms", {"environment": own}) if own_share else {}
        terms = {name: own_share * value for name, value in own_terms.items()}
        if terminated or truncated:
            (score,) = judge_group(self.judge, [self._recorder.attempt("attempt")]).values()
            value = float(score.value)
            add_terms(terms, {_TERM: share * value})
            parts = {name: float(part) for name, part in score.parts.items()}
            result[_TERM] = {"score": value, "explanation": score.explanation, "parts": parts}
        info = {**info, "independent_reward": own, "score_terms": terms, **result}
        return observation, sum(terms.values(), 0.0), terminated, truncated, info
