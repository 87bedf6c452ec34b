"""``RubricJudge`` scores attempts by a rubric without a model; the four classic criteria.

Without an expected result nothing in a transcript tells whether it is right: what counts as accuracy then is
the form of the attempt, which can be had without solving the task. An environment that gives the expected
result (``facts``) is judged better.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from numbers import Real
from typing import Any, Final, NamedTuple

from art_gym.errors import did_you_mean
from art_gym.wrappers.judging.base import Attempt, Criterion, JudgingError, Rubric, Score, Step, check_group

_BY_CHARACTERS = 200
"""Texts longer than this are compared by their words: difflib's time can grow with the cube of the length."""


def agreement(expected: Any, result: Any, *, exact: bool = False) -> float:
    """How far ``result`` agrees with ``expected``.

    * Texts: 1 if they are equal but for case, form and amount of white space; else their similarity.
      Up to 200 characters that is difflib's ratio (Ratcliff & Metzener 1988) of the characters, beyond that
      Dice's coefficient of the words, counted and out of order. Similar spelling is not similar meaning:
      ``12 March`` against ``13 March`` gives 0.88, and ``paid`` against ``unpaid`` 0.8.
    * Numbers: ``1 - |e - r| / max(|e|, |r|)``, at least 0. A text that reads as a number counts as one if
      a number is expected. A number that a float cannot hold agrees with nothing.
    * Mappings: the mean agreement of the values over the expected keys and the unexpected keys;
      a key that is missing or unexpected counts 0.
    * Lists: the mean agreement place by place; places that only one of them has count 0. Order matters.
    * Everything else, such as ``True``: 1 if equal, else 0.

    Args:
        expected: The expected result, of JSON's types.
        result: The given result.
        exact: Texts and numbers agree fully or not at all.
    """
    if isinstance(expected, Mapping):
        return _mappings(expected, result, exact) if isinstance(result, Mapping) else 0.0
    if isinstance(expected, str):
        return _texts(expected, result if isinstance(result, str) else _text_of(result), exact)
    if isinstance(expected, Sequence):
        return _lists(expected, result, exact)
    if _is_number(expected):
        return _numbers(_number_of(expected), _number_of(result), exact)
    return float(type(expected) is type(result) and expected == result)


def _mappings(expected: Mapping[Any, Any], result: Mapping[Any, Any], exact: bool) -> float:
    keys = expected.keys() | result.keys()
    shared = expected.keys() & result.keys()
    parts = [agreement(expected[key], result[key], exact=exact) for key in shared]
    return math.fsum(parts) / len(keys) if keys else 1.0


def _lists(expected: Sequence[Any], result: Any, exact: bool) -> float:
    if isinstance(result, str) or not isinstance(result, Sequence):
        return 0.0
    longest = max(len(expected), len(result))
    parts = [agreement(e, r, exact=exact) for e, r in zip(expected, result, strict=False)]
    return math.fsum(parts) / longest if longest else 1.0


def _texts(expected: str, result: str | None, exact: bool) -> float:
    if result is None:
        return 0.0
    wanted, found = plain(expected), plain(result)
    if wanted == found:
        return 1.0
    if exact or not wanted or not found:
        return 0.0
    if max(len(wanted), len(found)) <= _BY_CHARACTERS:
        return SequenceMatcher(None, wanted, found, autojunk=False).ratio()
    words, others = Counter(wanted.split()), Counter(found.split())
    return 2 * (words & others).total() / (words.total() + others.total())


def plain(text: str) -> str:
    """A text for comparing: in compatible forms of the letters, lower case, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _numbers(expected: float | None, result: float | None, exact: bool) -> float:
    if expected is None or result is None:
        return 0.0
    if expected == result:
        return 1.0
    if exact or not math.isfinite(expected) or not math.isfinite(result):
        return 0.0
    # Halved, so that the difference of two huge numbers stays finite.
    return max(0.0, 1 - 2 * abs(expected / 2 - result / 2) / max(abs(expected), abs(result)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number_of(value: Any) -> float | None:
    if not _is_number(value) and not isinstance(value, str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _text_of(value: Any) -> str | None:
    return str(value) if _is_number(value) else None


class Finding(NamedTuple):
    """What a criterion found in one attempt."""

    value: float
    """From 0 to 1."""
    why: str
    """The reason, in a few words."""


CriterionFunction = Callable[[Attempt], tuple[float, str]]
"""Looks at one attempt alone and returns a `Finding`, or a plain pair of a value and the reason."""


def valid_steps(attempt: Attempt) -> list[Step]:
    """The steps whose reply was not refused."""
    return [step for step in attempt.steps if step.error is None]


def valid_share(attempt: Attempt) -> float:
    """The share of the replies that were not refused; 0 for an attempt without replies."""
    return len(valid_steps(attempt)) / len(attempt.steps) if attempt.steps else 0.0


def ended_itself(attempt: Attempt) -> bool:
    """Whether a valid reply brought the attempt to its end, and no limit cut it off."""
    return attempt.ending == "terminated" and bool(attempt.steps) and attempt.steps[-1].error is None


def form(attempt: Attempt) -> Finding:
    """The share of valid replies, halved for an attempt that did not end by itself.

    Gamed by: one valid call that ends the attempt.
    """
    share = valid_share(attempt)
    if ended_itself(attempt):
        return Finding(share, f"it ended by itself with {share:.0%} valid replies")
    return Finding(0.5 * share, f"it did not end by itself; {share:.0%} of its replies were valid")


CLASSIC_RUBRIC: Final = Rubric(
    (
        Criterion("accuracy", 0.4, "The attempt ends with the result that was asked for."),
        Criterion("efficiency", 0.3, "It gets there in few steps."),
        Criterion("completeness", 0.2, "It takes every action that the task calls for."),
        Criterion("user_satisfaction", 0.1, "Its replies are free of errors and do not keep a user waiting."),
    )
)
"""The classic recipe for agents: accuracy 0.4, efficiency 0.3, completeness 0.2, user satisfaction 0.1."""

_HALF_SPEED = 10  # steps beyond the first that halve the speed if no optimum is known
_AT_ONCE = 1.0  # seconds; a user's thought is not broken (Nielsen 1993, "Usability Engineering", chapter 5)
_HALF_PACE = 9.0  # seconds beyond it that halve the pace: at ten a user turns to other things (ibid.)
_MATCHES = ("similar", "exact")


def accuracy(attempt: Attempt) -> Finding:
    """Whether the result is the expected one.

    ``facts["expected"]`` against ``facts["result"]`` by :func:`agreement`; with ``facts["match"]`` set to
    ``"exact"``, texts and numbers agree fully or not at all. No result is 0. If nothing is known to be
    expected, :func:`form`.

    Raises:
        JudgingError: If ``facts["match"]`` is neither ``"exact"`` nor ``"similar"``.
    """
    expected, result = attempt.facts.get("expected"), attempt.facts.get("result")
    if expected is None:
        return form(attempt)
    if result is None:
        return Finding(0.0, "it has no result")
    match = attempt.facts.get("match", "similar")
    if match not in _MATCHES:
        raise JudgingError(f"facts['match'] is {match!r}{did_you_mean(str(match), _MATCHES)}")
    value = agreement(expected, result, exact=match == "exact")
    return Finding(value, f"the result agrees {value:.0%} with the expected one")


def efficiency(attempt: Attempt) -> Finding:
    """Speed times accuracy.

    Speed is ``facts["optimal_turns"]`` by the number of steps, at most 1. If the optimum is not known it
    is ``10 / (10 + steps - 1)``: 1 for one step, a half for eleven. For a game (``task_type`` ``"game"``),
    whose length is no cost, it is the share of valid replies.

    The classic recipe counts speed alone, which pays most for giving up at once. Here speed is worth what it
    led to: nothing for an attempt that did nothing, or whose result is wrong. The accuracy meant is the one
    above, even if a judge replaces it.

    Raises:
        JudgingError: If ``facts["optimal_turns"]`` is not a positive number.
    """
    steps = len(attempt.steps)
    if not steps:
        return Finding(0.0, "it did nothing")
    reached = accuracy(attempt).value
    optimal = attempt.facts.get("optimal_turns")
    if optimal is not None:
        speed = min(1.0, _positive(optimal) / steps)
        reason = f"{steps} steps, {optimal:g} are enough"
    elif attempt.facts.get("task_type") == "game":
        speed = valid_share(attempt)
        reason = f"{speed:.0%} of {steps} moves were valid"
    else:
        speed = _HALF_SPEED / (_HALF_SPEED + steps - 1)
        reason = f"{steps} steps, fewest not known"
    return Finding(speed * reached, reason if reached == 1 else f"{reason}, accuracy {reached:.2f}")


def completeness(attempt: Attempt) -> Finding:
    """The share of ``facts["required_actions"]`` that were called validly, in any order.

    If none are named: 1 for an attempt that came to an end by itself, else 0. Gamed by calling each tool
    once, whatever for.
    """
    required = set(attempt.facts.get("required_actions") or ())
    if not required:
        whole = ended_itself(attempt)
        return Finding(float(whole), "it ended by itself" if whole else "it did not end by itself")
    called = {step.call.get("name") for step in valid_steps(attempt) if step.call is not None}
    missing = sorted(required - called)
    value = 1 - len(missing) / len(required)
    return Finding(value, f"without {', '.join(missing)}" if missing else "every required action was taken")


def user_satisfaction(attempt: Attempt) -> Finding:
    """The share of replies without an error; if times are known, half of it depends on the pace.

    The pace of a step is 1 up to one second, halved for every nine more: 0.5 at ten, 0.25 at nineteen. The
    mean over the timed steps counts: ``share * (1 + pace) / 2``.

    Raises:
        JudgingError: If a step's time is negative or not a number.
    """
    share = valid_share(attempt)
    reason = f"{share:.0%} of the replies without error" if attempt.steps else "it has no replies"
    seconds = [step.seconds for step in attempt.steps if step.seconds is not None]
    if not seconds:
        return Finding(share, reason)
    pace = math.fsum(map(_pace, seconds)) / len(seconds)
    mean = math.fsum(seconds) / len(seconds)
    return Finding(share * (1 + pace) / 2, f"{reason}, {mean:.1f} s a step")


CLASSIC_CRITERIA: Final[Mapping[str, CriterionFunction]] = {
    "accuracy": accuracy,
    "efficiency": efficiency,
    "completeness": completeness,
    "user_satisfaction": user_satisfaction,
}
"""The criteria of `CLASSIC_RUBRIC` by name."""


def _pace(seconds: float) -> float:
    if not seconds >= 0:
        raise JudgingError(f"a step's seconds are a number of at least 0, not {seconds!r}")
    return float(2 ** (-max(0.0, seconds - _AT_ONCE) / _HALF_PACE))


def _positive(optimal: Any) -> float:
    if isinstance(optimal, bool) or not isinstance(optimal, int | float) or not optimal > 0:
        raise JudgingError(f"facts['optimal_turns'] is a positive number, not {optimal!r}")
    return float(optimal)


class RubricJudge:
    """Scores each attempt by the weighted sum of a rubric's criteria, each a small function.

    Deterministic and quick, and it looks at each attempt alone: its order, its id and the other attempts
    change nothing. It reads the transcript and ``facts``; never the environment's reward or success. How
    reliable it is depends on the facts: with an expected result it measures, without one it looks at form.

    If it misleads even with good facts: a wrong result costs no more than none, and with the right actions
    taken it earns completeness and satisfaction, 0.3 of the classic rubric; so an agent learns to guess
    rather than to give up. Free text that is spelt like the right one is paid like it.

    Args:
        rubric: The criteria and their weights.
        criteria: Functions by name, which add to the classic four or replace them.

    Raises:
        JudgingError: For a rubric with a criterion that has no function.
    """

    def __init__(
        self,
        rubric: Rubric = CLASSIC_RUBRIC,
        criteria: Mapping[str, CriterionFunction] | None = None,
    ) -> None:
        self.criteria: Mapping[str, CriterionFunction] = {**CLASSIC_CRITERIA, **(criteria or {})}
        self.rubric = self._checked(rubric)

    def __call__(self, group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        """Score the attempts of a group, see :class:`.Judge`."""
        check_group(group)
        return {attempt.id: self.score(attempt, rubric) for attempt in group}

    def score(self, attempt: Attempt, rubric: Rubric | None = None) -> Score:
        """Score one attempt."""
        rubric = self.rubric if rubric is None else self._checked(rubric)
        parts: dict[str, float] = {}
        reasons = []
        for name in rubric.names:
            parts[name], why = self._find(name, attempt)
            reasons.append(f"{name} {parts[name]:.2f}: {why}")
        total = math.fsum(criterion.weight * parts[criterion.name] for criterion in rubric.criteria)
        return Score(min(1.0, max(0.0, total)), "; ".join(reasons), parts)

    def _find(self, name: str, attempt: Attempt) -> tuple[float, str]:
        found = self.criteria[name](attempt)
        if not isinstance(found, tuple) or len(found) != 2:
            raise JudgingError(f"criterion `{name}` returned {found!r}: return a value and the reason")
        value, why = found
        if not isinstance(value, Real) or not 0 <= value <= 1:
            raise JudgingError(
                f"criterion `{name}` gave attempt {attempt.id!r} {value!r}: return a number from 0 to 1"
            )
        return float(value), why

    def _checked(self, rubric: Rubric) -> Rubric:
        for name in rubric.names:
            if name not in self.criteria:
                raise JudgingError(
                    f"no function for criterion `{name}`{did_you_mean(name, self.criteria)}; "
                    "pass one in `criteria`"
                )
        return rubric
