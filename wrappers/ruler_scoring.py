"""What the two kinds of ``RulerReward`` share: recording a group's attempts, judging and paying them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypedDict, get_args

from art_gym.errors import did_you_mean
from art_gym.wrappers.judging.base import (
    Attempt,
    AttemptRecorder,
    Judge,
    JudgeFailedError,
    JudgingError,
    Rubric,
    Score,
    judge_group,
)
from art_gym.wrappers.reward_terms import RewardMix, RewardMode, own_terms

WAITING: Final = "This attempt is over and waits for the others of its group. What you reply has no effect."
"""What an attempt observes while its last step is held back."""

OnFailure = Literal["nan", "raise"]
"""What happens to a group that the judge fails on."""

_TERM = "ruler"
_MOST_THREADS = 8

Verdict = Mapping[str, Score] | JudgeFailedError


class RulerOptions(TypedDict, total=False):
    """The options of :func:`art_gym.wrappers.ruler_reward.RulerReward` for every kind of group."""

    mode: RewardMode
    weight: float
    on_failure: OnFailure


class Transition(NamedTuple):
    """What ``step`` returns about one attempt."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class GroupScorer:
    """How groups are judged and paid; counts ``judged`` groups, and ``failures`` of the judge by reason.

    Raises:
        JudgingError: For an unknown ``mode`` or ``on_failure``, or a ``weight`` out of range.
        TypeError: If the judge cannot be called.
    """

    def __init__(
        self,
        judge: Judge,
        rubric: Rubric | None = None,
        *,
        mode: RewardMode = "replace",
        weight: float = 0.5,
        on_failure: OnFailure = "nan",
    ) -> None:
        if not callable(judge):
            raise TypeError(f"a judge is called with a group and a rubric, {judge!r} cannot be called")
        if on_failure not in get_args(OnFailure):
            raise JudgingError(f"no on_failure `{on_failure}`{did_you_mean(on_failure, get_args(OnFailure))}")
        self.judge, self.rubric, self.on_failure = judge, rubric, on_failure
        self.mix = RewardMix(mode, weight)
        self.judged = 0
        self.failures: Counter[str] = Counter()

    def verdicts(self, groups: Sequence[Sequence[Attempt]]) -> list[Verdict]:
        """Judge groups, several at the same time, and count the results."""
        if len(groups) == 1:
            found = [self._verdict(groups[0])]
        else:
            with ThreadPoolExecutor(min(len(groups), _MOST_THREADS)) as threads:
                found = list(threads.map(self._verdict, groups))
        failures = [verdict for verdict in found if isinstance(verdict, JudgeFailedError)]
        self.failures.update(failure.reason for failure in failures)
        self.judged += len(found) - len(failures)
        if failures and self.on_failure == "raise":
            raise failures[0]
        return found

    def paid(self, transition: Transition, score: float | None = None) -> Transition:
        """A step with its reward; ``score`` is ``None`` before the last one."""
        terms = self.mix.terms(own_terms(transition.info, transition.reward), _TERM, score)
        info = transition.info | {"independent_reward": transition.reward, "score_terms": terms}
        return transition._replace(reward=sum(terms.values(), 0.0), info=info)

    def _verdict(self, group: Sequence[Attempt]) -> Verdict:
        try:
            return judge_group(self.judge, group, self.rubric)
        except JudgeFailedError as failure:
            return failure


@dataclass(slots=True)
class _Member:
    """An attempt of a group while it is played."""

    recorder: AttemptRecorder = field(default_factory=AttemptRecorder)
    held: Transition | None = None
    """The last step, once the attempt has ended."""
    waited: int = 0
    total: float = 0.0


class GroupTracker:
    """The attempts of one group, from their first observations until they are judged.

    An attempt's last step is held back until the last attempt of the group has ended. Only then can it be
    compared with the others, and only with a last step can a reward be paid that every learner will see.

    Args:
        scoring: How the group is judged and paid.
        names: The attempts' ids.
    """

    def __init__(self, scoring: GroupScorer, names: Sequence[str]) -> None:
        self._scoring = scoring
        self.names = tuple(names)
        self._members: dict[str, _Member] = {}

    def begin(self, starts: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
        """Begin a new group with what ``reset`` returned for each attempt."""
        first = starts[self.names[0]][0]
        self._members = {name: _Member() for name in self.names}
        for name, member in self._members.items():
            observation, info = starts[name]
            if observation != first:
                raise JudgingError(
                    f"{name} began differently from {self.names[0]}: a group needs equal seeds, and an "
                    "environment that draws all its chance from np_random"
                )
            member.recorder.begin(observation, info)

    @property
    def over(self) -> bool:
        """Whether every attempt has ended."""
        return all(map(self.waits, self.names))

    def waits(self, name: str) -> bool:
        """Whether an attempt has ended, its last step being held back."""
        return name in self._members and self._members[name].held is not None

    def record(self, name: str, reply: str, transition: Transition) -> Transition:
        """Record a step of an attempt; return what is shown of it."""
        member = self._members[name]
        member.recorder.add(reply, *transition)
        member.total += transition.reward
        if member.recorder.ended:
            member.held = transition
            return self.wait(name)
        return self._scoring.paid(transition)

    def wait(self, name: str) -> Transition:
        """What is shown of an attempt that has ended, in each step until the group is over."""
        self._members[name].waited += 1
        info = {"waiting": True, "independent_reward": 0.0, "score_terms": {}}
        return Transition(WAITING, 0.0, False, False, info)

    def attempts(self) -> list[Attempt]:
        """The attempts, for a judge."""
        return [member.recorder.attempt(name) for name, member in self._members.items()]

    def pay(self, verdict: Verdict) -> dict[str, Transition]:
        """Every attempt's last step, with its score."""
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
        paid = self._scoring.paid(member.held, value)
        return paid._replace(info=paid.info | {"independent_return": member.total, "ruler": result})
