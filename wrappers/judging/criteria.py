"""The four classic criteria of an agent's attempt, as small functions of the attempt alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from art_gym.errors import did_you_mean
from art_gym.wrappers.judging.attempts import Attempt
from art_gym.wrappers.judging.criteria_agreement import agreement
from art_gym.wrappers.judging.criteria_findings import (
    CriterionFunction,
    Finding,
    ended_itself,
    valid_share,
    valid_steps,
)
from art_gym.wrappers.judging.criteria_transcript import HEURISTICS, general
from art_gym.wrappers.judging.errors import JudgingError
from art_gym.wrappers.judging.rubrics import Criterion, Rubric

CLASSIC_RUBRIC: Final = Rubric(
    (
        Criterion("accuracy", 0.4, "The attempt ends with the result that was asked for."),
        Criterion("efficiency", 0.3, "It gets there in few steps."),
        Criterion("completeness", 0.2, "It takes every action that the task calls for."),
        Criterion("user_satisfaction", 0.1, "Its replies are free of errors and do not keep a user waiting."),
    )
)
"""The classic recipe for agents: accuracy 0.4, efficiency 0.3, completeness 0.2, user satisfaction 0.1."""

_HALF_SPEED = 10  # steps beyond the first that halve the speed where no optimum is known
_AT_ONCE = 1.0  # seconds; a user's thought is not broken (Nielsen 1993, "Usability Engineering", chapter 5)
_HALF_PACE = 9.0  # seconds beyond it that halve the pace: at ten a user turns to other things (ibid.)
_MATCHES = ("similar", "exact")


def accuracy(attempt: Attempt) -> Finding:
    """Whether the result is the one that was asked for.

    ``facts["expected"]`` against ``facts["result"]`` by :func:`agreement`; with ``facts["match"]`` set to
    ``"exact"``, texts and numbers agree fully or not at all. No result is 0. Where nothing is known to be
    expected, a heuristic by ``facts["task_type"]``, see `criteria_transcript`.

    Raises:
        JudgingError: Where ``facts["match"]`` is neither ``"exact"`` nor ``"similar"``.
    """
    expected, result = attempt.facts.get("expected"), attempt.facts.get("result")
    if expected is None:
        return HEURISTICS.get(str(attempt.facts.get("task_type")), general)(attempt)
    if result is None:
        return Finding(0.0, "it has no result")
    match = attempt.facts.get("match", "similar")
    if match not in _MATCHES:
        raise JudgingError(f"facts['match'] is {match!r}{did_you_mean(str(match), _MATCHES)}")
    value = agreement(expected, result, exact=match == "exact")
    return Finding(value, f"the result agrees {value:.0%} with the expected one")


def efficiency(attempt: Attempt) -> Finding:
    """How quickly it got where it got: speed times accuracy.

    Speed is ``facts["optimal_turns"]`` by the number of steps, at most 1. Where the optimum is not known it
    is ``10 / (10 + steps - 1)``: 1 for one step, a half for eleven. For a game (``task_type`` ``"game"``),
    whose length is no cost, it is the share of valid replies.

    The classic recipe counts speed alone, which pays most for giving up at once. Here speed is worth what it
    led to: nothing for an attempt that did nothing, or whose result is wrong. The accuracy meant is the one
    above, also where a judge has another in its place.

    Raises:
        JudgingError: Where ``facts["optimal_turns"]`` is not a positive number.
    """
    steps = len(attempt.steps)
    if not steps:
        return Finding(0.0, "it did nothing")
    reached = accuracy(attempt).value
    optimal = attempt.facts.get("optimal_turns")
    if optimal is not None:
        speed = min(1.0, _positive(optimal) / steps)
        words = f"{steps} steps where {optimal:g} are enough"
    elif attempt.facts.get("task_type") == "game":
        speed = valid_share(attempt)
        words = f"{speed:.0%} of {steps} moves were valid"
    else:
        speed = _HALF_SPEED / (_HALF_SPEED + steps - 1)
        words = f"{steps} steps, fewest not known"
    return Finding(speed * reached, words if reached == 1 else f"{words}, accuracy {reached:.2f}")


def completeness(attempt: Attempt) -> Finding:
    """The share of ``facts["required_actions"]`` that were called validly, in any order.

    Where none are named: 1 for an attempt that came to an end by itself, else 0. Gamed by calling each tool
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
    """The share of replies without an error; where times are known, half of it hangs on the pace.

    The pace of a step is 1 up to one second, halved for every nine more: 0.5 at ten, 0.25 at nineteen. The
    mean over the timed steps counts: ``share * (1 + pace) / 2``.

    Raises:
        JudgingError: Where a step's time is negative or not a number.
    """
    share = valid_share(attempt)
    words = f"{share:.0%} of the replies without error" if attempt.steps else "it said nothing"
    seconds = [step.seconds for step in attempt.steps if step.seconds is not None]
    if not seconds:
        return Finding(share, words)
    pace = math.fsum(map(_pace, seconds)) / len(seconds)
    mean = math.fsum(seconds) / len(seconds)
    return Finding(share * (1 + pace) / 2, f"{words}, {mean:.1f} s a step")


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
