"""``RulerReward``: attempts at one task are paid by how a judge ranks them against each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import gymnasium as gym

from art_gym.errors import ResetNeededError
from art_gym.games.seats import text_of
from art_gym.wrappers.group_scorer import GroupScorer, OnFailure, Verdict
from art_gym.wrappers.judging.base import AttemptRecorder, Judge, JudgeFailedError, JudgingError, Rubric
from art_gym.wrappers.reward_terms import RewardMix, RewardMode, own_terms

try:
    from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
    from pettingzoo.utils import BaseParallelWrapper  # type: ignore[import-untyped]
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        'RulerReward needs PettingZoo, which is not installed: pip install "art-gym[pettingzoo]"',
        name=missing.name,
    ) from missing

WAITING: Final = "This attempt is over and waits for the others of its group. What you reply has no effect."
"""What an attempt observes while its last step is held back."""

_TERM = "ruler"


class Transition(NamedTuple):
    """What ``step`` returns about one attempt."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


@dataclass(slots=True)
class _Member:
    """An attempt of the group while it is played."""

    recorder: AttemptRecorder = field(default_factory=AttemptRecorder)
    held: Transition | None = None
    """The last step, once the attempt has ended."""
    waited: int = 0
    total: float = 0.0


class RulerReward(BaseParallelWrapper):  # type: ignore[misc]  # PettingZoo has no type hints
    """Pays every agent of a group the score that a judge gives its attempt beside the others.

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
    ``explanation`` the message; ``scoring`` counts these groups, by reason.

    Args:
        env: A PettingZoo ``ParallelEnv`` that is one group, such as ``GroupEnv``. Put this wrapper next to
            it, others around this one.
        judge: Scores the attempts of a group.
        rubric: What the judge is to look for; ``None``: its own rubric.
        mode: ``"replace"``: the last step pays the score and the others 0; ``"add"``: the score is added to
            the environment's own last reward; ``"weighted"``: the environment's rewards count
            ``1 - weight``, the score ``weight``.
        weight: The score's share with ``"weighted"``, from 0 to 1.
        on_failure: With ``"raise"`` ``step`` raises ``JudgeFailedError``, and the next call must be
            ``reset``.

    Raises:
        JudgingError: For arguments out of range.
        TypeError: For an environment that is no group, or whose observations are not ``{"text": …}``.
    """

    def __init__(
        self,
        env: ParallelEnv,
        judge: Judge,
        rubric: Rubric | None = None,
        *,
        mode: RewardMode = "replace",
        weight: float = 0.5,
        on_failure: OnFailure = "nan",
    ) -> None:
        _require_group(env)
        super().__init__(env)
        self.scoring = GroupScorer(judge, rubric, on_failure=on_failure)
        self.agents: list[str] = []
        self._mix = RewardMix(mode, weight)
        self._members: dict[str, _Member] = {}

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin the group."""
        self.agents = []
        observations, infos = self.env.reset(seed=seed, options=options)
        self._members = {name: _Member() for name in self.env.possible_agents}
        first = next(iter(self._members))
        for name, member in self._members.items():
            if observations[name] != observations[first]:
                raise JudgingError(
                    f"{name} began differently from {first}: a group needs equal seeds, and an environment "
                    "that draws all its chance from np_random"
                )
            member.recorder.begin(text_of(observations[name]), infos[name])
        self.agents = list(self._members)
        return observations, infos

    def step(
        self, actions: Mapping[str, str]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]:
        """Let the attempts that have not ended reply; when the last has ended, all end, each with its score.

        Args:
            actions: The whole reply of each agent; what an agent that waits replies is dropped.
        """
        if not self.agents:
            raise ResetNeededError("call reset() first: no group is running")
        waiting = {name: member for name, member in self._members.items() if member.held is not None}
        shown = {name: _wait(member) for name, member in waiting.items()}
        live = {name: reply for name, reply in actions.items() if name not in waiting}
        steps = self.env.step(live)
        for name in steps[0]:
            observation, *rest = (part[name] for part in steps)
            shown[name] = self._record(name, live[name], Transition(text_of(observation), *rest))
        if all(member.held is not None for member in self._members.values()):
            self.agents = []
            shown = self._pay()
        ordered = {name: shown[name] for name in self._members}
        return (
            {name: {"text": seen.observation} for name, seen in ordered.items()},
            {name: seen.reward for name, seen in ordered.items()},
            {name: seen.terminated for name, seen in ordered.items()},
            {name: seen.truncated for name, seen in ordered.items()},
            {name: seen.info for name, seen in ordered.items()},
        )

    def _record(self, name: str, reply: str, transition: Transition) -> Transition:
        """Record a step of an attempt; return what is shown of it."""
        member = self._members[name]
        member.recorder.add(reply, *transition)
        member.total += transition.reward
        if member.recorder.ended:
            member.held = transition
            return _wait(member)
        return self._paid(transition)

    def _pay(self) -> dict[str, Transition]:
        """Every attempt's last step, with its score."""
        attempts = [member.recorder.attempt(name) for name, member in self._members.items()]
        (verdict,) = self.scoring.verdicts([attempts])
        return {name: self._last(name, member, verdict) for name, member in self._members.items()}

    def _last(self, name: str, member: _Member, verdict: Verdict) -> Transition:
        assert member.held is not None
        details: dict[str, Any]
        if isinstance(verdict, JudgeFailedError):
            value = math.nan
            details = {"explanation": str(verdict), "failed": verdict.reason}
        else:
            value = float(verdict[name].value)
            details = {"explanation": verdict[name].explanation, "parts": dict(verdict[name].parts)}
        # The step in which the last attempt ends shows every attempt's end, so it is none of waiting.
        result = {"score": value, **details, "waited": member.waited - 1}
        paid = self._paid(member.held, value)
        return paid._replace(info=paid.info | {"independent_return": member.total, "ruler": result})

    def _paid(self, transition: Transition, score: float | None = None) -> Transition:
        """A step with its reward; ``score`` is ``None`` before the last one."""
        terms = self._mix.terms(own_terms(transition.info, transition.reward), _TERM, score)
        info = transition.info | {"independent_reward": transition.reward, "score_terms": terms}
        return transition._replace(reward=sum(terms.values(), 0.0), info=info)


def _wait(member: _Member) -> Transition:
    """What is shown of an attempt that has ended, in each step until the group is over."""
    member.waited += 1
    info = {"waiting": True, "independent_reward": 0.0, "score_terms": {}}
    return Transition(WAITING, 0.0, False, False, info)


def _require_group(env: Any) -> None:
    if isinstance(env, gym.Env):
        raise TypeError(
            f"{env} is one environment, and a group has several: use GroupEnv, or RubricReward for attempts "
            "judged each by itself"
        )
    if not isinstance(env, ParallelEnv):
        raise TypeError(f"a group is a PettingZoo ParallelEnv such as GroupEnv, not {env!r}")
    for name in env.possible_agents:
        space = env.observation_space(name)
        if {"text": WAITING} not in space:
            raise TypeError(f'a judge reads texts: observations must be {{"text": …}}, those are {space}')
