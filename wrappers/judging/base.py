"""What judges share: attempts, rubrics, scores, the ``Judge`` protocol, and its exceptions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Protocol, SupportsFloat

from art_gym.errors import ArtGymError, ResetNeededError


class JudgingError(ArtGymError, ValueError):
    """A group, rubric, score or judge that is not valid; a mistake of the caller's."""


class JudgeFailedError(ArtGymError, RuntimeError):
    """A judge gave no usable answer about a group.

    The group's attempts are then left out of the update; they never get a made-up score.

    Attributes:
        reason: One word for counting, such as ``"timeout"``, ``"malformed"``, ``"refused"`` or ``"budget"``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Step:
    """One reply and its result."""

    reply: str
    observation: str
    reward: float = 0.0
    call: Mapping[str, Any] | None = None
    """The tool call that was read from the reply, ``{"name": …, "arguments": {…}}``."""
    error: Mapping[str, Any] | None = None
    """What was wrong with the reply, ``{"kind": …, "message": …}``; ``None`` for a valid call."""
    seconds: float | None = None
    """Wall time of the reply and the environment's answer, ``None`` if unknown; data, so that a replay gets
    the same score."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a task, from its first observation to its end.

    Attributes:
        id: Names the attempt within its group; a judge answers by it.
        task: The task as the agent saw it: the first observation.
        steps: The turns, in order.
        tools: Schemas of the tools it had, in OpenAI's format.
        ending: How it ended, such as ``"terminated"`` or ``"truncated"``.
        success: As the environment reports it; hidden from judges that must not know the truth.
        facts: What the environment knows about the episode, see :meth:`art_gym.env.TextEnv.facts`.
    """

    id: str
    task: str
    steps: tuple[Step, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    ending: str = "terminated"
    success: bool | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reward(self) -> float:
        """The environment's own reward, summed over the steps."""
        return sum(step.reward for step in self.steps)


_UNFINISHED = "unfinished"


class AttemptRecorder:
    """Records one attempt at a time, for a judge.

    ::

        recorder.begin(*env.reset(seed=3))
        while not recorder.ended:
            reply = ...
            recorder.add(reply, *env.step(reply))

    Attempts from the same seed are a group: ``judge_group(judge, [recorder.attempt("a"), …])``.

    It works with any environment whose observations and actions are text: what its ``info`` lacks is left
    empty in the attempt. The ending of an attempt that is still running is ``"unfinished"``.
    """

    def __init__(self) -> None:
        self._attempt: Attempt | None = None

    def begin(self, observation: str, info: Mapping[str, Any]) -> None:
        """Begin a new attempt with what ``reset`` returned; the one before it is dropped."""
        self._attempt = Attempt("", observation, (), tuple(info.get("tools") or ()), ending=_UNFINISHED)

    def add(
        self,
        reply: str,
        observation: str,
        reward: SupportsFloat,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any],
        seconds: float | None = None,
    ) -> None:
        """Record one step: the reply, what ``step`` returned, and the seconds it took, if measured.

        Raises:
            ResetNeededError: Before :meth:`begin` or after the attempt's end.
        """
        if self._attempt is None or self.ended:
            raise ResetNeededError("begin() an attempt before adding steps: none is running")
        step = Step(reply, observation, float(reward), info.get("call"), info.get("error"), seconds)
        self._attempt = replace(self._attempt, steps=(*self._attempt.steps, step))
        if terminated or truncated:
            success = info.get("success")
            self._attempt = replace(
                self._attempt,
                ending="terminated" if terminated else "truncated",
                success=None if success is None else bool(success),
                facts=dict(info.get("facts") or {}),
            )

    @property
    def ended(self) -> bool:
        """Whether the attempt is over."""
        return self._attempt is not None and self._attempt.ending != _UNFINISHED

    def attempt(self, id: str) -> Attempt:
        """The attempt so far, named ``id``.

        Raises:
            ResetNeededError: Before :meth:`begin`.
        """
        if self._attempt is None:
            raise ResetNeededError("begin() an attempt first: there is nothing to judge")
        return replace(self._attempt, id=id)


def check_group(group: Sequence[Attempt]) -> None:
    """Check that a judge can compare the attempts.

    Raises:
        JudgingError: For an empty group, an id that two attempts share, or attempts at different tasks.
    """
    if not group:
        raise JudgingError("a group to judge holds at least one attempt, this one is empty")
    ids = [attempt.id for attempt in group]
    for id_ in ids:
        if ids.count(id_) > 1:
            raise JudgingError(f"{ids.count(id_)} attempts share the id {id_!r}: give each its own")
    tasks = {attempt.task for attempt in group}
    if len(tasks) > 1:
        raise JudgingError(
            f"a group holds attempts at one task, this one holds {len(tasks)} tasks: judge each task's group "
            "by itself"
        )


_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that a judge looks for."""

    name: str
    weight: float
    """Its share of the score, from 0 to 1."""
    description: str = ""
    """What it means, for a model or a reader."""

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise JudgingError("a criterion needs a name")
        if not isinstance(self.weight, int | float) or not 0 <= self.weight <= 1:
            raise JudgingError(f"criterion `{self.name}` has weight {self.weight}: set a number from 0 to 1")


@dataclass(frozen=True, slots=True)
class Rubric:
    """Criteria whose weights sum to 1.

    Attributes:
        criteria: At least one.
        guidance: Instructions for a model about the score as a whole; judges without a model do not read it.

    Raises:
        JudgingError: For no criteria, a name twice, or weights that do not sum to 1.
    """

    criteria: tuple[Criterion, ...]
    guidance: str = ""

    def __post_init__(self) -> None:
        names = self.names
        if not names:
            raise JudgingError("a rubric needs at least one criterion")
        for name in names:
            if names.count(name) > 1:
                raise JudgingError(f"the rubric names criterion `{name}` {names.count(name)} times")
        total = math.fsum(criterion.weight for criterion in self.criteria)
        if not abs(total - 1) <= _SUM_TOLERANCE:
            shown = ", ".join(f"{criterion.name} {criterion.weight:g}" for criterion in self.criteria)
            raise JudgingError(f"a rubric's weights sum to 1, these sum to {total:g}: {shown}")

    @property
    def names(self) -> tuple[str, ...]:
        """The criteria's names, in order."""
        return tuple(criterion.name for criterion in self.criteria)

    @classmethod
    def of(cls, weights: Mapping[str, float], guidance: str = "") -> Rubric:
        """A rubric from weights by name."""
        return cls(tuple(Criterion(name, weight) for name, weight in weights.items()), guidance)


@dataclass(frozen=True, slots=True)
class Score:
    """How good an attempt was.

    Raises:
        JudgingError: If the value or a part is not a number from 0 to 1.
    """

    value: float
    """From 0 to 1."""
    explanation: str = ""
    """The reason, as text."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Each criterion's own score from 0 to 1, if the judge has them."""

    def __post_init__(self) -> None:
        for name, value in [("value", self.value), *self.parts.items()]:
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value <= 1:
                raise JudgingError(f"a score's {name} is a number from 0 to 1, not {value!r}")
        object.__setattr__(self, "value", float(self.value))  # NumPy's too, which JSON cannot hold
        object.__setattr__(self, "parts", {name: float(value) for name, value in self.parts.items()})


class Judge(Protocol):
    """Scores the attempts of one group against each other.

    Judges may be called from several threads at the same time.
    """

    def __call__(self, group: Sequence[Attempt], rubric: Rubric | None = None) -> Mapping[str, Score]:
        """Return a score for each attempt, by its id.

        Args:
            group: Attempts at one task, each with an id of its own.
            rubric: What to look for; ``None``: the judge's own rubric.

        Raises:
            JudgingError: For a group or rubric that cannot be judged.
            JudgeFailedError: If there was no usable answer.
        """


def judge_group(judge: Judge, group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
    """Ask a judge and check that it scored each attempt exactly once.

    Raises:
        JudgingError: For a group or rubric that cannot be judged.
        JudgeFailedError: If the judge gave no usable answer, or scored other attempts.
        TypeError: If it returned something else than scores.
    """
    check_group(group)
    scores = judge(group, rubric)
    if not isinstance(scores, Mapping) or not all(isinstance(one, Score) for one in scores.values()):
        raise TypeError(f"a judge returns a dict with a Score for each attempt's id, not {scores!r:.80}")
    wanted = {attempt.id for attempt in group}
    if scores.keys() != wanted:
        missing, unknown = sorted(wanted - scores.keys()), sorted(map(str, scores.keys() - wanted))
        raise JudgeFailedError("malformed", f"the judge left out {missing} and scored the unknown {unknown}")
    return {attempt.id: scores[attempt.id] for attempt in group}
