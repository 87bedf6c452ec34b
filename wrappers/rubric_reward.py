"""``RubricReward``: pays a rubric's score at the end of an episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, SupportsFloat, get_args

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from art_gym.errors import did_you_mean
from art_gym.wrappers.judging.errors import JudgingError
from art_gym.wrappers.judging.judges import Judge, judge_group
from art_gym.wrappers.judging.recording import AttemptRecorder
from art_gym.wrappers.judging.rubric_judge import RubricJudge
from art_gym.wrappers.judging.rubrics import Score

RewardMode = Literal["replace", "add", "weighted"]
"""What becomes of the environment's own reward."""


def mixed_terms(
    own: Mapping[str, float], judged: Mapping[str, float] | None, mode: RewardMode, weight: float
) -> dict[str, float]:
    """The named parts of what a step pays.

    Args:
        own: The environment's.
        judged: The judge's; ``None`` before the last step.
        mode: What becomes of the environment's.
        weight: The judge's share with ``mode="weighted"``.
    """
    own_share = {"replace": 0.0, "add": 1.0, "weighted": 1 - weight}[mode]
    terms = {name: own_share * value for name, value in own.items()} if own_share else {}
    for name, value in (judged or {}).items():
        terms[name] = terms.get(name, 0.0) + (weight if mode == "weighted" else 1.0) * value
    return terms


_TERM = "rubric"
_OWN = "environment"  # the environment's reward as a term, where it names none


class RubricReward(gym.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Pay what a judge gives the finished episode, at its last step; truncated episodes have one too.

    ``info`` tells on every step ``independent_reward``, the environment's own reward, and at the end
    ``rubric``: ``{"score", "explanation", "parts"}``. ``score_terms`` are rewritten so that they sum to the
    reward paid; everything else, ``success`` among it, is left as it is.

    A judge that needs other attempts to compare with sees a group of one here; use ``RulerReward`` for it.
    The transcript lies in the wrapper: after ``env.unwrapped.restore`` it is not the restored episode's, so
    take snapshots below no ``RubricReward``.

    Args:
        env: Any environment with text observations and actions.
        judge: By default a ``RubricJudge`` with the classic rubric.
        mode: ``"replace"``: the last step pays the score, those before it nothing. ``"add"``: the score comes
            on top of the environment's reward. ``"weighted"``: every step pays ``1 - weight`` of the
            environment's reward, the last one ``weight`` of the score besides.
        weight: The score's share with ``mode="weighted"``, from 0 to 1.
        clock: Seconds since any moment, such as ``time.perf_counter``, to time the steps by: from an
            observation to the next, so the agent's thinking counts. Without it no times are known, and the
            same replies always get the same score.

    Raises:
        JudgingError: For an unknown mode, a weight out of range, or, from ``step``, what cannot be judged.
        JudgeFailed: From an episode's last ``step``, where the judge has no answer: such an episode has no
            reward, and none is made up.
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
        if mode not in get_args(RewardMode):
            raise JudgingError(f"no mode `{mode}`{did_you_mean(str(mode), get_args(RewardMode))}")
        if not 0 <= weight <= 1:
            raise JudgingError(f"weight is the score's share, from 0 to 1, not {weight}")
        # A judge may hold what cannot be copied, such as a connection.
        RecordConstructorArgs.__init__(
            self, _disable_deepcopy=True, judge=judge, mode=mode, weight=weight, clock=clock
        )
        gym.Wrapper.__init__(self, env)
        self.judge: Judge = RubricJudge() if judge is None else judge
        self.mode = mode
        self.weight = float(weight)
        self._clock = clock
        self._since = 0.0
        self._recorder = AttemptRecorder()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode; one that was not finished is forgotten."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._recorder.begin(observation, info)
        if self._clock is not None:
            self._since = self._clock()
        return observation, info

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step, and judge the episode where it ends with it."""
        observation, own, terminated, truncated, info = self.env.step(action)
        own = float(own)
        self._recorder.add(
            action, observation, own, terminated, truncated, info, seconds=self._seconds_since()
        )
        score: Score | None = None
        if terminated or truncated:
            attempt = self._recorder.attempt("attempt")
            score = judge_group(self.judge, [attempt])[attempt.id]
        judged = None if score is None else {_TERM: score.value}
        terms = mixed_terms(info.get("score_terms", {_OWN: own}), judged, self.mode, self.weight)
        info = {**info, "independent_reward": own, "score_terms": terms}
        if score is not None:
            info["rubric"] = {
                "score": float(score.value),
                "explanation": score.explanation,
                "parts": {name: float(value) for name, value in score.parts.items()},
            }
        return observation, sum(terms.values(), 0.0), terminated, truncated, info

    def _seconds_since(self) -> float | None:
        """The time since the latest observation was handed out."""
        if self._clock is None:
            return None
        now = self._clock()
        passed, self._since = now - self._since, now
        return passed
