"""How well a judge ranks attempts: its scores against the environment's own reward on the same groups."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from art_gym.wrappers.judging import Attempt, Judge, JudgeFailedError, LLMJudge, Rubric, Score, judge_group
from art_gym.wrappers.judging.agreement import (
    judged_tau,
    kendall_tau_b,
    success_above_failure,
    top_agreement,
    top_chance,
)
from art_gym.wrappers.judging.budget import JudgeStatistics
from art_trainer.analysis.mixed_groups import LabelledGroup
from art_trainer.errors import EvaluationFailedError
from art_trainer.formatting import finite
from art_trainer.rollout.judge_rewards import attempt_of
from art_trainer.rollout.statistics import mean_interval
from art_trainer.types import Interval

_STATISTICS_SEED = 20_240_229
_MOST_FAULTS = 8
"""Groups that a judge fails for, at the beginning, before it is given up."""
_ROUNDING = 1e-12
_DIGITS = 9
"""Decimals: sums of the same terms in another order differ by rounding."""
_TRUTH = ("expected", "result")
CONSISTENCY = ("order_slope", "order_spread", "repeat_difference", "repeat_tau")
"""Names of what :attr:`JudgeEvaluation.consistency` measures."""


@dataclass(frozen=True, slots=True)
class RatedJudge:
    """A judge to be evaluated."""

    name: str
    judge: Judge
    fresh: Judge | None = None
    """The same judge without a cache, for repeated questions; ``None`` if ``judge`` has none."""


@dataclass(frozen=True, slots=True)
class JudgedGroup:
    """Rewards and scores of one group, in the group's order."""

    task_id: str
    seed: int
    players: tuple[str, ...]
    rewards: tuple[float, ...]
    """The environment's rewards."""
    successes: tuple[bool, ...]
    scores: tuple[float, ...]
    explanations: tuple[str, ...]

    def figures(self) -> dict[str, float | None]:
        """The group's part in :attr:`JudgeEvaluation.figures`; ``None`` for what cannot be measured."""
        return {
            "tau": judged_tau(self.scores, self.rewards),
            "success_above": success_above_failure(self.scores, self.successes),
            "top": top_agreement(self.scores, self.rewards),
            "chance": top_chance(self.rewards),
        }


@dataclass(frozen=True, slots=True)
class JudgeEvaluation:
    """Quality of one judge on a list of groups.

    Attributes:
        judge: Its name.
        groups: The judged groups.
        failures: Groups without an answer, by reason; they are in no average.
        checked: Number of groups that the judge was asked about again.
        figures: Means over the groups, ``None`` if no group has one. ``tau``: Kendall's tau-b with the true
            rewards; ``success_above``: share of the pairs of a success and a failure in which the success is
            scored higher; ``top``: how often the judge's best attempt is among the truly best; ``chance``:
            how often a random attempt is.
        consistency: Means over the checked groups, ``None`` if not measured. ``order_slope``: change of a
            score from the first position to the last; ``order_spread``: standard deviation of an attempt's
            score over the orders; ``repeat_difference``: mean absolute difference of an attempt's two scores;
            ``repeat_tau``: Kendall's tau-b between the two answers.
        usage: Requests, tokens and cost of judging each group once; ``None`` if the judge does not count.
    """

    judge: str
    groups: tuple[JudgedGroup, ...]
    failures: Mapping[str, int]
    checked: int
    figures: Mapping[str, Interval | None]
    consistency: Mapping[str, float | None]
    usage: JudgeStatistics | None

    def to_json(self) -> dict[str, Any]:
        """The figures and every group as JSON; unknown values are ``null``."""
        data = dataclasses.asdict(self)
        figures = {**data.pop("figures"), **data.pop("consistency")}
        groups = [dataclasses.asdict(group) | group.figures() for group in self.groups]
        plain: dict[str, Any] = finite({**data, **figures, "groups": groups})
        return plain


def evaluate_judge(
    rated: RatedJudge,
    groups: Sequence[LabelledGroup],
    *,
    checks: int = 0,
    orders: int = 4,
    seed: int = 0,
    max_concurrency: int = 8,
    on_done: Callable[[], None] | None = None,
) -> JudgeEvaluation:
    """Have a judge score groups, and compare the scores with the environment's rewards.

    Args:
        rated: The judge.
        groups: Whole groups of at least two attempts, with the environment's own rewards.
        checks: Number of groups for which the judge is also asked again and in other orders.
        orders: Number of orders, at least 2.
        seed: Seed of the orders.
        max_concurrency: Most groups being judged at a time.
        on_done: Called once for each group judged and once for each group checked, from any thread.

    Raises:
        EvaluationFailedError: If the judge fails for the first groups, or all.
        JudgingError: If the judge is misconfigured.
        ValueError: If a group has fewer than two attempts or is not whole.
    """
    attempts = [_attempts(played) for played in groups]
    count = on_done or (lambda: None)

    def ask(group: Sequence[Attempt]) -> dict[str, Score] | JudgeFailedError:
        found = _ask(rated.judge, group)
        count()
        return found

    def check(number: int) -> dict[str, float | None]:
        rng = np.random.default_rng((seed, number))
        found = _order_check(rated.judge, attempts[number], orders, rng)
        found |= _repeat_check(rated.fresh or rated.judge, attempts[number], answers[number])
        count()
        return found

    pool = ThreadPoolExecutor(max_concurrency, thread_name_prefix="judge")
    try:
        before = _usage(rated.judge)
        answers = []
        for answer in pool.map(ask, attempts):
            answers.append(answer)
            first = min(_MOST_FAULTS, len(attempts))
            if len(answers) == first and all(isinstance(one, JudgeFailedError) for one in answers):
                raise EvaluationFailedError(f"{rated.name}: it failed for the first {first} groups: {answer}")
        after = _usage(rated.judge)
        checked = list(pool.map(check, range(min(checks, len(groups)))))
    finally:
        pool.shutdown(cancel_futures=True)
    judged = [
        _judged(played, answer)
        for played, answer in zip(groups, answers, strict=True)
        if not isinstance(answer, JudgeFailedError)
    ]
    return JudgeEvaluation(
        judge=rated.name,
        groups=tuple(judged),
        failures=Counter(answer.reason for answer in answers if isinstance(answer, JudgeFailedError)),
        checked=sum("repeat_difference" in found for found in checked),
        figures=_figures(judged),
        consistency={name: _average([found.get(name) for found in checked]) for name in CONSISTENCY},
        usage=None if before is None or after is None else _spent(before, after),
    )


def _attempts(played: LabelledGroup) -> list[Attempt]:
    group = played.group
    if not group.whole or len(group.episodes) < 2:
        raise ValueError(
            f"task {group.task_id}: a judge is rated on whole groups of at least two attempts, this one has "
            f"{len(group.episodes)}, {sum(episode.failed for episode in group.episodes)} of them failed"
        )
    return [attempt_of(episode, f"attempt_{i}") for i, episode in enumerate(group.episodes)]


def _ask(judge: Judge, group: Sequence[Attempt]) -> dict[str, Score] | JudgeFailedError:
    try:
        return judge_group(judge, group)
    except JudgeFailedError as failure:
        return failure


def _judged(played: LabelledGroup, answer: Mapping[str, Score]) -> JudgedGroup:
    episodes = played.group.episodes
    scores = [answer[f"attempt_{i}"] for i in range(len(episodes))]
    return JudgedGroup(
        task_id=played.group.task_id,
        seed=episodes[0].seed,
        players=played.players,
        rewards=tuple(round(reward, _DIGITS) for reward in played.group.rewards),
        successes=tuple(bool(episode.success) for episode in episodes),
        scores=tuple(round(score.value, _DIGITS) for score in scores),
        explanations=tuple(score.explanation for score in scores),
    )


def _figures(groups: Sequence[JudgedGroup]) -> dict[str, Interval | None]:
    """Means over the groups, with intervals over tasks, or over seeds if there is one task."""
    several = len({group.task_id for group in groups}) > 1
    found: dict[str, Interval | None] = {}
    parts = [(group.task_id if several else group.seed, group.figures()) for group in groups]
    for name in ("tau", "success_above", "top", "chance"):
        known = [(value, cluster) for cluster, part in parts if (value := part[name]) is not None]
        rng = np.random.default_rng(_STATISTICS_SEED)
        values, clusters = [value for value, _ in known], [cluster for _, cluster in known]
        found[name] = mean_interval(values, rng, clusters=clusters) if known else None
    return found


def _order_check(
    judge: Judge, group: Sequence[Attempt], orders: int, rng: np.random.Generator
) -> dict[str, float | None]:
    """Show the group in several orders; nothing if all attempts are equal or the judge fails.

    The orders are rotations of random ones, so over each ``n`` of them, with ``n`` different attempts, every
    attempt is shown once at every place. The measure is of order alone only if the judge is deterministic.
    """
    different = list({(*((s.reply, s.observation) for s in a.steps), a.ending): a for a in group}.values())
    count = len(different)
    if count < 2:
        return {}
    fixed: Judge = judge.in_given_order() if isinstance(judge, LLMJudge) else judge
    scores_O_N = np.empty((orders, count))  # O orders, N different attempts
    places_O_N = np.empty((orders, count), dtype=np.int64)
    for number in range(orders):
        if number % count == 0:
            base = rng.permutation(count)
        order = np.roll(base, number % count)
        found = _ask(fixed, [different[place] for place in order])
        if isinstance(found, JudgeFailedError):
            return {}
        scores_O_N[number] = [found[attempt.id].value for attempt in different]
        places_O_N[number, order] = np.arange(count)
    moved_O_N = scores_O_N - scores_O_N.mean(axis=0)
    spread = float(scores_O_N.std(axis=0).mean())
    if spread < _ROUNDING:  # rounding of equal numbers is no change
        return {"order_slope": 0.0, "order_spread": 0.0}
    by_place = [float(moved_O_N[places_O_N == place].mean()) for place in range(count)]
    return {"order_slope": place_slope(by_place), "order_spread": spread}


def _repeat_check(
    judge: Judge, group: Sequence[Attempt], first: Mapping[str, Score] | JudgeFailedError
) -> dict[str, float | None]:
    """Ask a second time; nothing if the judge failed once."""
    second = _ask(judge, group)
    if isinstance(first, JudgeFailedError) or isinstance(second, JudgeFailedError):
        return {}
    one, other = [[answer[attempt.id].value for attempt in group] for answer in (first, second)]
    difference = math.fsum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(group)
    return {"repeat_difference": difference, "repeat_tau": kendall_tau_b(one, other)}


def _usage(judge: Judge) -> JudgeStatistics | None:
    found = getattr(judge, "statistics", None)
    return found if isinstance(found, JudgeStatistics) else None


def _spent(before: JudgeStatistics, after: JudgeStatistics) -> JudgeStatistics:
    names = [item.name for item in dataclasses.fields(JudgeStatistics) if item.name != "failures"]
    return JudgeStatistics(**{name: getattr(after, name) - getattr(before, name) for name in names})


def _average(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def blind_judge(judge: Judge) -> Judge:
    """Hide from a judge what was right and what the result is, as if the environment did not report it."""

    def score(group: Sequence[Attempt], rubric: Rubric | None = None) -> Mapping[str, Score]:
        blind = [
            replace(one, facts={name: fact for name, fact in one.facts.items() if name not in _TRUTH})
            for one in group
        ]
        return judge(blind, rubric)

    return score


def place_slope(by_place: Sequence[float]) -> float:
    """How much a score changes from the first place shown to the last, by a straight line of least squares.

    Args:
        by_place: For each place, at least two, how far scores lie there above the average.
    """
    place_N = np.linspace(-0.5, 0.5, len(by_place))
    return float(place_N @ np.asarray(by_place, dtype=np.float64) / (place_N @ place_N))
