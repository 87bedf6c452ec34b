"""What is different between two evaluations: which starts were won, which lost, and whether by luck."""

from __future__ import annotations

import math
from collections.abc import Sequence

from art_trainer.analysis.results import EvaluationChange
from art_trainer.evaluation import Evaluation, compare
from art_trainer.statistics import Interval

_LISTED = 12


def change_between(
    first: Evaluation, second: Evaluation, names: tuple[str, str] | None = None
) -> EvaluationChange:
    """Compare two evaluations start by start where they met the same starts, else their rates.

    Args:
        first: The earlier one.
        second: The later one.
        names: What to call them; their policies' names where not given.
    """
    called = names or (first.policy, second.policy)
    try:
        difference = compare(first, second)
    except ValueError:
        return _unpaired(first, second, called)
    pairs = [(a, b) for a, b in zip(first.results, second.results, strict=True) if not (a.fault or b.fault)]
    won = [b.task_id for a, b in pairs if b.success and not a.success]
    lost = [a.task_id for a, b in pairs if a.success and not b.success]
    told = difference.success is not None
    once = len({(a.task_id, a.seed) for a, _ in pairs}) == len(pairs) == len({a.task_id for a, _ in pairs})
    return EvaluationChange(
        first=called[0],
        second=called[1],
        paired=True,
        success=difference.success,
        reward=difference.reward,
        first_success=first.success,
        second_success=second.success,
        won=len(won),
        lost=len(lost),
        both=sum(bool(a.success and b.success) for a, b in pairs),
        neither=sum(not (a.success or b.success) for a, b in pairs) if told else 0,
        won_tasks=_some(won),
        lost_tasks=_some(lost),
        p_value=exact_mcnemar(len(won), len(lost)) if told and once else None,
        note="" if once or not told else "Tasks were played more than once: the interval is over tasks.",
    )


def exact_mcnemar(won: int, lost: int) -> float:
    """The probability of a split at least as uneven as this between won and lost, were both as likely.

    Source: Q. McNemar, "Note on the sampling error of the difference between correlated proportions",
    Psychometrika 12 (1947), with the exact binomial distribution; two-sided.
    """
    count = won + lost
    if count == 0:
        return 1.0
    # By logarithms: the coefficients of some thousand pairs are no floats.
    logs = [
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) - count * math.log(2)
        for k in range(min(won, lost) + 1)
    ]
    return min(1.0, 2 * math.fsum(math.exp(value) for value in logs))


def unpaired_difference(first: Interval, second: Interval) -> Interval:
    """The difference of two independent proportions, second minus first, from their Wilson intervals.

    Source: R. G. Newcombe, "Interval estimation for the difference between independent proportions",
    Statistics in Medicine 17 (1998), pp. 873-890, method 10.
    """
    value = second.value - first.value
    below = math.hypot(second.value - second.low, first.high - first.value)
    above = math.hypot(second.high - second.value, first.value - first.low)
    return Interval(value, value - below, value + above, min(first.count, second.count))


def _unpaired(first: Evaluation, second: Evaluation, names: tuple[str, str]) -> EvaluationChange:
    rates = first.success, second.success
    difference = None
    if first.env_id != second.env_id:
        note = f"These are different environments, {first.env_id} and {second.env_id}: nothing to compare."
    elif not (first.counted and second.counted):
        note = "A fault ended every episode of one of them: nothing to compare."
    else:
        note = (
            "They did not meet the same starts (split, seed or number of episodes differ), so the rates are "
            "compared as those of independent episodes."
        )
        if rates[0] is not None and rates[1] is not None:
            difference = unpaired_difference(rates[0], rates[1])
    return EvaluationChange(
        first=names[0],
        second=names[1],
        paired=False,
        success=difference,
        reward=None,
        first_success=rates[0],
        second_success=rates[1],
        note=note,
    )


def _some(tasks: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tasks))[:_LISTED]
