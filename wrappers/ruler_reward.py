"""``RulerReward``: attempts at one task are paid by how a judge ranks them against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack, overload

import gymnasium as gym

from art_gym.wrappers.judging.base import Judge, JudgingError, Rubric
from art_gym.wrappers.ruler_scoring import GroupScorer, RulerOptions
from art_gym.wrappers.ruler_vector import RulerVectorReward

if TYPE_CHECKING:
    from art_gym.wrappers.ruler_group import RulerGroupReward


@overload
def RulerReward(
    env: gym.vector.VectorEnv[Any, Any, Any],
    judge: Judge,
    rubric: Rubric | None = None,
    *,
    group_size: int | None = None,
    **options: Unpack[RulerOptions],
) -> RulerVectorReward: ...
@overload
def RulerReward(
    env: Any, judge: Judge, rubric: Rubric | None = None, **options: Unpack[RulerOptions]
) -> RulerGroupReward: ...
def RulerReward(
    env: Any,
    judge: Judge,
    rubric: Rubric | None = None,
    *,
    group_size: int | None = None,
    **options: Unpack[RulerOptions],
) -> Any:
    """Wrap a group so that each attempt's reward is the score that a judge gives it beside the others.

    A judge compares, so it needs all attempts of a group at their ends, and those ends do not come at one
    time. Therefore an attempt's last step is held back, whole (observation, reward, flags and ``info``),
    until the last attempt of its group has ended; then all of them end in the same step, each with its score.
    Meanwhile the attempt observes ``WAITING``, is paid 0, has ``info["waiting"]``, and what it replies has no
    effect: a learner can leave those steps out.

    ``info`` holds, besides what the environment puts there:

    * ``independent_reward``: what the environment itself paid for the step; at the end also
      ``independent_return``, the sum.
    * ``ruler``, at the end: ``score``, ``explanation`` and ``parts`` as the judge gave them, and ``waited``,
      for how many steps the end was held back.
    * ``score_terms``, if the environment has them: they still sum to the reward.

    A judge that fails (``JudgeFailedError``) never becomes a reward of 0. The last reward of its attempts is
    ``nan``, which no learner takes for a score by mistake, ``info["ruler"]["failed"]`` holds the reason and
    ``explanation`` the message; ``scoring.failures`` counts these groups, by reason.

    Args:
        env: A PettingZoo ``ParallelEnv`` that is one group, such as ``GroupEnv``; or a Gymnasium
            ``VectorEnv`` in any autoreset mode. Put this wrapper next to it, others around this one.
        judge: Scores the attempts of a group. Groups that end in the same step are judged at the same time,
            from several threads.
        rubric: What the judge is to look for; ``None``: its own rubric.
        group_size: How many neighbouring environments of a vector environment are a group; ``None``: all.
        options: ``mode``, by default ``"replace"``: the last step pays the score and the others 0;
            ``"add"``: the score is added to the environment's own last reward; ``"weighted"``: the
            environment's rewards count ``1 - weight``, the score ``weight`` (by default 0.5).
            ``on_failure``, by default ``"nan"``; with ``"raise"`` ``step`` raises ``JudgeFailedError``, and
            the next call must be ``reset``.

    Returns:
        A wrapper of the same kind as ``env``.

    Raises:
        JudgingError: For arguments out of range.
        TypeError: For an environment that is neither, or whose observations or actions are not text.
        ValueError: For a vector environment that holds no whole groups, or does not say how it resets.
    """
    scoring = GroupScorer(judge, rubric, **options)
    if isinstance(env, gym.vector.VectorEnv):
        return RulerVectorReward(env, scoring, group_size)
    if isinstance(env, gym.Env):
        raise TypeError(
            f"{env} is one environment, and a group has several: use GroupEnv or gymnasium.make_vec, or "
            "RubricReward for attempts judged each by itself"
        )
    # PettingZoo is optional, so it is imported only here; the first of these says so if it is missing.
    from art_gym.wrappers.ruler_group import RulerGroupReward  # isort: skip
    from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

    if not isinstance(env, ParallelEnv):
        raise TypeError(f"a group is a PettingZoo ParallelEnv or a Gymnasium VectorEnv, not {env!r}")
    if group_size is not None:
        raise JudgingError("group_size is for vector environments: a ParallelEnv is one group")
    return RulerGroupReward(env, scoring)
