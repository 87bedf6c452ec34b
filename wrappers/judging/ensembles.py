"""Judges made of judges: several averaged, pairs compared, and how much the order shown matters."""

from __future__ import annotations

import copy
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from art_gym.errors import did_you_mean
from art_gym.wrappers.judging.base import (
    Attempt,
    Judge,
    JudgeFailedError,
    JudgingError,
    Rubric,
    Score,
    check_group,
    judge_group,
)

_AVERAGES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
}


@dataclass(frozen=True, slots=True)
class EnsembleScore(Score):
    """An average of several judges' scores."""

    members: tuple[float, ...] = ()
    """The score of each judge that answered."""

    @property
    def disagreement(self) -> float:
        """The standard deviation of the members' scores; 0 for one member."""
        return statistics.pstdev(self.members)


class EnsembleJudge:
    """Asks several judges at the same time and averages their scores; implements :class:`.Judge`.

    Every attempt's score averages the same judges, those that answered about the group, so that a judge that
    failed moves no attempt against another.

    Args:
        judges: Several judges, or one that is called with ``shuffles`` different orders.
        shuffles: How many orders; for one judge that has ``seed`` and ``with_seed(seed)``, as ``LLMJudge``.
        aggregate: ``"mean"`` or ``"median"``.
        minimum: How many must answer; with fewer, the group has failed.

    Raises:
        JudgingError: For no judges, an unknown aggregate, or a ``minimum`` that cannot be had.
    """

    def __init__(
        self,
        judges: Judge | Sequence[Judge],
        *,
        shuffles: int | None = None,
        aggregate: Literal["mean", "median"] = "mean",
        minimum: int = 1,
    ) -> None:
        self.judges = _members(judges, shuffles)
        if aggregate not in _AVERAGES:
            raise JudgingError(f"unknown aggregate={aggregate!r}{did_you_mean(aggregate, _AVERAGES)}")
        if not 1 <= minimum <= len(self.judges):
            raise JudgingError(f"minimum is from 1 to the {len(self.judges)} judges there are, got {minimum}")
        self._average = _AVERAGES[aggregate]
        self._minimum = minimum

    def __call__(self, group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, EnsembleScore]:
        """Return each attempt's average score, see :class:`.Judge`.

        Raises:
            JudgingError: For a group or rubric that cannot be judged.
            JudgeFailedError: If fewer than ``minimum`` judges answered; its reason is the last one's.
        """
        check_group(group)
        answers: list[dict[str, Score]] = []
        failures: list[JudgeFailedError] = []
        with ThreadPoolExecutor(len(self.judges), thread_name_prefix="ensemble") as pool:
            for future in [pool.submit(judge_group, judge, group, rubric) for judge in self.judges]:
                try:
                    answers.append(future.result())
                except JudgeFailedError as error:
                    failures.append(error)
        if len(answers) < self._minimum:
            errors = "; ".join(f"{error.reason}: {error}" for error in failures)
            raise JudgeFailedError(
                failures[-1].reason,
                f"{len(answers)} of {len(self.judges)} judges answered, {self._minimum} must: {errors}",
            )
        return {attempt.id: self._averaged([answer[attempt.id] for answer in answers]) for attempt in group}

    def in_given_order(self) -> EnsembleJudge:
        """The same ensemble, with members that look at attempts in the order of the group if they can."""
        ensemble = copy.copy(self)
        ensemble.judges = tuple(_in_given_order(judge) for judge in self.judges)
        return ensemble

    def _averaged(self, scores: Sequence[Score]) -> EnsembleScore:
        values = tuple(score.value for score in scores)
        names = [name for name in scores[0].parts if all(name in score.parts for score in scores)]
        parts = {name: self._average([score.parts[name] for score in scores]) for name in names}
        reasons = [f"[{score.value:.2f}] {score.explanation}" for score in scores if score.explanation]
        return EnsembleScore(self._average(values), "\n".join(reasons), parts, values)


class PairwiseJudge:
    """Compares every two attempts and scores each by its share of wins; implements :class:`.Judge`.

    Each pair is judged in both orders, so a judge that prefers a place gives each of the two a win, which
    makes a draw. A draw is half a win. In a full round robin the number of wins orders the attempts as the
    Bradley–Terry model's likeliest strengths do, for which it is the sufficient statistic (Bradley & Terry
    1952, Biometrika 39, 324; Ford 1957, Am. Math. Monthly 64, 28), so no model is fitted. Attempts that read
    the same count once.

    Asks n·(n−1) questions about n different attempts.

    Args:
        judge: Scores two attempts; the higher score wins.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = _in_given_order(judge)

    def __call__(self, group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        """Return each attempt's share of wins, see :class:`.Judge`; a single attempt scores 0.5."""
        check_group(group)
        alike = _distinct(group)
        wins = dict.fromkeys(alike, 0.0)
        for one, other in itertools.combinations(alike, 2):
            won = self._compare(alike[one][0], alike[other][0], rubric)
            wins[one] += won
            wins[other] += 1 - won
        rivals = len(alike) - 1
        scores: dict[str, Score] = {}
        for key, attempts in alike.items():
            value = wins[key] / rivals if rivals else 0.5
            reason = f"won {wins[key]:g} of {rivals} comparisons" if rivals else "nothing to compare with"
            scores |= {attempt.id: Score(value, reason) for attempt in attempts}
        return {attempt.id: scores[attempt.id] for attempt in group}

    def _compare(self, one: Attempt, other: Attempt, rubric: Rubric | None) -> float:
        """The share of two comparisons, one in each order, that ``one`` wins."""
        won = 0.0
        for pair in ((one, other), (other, one)):
            scores = judge_group(self._judge, pair, rubric)
            ahead = scores[one.id].value - scores[other.id].value
            won += 0.5 if ahead == 0 else float(ahead > 0)
        return won / 2


@dataclass(frozen=True, slots=True)
class PositionBias:
    """How a judge's scores of one group move with the order in which its attempts are shown.

    Attributes:
        orders: How many orders were tried.
        by_position: For each place in the order shown, how far an attempt's score lies there above that
            attempt's average over all orders; all 0 for a judge that does not mind the order.
        spread: Standard deviation of an attempt's score over the orders, averaged over the attempts.
    """

    orders: int
    by_position: tuple[float, ...]
    spread: float


def position_bias(
    judge: Judge,
    group: Sequence[Attempt],
    *,
    orders: int,
    rng: np.random.Generator,
    rubric: Rubric | None = None,
) -> PositionBias:
    """Judge the same group in several orders, and measure how the scores move.

    The orders are rotations of random ones, so over each ``n`` of them, with ``n`` different attempts, every
    attempt is shown once at every place. Attempts that read the same are shown once. The measure is of order
    alone only if the judge is deterministic; otherwise its own noise is part of it.

    Args:
        judge: A judge; one that shuffles on its own is called without that.
        group: At least two attempts that read differently.
        orders: How many orders, at least 2.
        rng: Draws the orders.
        rubric: What to look for; ``None``: the judge's own rubric.

    Raises:
        JudgingError: For fewer than two orders or different attempts.
        JudgeFailedError: If the judge gave no usable answer in one of the orders.
    """
    check_group(group)
    different = [attempts[0] for attempts in _distinct(group).values()]
    if orders < 2 or len(different) < 2:
        raise JudgingError(
            f"position bias needs two orders of two different attempts, got {orders} and {len(different)}"
        )
    fixed = _in_given_order(judge)
    count = len(different)
    scores_O_N = np.empty((orders, count))  # O orders, N different attempts
    places_O_N = np.empty((orders, count), dtype=np.int64)
    for number in range(orders):
        if number % count == 0:
            base = rng.permutation(count)
        order = np.roll(base, number % count)
        found = judge_group(fixed, [different[place] for place in order], rubric)
        scores_O_N[number] = [found[attempt.id].value for attempt in different]
        places_O_N[number, order] = np.arange(count)
    moved_O_N = scores_O_N - scores_O_N.mean(axis=0)
    by_position = [float(moved_O_N[places_O_N == place].mean()) for place in range(count)]
    return PositionBias(orders, tuple(by_position), float(scores_O_N.std(axis=0).mean()))


def _distinct(group: Sequence[Attempt]) -> Mapping[tuple[object, ...], list[Attempt]]:
    """The group's attempts by their text, in the group's order."""
    found: dict[tuple[object, ...], list[Attempt]] = {}
    for attempt in group:
        steps = tuple((step.reply, step.observation) for step in attempt.steps)
        found.setdefault((steps, attempt.ending), []).append(attempt)
    return found


def _in_given_order(judge: Any) -> Judge:
    """The judge, without its own shuffling if it has any."""
    fixed: Judge = judge.in_given_order() if hasattr(judge, "in_given_order") else judge
    return fixed


def _members(judges: Judge | Sequence[Judge], shuffles: int | None) -> tuple[Judge, ...]:
    members = tuple(judges) if isinstance(judges, Sequence) else (judges,)
    if not members:
        raise JudgingError("an ensemble holds at least one judge")
    if shuffles is None:
        return members
    judge: Any = members[0]
    if len(members) > 1 or not hasattr(judge, "with_seed") or shuffles < 1:
        raise JudgingError(
            f"shuffles={shuffles} must be at least 1, and is for one judge that has `with_seed`, as LLMJudge"
        )
    return tuple(judge.with_seed(judge.seed + number) for number in range(shuffles))
