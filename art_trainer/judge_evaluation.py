"""How well a judge orders attempts: its scores against the environment's own reward on the same groups."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from art_gym.wrappers.judging import Attempt, Judge, JudgeFailed, Score, judge_group
from art_gym.wrappers.judging.ensembles import position_bias
from art_gym.wrappers.judging.llm_statistics import JudgeStatistics
from art_trainer.judging import attempt_of
from art_trainer.mixed_groups import PlayedGroup
from art_trainer.rank_agreement import (
    judged_tau,
    kendall_tau_b,
    misranked,
    place_slope,
    success_above_failure,
    top_agreement,
    top_chance,
)
from art_trainer.statistics import Interval, mean_interval

_STATISTICS_SEED = 20_240_229
_ROUNDING = 1e-12
_DIGITS = 9
"""Numbers that agree to so many are equal: sums of the same terms in other orders differ by rounding."""


@dataclass(frozen=True, slots=True)
class RatedJudge:
    """A judge to be rated."""

    name: str
    judge: Judge
    fresh: Judge | None = None
    """The same judge without a cache, for asking again; ``None`` where ``judge`` has none."""


@dataclass(frozen=True, slots=True)
class JudgedGroup:
    """One group, with what its attempts are worth and what the judge gave them, in the group's order."""

    task_id: str
    seed: int
    players: tuple[str, ...]
    rewards: tuple[float, ...]
    """What the environment paid."""
    successes: tuple[bool | None, ...]
    scores: tuple[float, ...]
    explanations: tuple[str, ...]

    @property
    def tau(self) -> float | None:
        """Kendall's tau-b of the scores with the rewards; ``None`` where these are all equal."""
        return judged_tau(self.scores, self.rewards)

    @property
    def success_above(self) -> float | None:
        """How often a success is scored above a failure; ``None`` where all or none succeeded."""
        return success_above_failure(self.scores, [bool(success) for success in self.successes])

    @property
    def top(self) -> float | None:
        """The probability that the judge's best is among the truly best."""
        return top_agreement(self.scores, self.rewards)

    @property
    def chance(self) -> float | None:
        """What ``top`` is for a judge that tosses."""
        return top_chance(self.rewards)


@dataclass(frozen=True, slots=True)
class OrderCheck:
    """How one group's scores move with the order in which its attempts are shown."""

    slope: float
    """Change of the score from the first place shown to the last."""
    spread: float
    """Standard deviation of an attempt's score over the orders, averaged over the attempts."""


@dataclass(frozen=True, slots=True)
class RepeatCheck:
    """How one group's scores differ when the judge is asked again."""

    difference: float
    """Mean absolute difference of an attempt's two scores."""
    tau: float | None
    """Kendall's tau-b between the two; ``None`` where one of them ranks nothing."""


@dataclass(frozen=True)
class JudgeEvaluation:
    """How one judge did on a list of groups.

    Attributes:
        judge: Its name.
        groups: What it judged.
        failures: Groups that it had no answer about, counted by reason; they are in no average.
        orders: What showing other orders did, where it was tried.
        repeats: What asking again did, where it was tried.
        usage: What judging each group once took in all; ``None`` for a judge that does not count.
    """

    judge: str
    groups: tuple[JudgedGroup, ...]
    failures: Mapping[str, int] = field(default_factory=dict)
    orders: tuple[OrderCheck, ...] = ()
    repeats: tuple[RepeatCheck, ...] = ()
    usage: JudgeStatistics | None = None

    @cached_property
    def tau(self) -> Interval | None:
        """Mean of Kendall's tau-b with the true rewards, over the groups whose rewards differ."""
        return self._mean([group.tau for group in self.groups])

    @cached_property
    def success_above(self) -> Interval | None:
        """Mean share of the pairs of a success and a failure in which the success is scored higher."""
        return self._mean([group.success_above for group in self.groups])

    @cached_property
    def top(self) -> Interval | None:
        """How often the judge's best attempt is among the truly best."""
        return self._mean([group.top for group in self.groups])

    @cached_property
    def chance(self) -> float | None:
        """How often a tossed attempt is."""
        return _average([group.chance for group in self.groups])

    @cached_property
    def order_slope(self) -> float | None:
        """Mean change of the score from the first place shown to the last; ``None`` where not tried."""
        return _average([check.slope for check in self.orders])

    @cached_property
    def order_spread(self) -> float | None:
        """Mean standard deviation of a score over the orders; ``None`` where not tried."""
        return _average([check.spread for check in self.orders])

    @cached_property
    def repeat_difference(self) -> float | None:
        """Mean absolute difference of two scores of one attempt; ``None`` where not tried."""
        return _average([check.difference for check in self.repeats])

    @cached_property
    def repeat_tau(self) -> float | None:
        """Mean of Kendall's tau-b between two asks; ``None`` where not tried."""
        return _average([check.tau for check in self.repeats])

    @cached_property
    def misled(self) -> list[tuple[str, str, int]]:
        """Whose attempts were ranked above better ones: (better player, player above it, how many pairs)."""
        pairs = Counter(
            (group.players[better], group.players[worse])
            for group in self.groups
            for better, worse in misranked(group.scores, group.rewards)
        )
        return [(better, worse, count) for (better, worse), count in pairs.most_common()]

    def to_json(self) -> dict[str, Any]:
        """The figures and every group, as JSON has them; what is not known is ``null``."""
        figures = {
            name: _plain(getattr(self, name))
            for name in ("tau", "success_above", "top", "chance", "order_slope", "order_spread")
        }
        figures |= {name: _plain(getattr(self, name)) for name in ("repeat_difference", "repeat_tau")}
        groups = [
            {**dataclasses.asdict(group), "tau": group.tau, "success_above": group.success_above}
            for group in self.groups
        ]
        usage = None if self.usage is None else dataclasses.asdict(self.usage)
        failures = dict(self.failures)
        return {
            "judge": self.judge, **figures, "misled": self.misled, "failures": failures, "usage": usage,
            "groups": groups,
        }  # fmt: skip

    def _mean(self, values: Sequence[float | None]) -> Interval | None:
        known = [
            (value, group) for value, group in zip(values, self.groups, strict=True) if value is not None
        ]
        if not known:
            return None
        tasks = {group.task_id for group in self.groups}
        clusters = [group.task_id if len(tasks) > 1 else group.seed for _, group in known]
        rng = np.random.default_rng(_STATISTICS_SEED)
        return mean_interval([value for value, _ in known], rng, clusters=clusters)


def evaluate_judge(
    rated: RatedJudge,
    groups: Sequence[PlayedGroup],
    *,
    checks: int = 0,
    orders: int = 4,
    seed: int = 0,
    max_concurrency: int = 8,
    on_done: Callable[[], None] | None = None,
) -> JudgeEvaluation:
    """Have a judge score groups, and compare with what the environment paid.

    Args:
        rated: The judge.
        groups: Whole ones, with the environment's own rewards, each of at least two attempts.
        checks: On how many of the groups, from the first on, the judge is also asked a second time, and in
            other orders.
        orders: How many orders, at least 2.
        seed: Of the orders.
        max_concurrency: Most groups being judged at one time.
        on_done: Called once for each group judged and once for each group checked, from any thread.

    Raises:
        JudgingError: Where the judge is set up wrongly.
        ValueError: Where a group has fewer than two attempts, or is not whole.
    """
    attempts = [_attempts(played) for played in groups]
    tell = on_done or (lambda: None)

    def ask(group: Sequence[Attempt]) -> dict[str, Score] | JudgeFailed:
        found = _ask(rated.judge, group)
        tell()
        return found

    def check(number: int) -> tuple[OrderCheck | None, RepeatCheck | None]:
        rng = np.random.default_rng((seed, number))
        order = _order_check(rated.judge, attempts[number], orders, rng)
        repeat = _repeat_check(rated.fresh or rated.judge, attempts[number], answers[number])
        tell()
        return order, repeat

    pool = ThreadPoolExecutor(max_concurrency, thread_name_prefix="judge")
    try:
        before = _usage(rated.judge)
        answers = list(pool.map(ask, attempts))
        usage = _spent(before, _usage(rated.judge))
        checked = list(pool.map(check, range(min(checks, len(groups)))))
    finally:
        pool.shutdown(cancel_futures=True)
    return JudgeEvaluation(
        judge=rated.name,
        groups=tuple(
            _judged(played, answer)
            for played, answer in zip(groups, answers, strict=True)
            if not isinstance(answer, JudgeFailed)
        ),
        failures=Counter(answer.reason for answer in answers if isinstance(answer, JudgeFailed)),
        orders=tuple(order for order, _ in checked if order is not None),
        repeats=tuple(repeat for _, repeat in checked if repeat is not None),
        usage=usage,
    )


def _attempts(played: PlayedGroup) -> list[Attempt]:
    group = played.group
    if not group.whole or len(group.episodes) < 2:
        raise ValueError(
            f"task {group.task_id}: a judge is rated on whole groups of at least two attempts, this one has "
            f"{len(group.episodes)}, {sum(episode.failed for episode in group.episodes)} of them failed"
        )
    return [attempt_of(episode, f"attempt_{i}") for i, episode in enumerate(group.episodes)]


def _ask(judge: Judge, group: Sequence[Attempt]) -> dict[str, Score] | JudgeFailed:
    try:
        return judge_group(judge, group)
    except JudgeFailed as failure:
        return failure


def _judged(played: PlayedGroup, answer: Mapping[str, Score]) -> JudgedGroup:
    episodes = played.group.episodes
    scores = [answer[f"attempt_{i}"] for i in range(len(episodes))]
    return JudgedGroup(
        task_id=played.group.task_id,
        seed=episodes[0].seed,
        players=played.players,
        rewards=tuple(round(reward, _DIGITS) for reward in played.group.rewards),
        successes=tuple(episode.success for episode in episodes),
        scores=tuple(round(score.value, _DIGITS) for score in scores),
        explanations=tuple(score.explanation for score in scores),
    )


def _order_check(
    judge: Judge, group: Sequence[Attempt], orders: int, rng: np.random.Generator
) -> OrderCheck | None:
    """Show the group in several orders; ``None`` where its attempts read the same, or the judge fails."""
    if len({(*((s.reply, s.observation) for s in a.steps), a.ending) for a in group}) < 2:
        return None
    try:
        bias = position_bias(judge, group, orders=orders, rng=rng)
    except JudgeFailed:
        return None
    # What averaging equal numbers leaves over is no change.
    if bias.spread < _ROUNDING:
        return OrderCheck(0.0, 0.0)
    return OrderCheck(place_slope(bias.by_position), bias.spread)


def _repeat_check(
    judge: Judge, group: Sequence[Attempt], first: Mapping[str, Score] | JudgeFailed
) -> RepeatCheck | None:
    """Ask a second time; ``None`` where the judge failed one time or the other."""
    second = _ask(judge, group)
    if isinstance(first, JudgeFailed) or isinstance(second, JudgeFailed):
        return None
    pairs = [(first[attempt.id].value, second[attempt.id].value) for attempt in group]
    difference = math.fsum(abs(one - other) for one, other in pairs) / len(pairs)
    return RepeatCheck(difference, kendall_tau_b([one for one, _ in pairs], [other for _, other in pairs]))


def _usage(judge: Judge) -> JudgeStatistics | None:
    found = getattr(judge, "statistics", None)
    return found if isinstance(found, JudgeStatistics) else None


def _spent(before: JudgeStatistics | None, after: JudgeStatistics | None) -> JudgeStatistics | None:
    if before is None or after is None:
        return None
    names = [item.name for item in dataclasses.fields(JudgeStatistics) if item.name != "failures"]
    return JudgeStatistics(**{name: getattr(after, name) - getattr(before, name) for name in names})


def _average(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _plain(value: Interval | float | None) -> Any:
    """A figure as JSON has it; the ends of an interval that are not known are ``None``."""
    if not isinstance(value, Interval):
        return value
    figures = dataclasses.asdict(value)
    return {name: None if math.isnan(number) else number for name, number in figures.items()}
