"""What the two kinds of ``RulerReward`` share: following a group's attempts, judging and paying them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, get_args

from art_gym.errors import did_you_mean
from art_gym.wrappers.judging.attempts import Attempt
from art_gym.wrappers.judging.errors import JudgeFailed, JudgingError
from art_gym.wrappers.judging.judges import Judge, judge_group
from art_gym.wrappers.judging.recording import AttemptRecorder
from art_gym.wrappers.judging.rubrics import Rubric, Score
from art_gym.wrappers.rubric_reward import RewardMode, mixed_terms

WAITING: Final = "This attempt is over and waits for the others of its group. What you reply has no effect."
"""What an attempt observes while its last step is held back."""

OnFailure = Literal["nan", "raise"]
"""What becomes of a group that the judge fails on."""

_TERM = "ruler"
_OWN = "environment"  # the environment's reward as a term, where it names none
_MOST_THREADS = 8

Verdict = Mapping[str, Score] | JudgeFailed


class Transition(NamedTuple):
    """What ``step`` returns about one attempt."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @property
    def ends(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


@dataclass(slots=True)
class Scoring:
    """How groups are judged and paid, checked once; it counts what the judge did.

    Raises:
        JudgingError: For an unknown ``mode`` or ``on_failure``, or a ``weight`` out of range.
        TypeError: Where the judge cannot be called.
    """

    judge: Judge
    rubric: Rubric | None = None
    mode: RewardMode = "replace"
    weight: float = 0.5
    on_failure: OnFailure = "nan"
    judged: int = 0
    """How many groups were scored."""
    failures: Counter[str] = field(default_factory=Counter)
    """How many groups the judge failed on, by reason."""

    def __post_init__(self) -> None:
        if not callable(self.judge):
            raise TypeError(f"a judge is called with a group and a rubric, {self.judge!r} cannot be called")
        for name, value, known in (
            ("mode", self.mode, get_args(RewardMode)),
            ("on_failure", self.on_failure, get_args(OnFailure)),
        ):
            if value not in known:
                raise JudgingError(f"no {name} `{value}`{did_you_mean(str(value), known)}")
        if not 0 <= self.weight <= 1:
            raise JudgingError(f"weight is the score's share of the reward, from 0 to 1, not {self.weight}")

    def verdicts(self, groups: Sequence[Sequence[Attempt]]) -> list[Verdict]:
        """Judge groups, several at the same time, and count how it went.

        Raises:
            JudgingError: For a group or rubric that cannot be judged.
            JudgeFailed: Where the judge has no usable answer and ``on_failure`` is ``"raise"``.
        """
        if len(groups) == 1:
            found = [self._verdict(groups[0])]
        else:
            with ThreadPoolExecutor(min(len(groups), _MOST_THREADS)) as threads:
                found = list(threads.map(self._verdict, groups))
        failures = [verdict for verdict in found if isinstance(verdict, JudgeFailed)]
        self.failures.update(failure.reason for failure in failures)
        self.judged += len(found) - len(failures)
        if failures and self.on_failure == "raise":
            raise failures[0]
        return found

    def paid(self, transition: Transition, score: float | None = None) -> Transition:
        """A step with what is paid for it; ``score`` is ``None`` before the last one."""
        own = transition.info.get("score_terms", {_OWN: transition.reward})
        judged = None if score is None else {_TERM: score}
        terms = mixed_terms(own, judged, self.mode, self.weight)
        info = transition.info | {"independent_reward": transition.reward, "score_terms": terms}
        return transition._replace(reward=sum(terms.values(), 0.0), info=info)

    def _verdict(self, group: Sequence[Attempt]) -> Verdict:
        try:
            return judge_group(self.judge, group, self.rubric)
        except JudgeFailed as failure:
            return failure


class JudgedGroup:
    """The attempts of one group, from their first observations until they are judged.

    An attempt's last step is held back until the last attempt of the group has ended. Only then can it be
    judged beside the others, and only with a last step can a reward be paid that every learner will see.

    Args:
        scoring: How it is judged and paid.
        names: The attempts' ids.
    """

    def __init__(self, scoring: Scoring, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._scoring = scoring
        self._recorders = {name: AttemptRecorder() for name in names}
        self._held: dict[str, Transition] = {}
        self._waited = dict.fromkeys(names, 0)
        self._returns = dict.fromkeys(names, 0.0)

    def begin(self, starts: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
        """Begin anew with what ``reset`` gave each attempt.

        Raises:
            JudgingError: Where the attempts do not begin alike, so that they cannot be compared.
        """
        first = starts[self.names[0]][0]
        for name in self.names:
            observation, info = starts[name]
            if observation != first:
                raise JudgingError(
                    f"{name} began differently from {self.names[0]}: a group needs equal seeds, and an "
                    "environment that draws all its chance from np_random"
                )
            self._recorders[name].begin(observation, info)
        self._held = {}
        self._waited = dict.fromkeys(self.names, 0)
        self._returns = dict.fromkeys(self.names, 0.0)

    @property
    def over(self) -> bool:
        """Whether every attempt has ended."""
        return len(self._held) == len(self.names)

    def waits(self, name: str) -> bool:
        """Whether an attempt has ended, its last step being held back."""
        return name in self._held

    def see(self, name: str, reply: str, transition: Transition) -> Transition:
        """Take down a step of an attempt; what is shown of it outside."""
        self._recorders[name].add(reply, *transition)
        self._returns[name] += transition.reward
        if transition.ends:
            self._held[name] = transition
            return self.wait(name)
        return self._scoring.paid(transition)

    def wait(self, name: str) -> Transition:
        """What is shown of an attempt that has ended, in each step until the group is over."""
        self._waited[name] += 1
        info = {"waiting": True, "independent_reward": 0.0, "score_terms": {}}
        return Transition(WAITING, 0.0, False, False, info)

    def attempts(self) -> list[Attempt]:
        """The attempts, for a judge."""
        return [self._recorders[name].attempt(name) for name in self.names]

    def pay(self, verdict: Verdict) -> dict[str, Transition]:
        """Every attempt's last step, with what the judge made of it."""
        return {name: self._last(name, verdict) for name in self.names}

    def _last(self, name: str, verdict: Verdict) -> Transition:
        if isinstance(verdict, JudgeFailed):
            score = math.nan
            told = {"score": score, "explanation": str(verdict), "failed": verdict.reason}
        else:
            score = float(verdict[name].value)
            told = {"score": score, "explanation": verdict[name].explanation}
            told["parts"] = dict(verdict[name].parts)
        # The step in which the last attempt ends shows every attempt's end, so it is none of waiting.
        told["waited"] = self._waited[name] - 1
        paid = self._scoring.paid(self._held[name], score)
        return paid._replace(info=paid.info | {"independent_return": self._returns[name], "ruler": told})
