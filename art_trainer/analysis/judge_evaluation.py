"""How well a judge ranks attempts: its scores against the environment's own reward on the same groups."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from art_gym.wrappers.judging import Attempt, Judge, JudgeFailedError, Rubric, Score, judge_group
from art_gym.wrappers.judging.agreement import (
    judged_tau,
    success_above_failure,
    top_agreement,
    top_chance,
)
from art_gym.wrappers.judging.budget import JudgeStatistics
from art_trainer.analysis.mixed_groups import LabelledGroup
from art_trainer.errors import EvaluationFailedError
from art_trainer.formatting import finite
from art_trainer.rollout.judge_rewards import attempt_of
from art_trainer.rollout.statistics import mean_interval, rate_interval
from art_trainer.types import Interval

_STATISTICS_SEED = 20_240_229
_MOST_FAULTS = 8
"""Groups that a judge fails for, at the beginning, before it is given up."""
_DIGITS = 9
"""Decimals: sums of the same terms in another order differ by rounding."""
_TRUTH = ("expected", "result")


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
        figures: Means over the groups, ``None`` if no group has one. ``tau``: Kendall's tau-b with the true
            rewards; ``success_above``: share of the pairs of a success and a failure in which the success is
            scored higher; ``top``: how often the judge's best attempt is among the truly best; ``chance``:
            how often a random attempt is.
        usage: Requests, tokens and cost of judging the groups; ``None`` if the judge does not count.
    """

    judge: str
    groups: tuple[JudgedGroup, ...]
    failures: Mapping[str, int]
    figures: Mapping[str, Interval | None]
    usage: JudgeStatistics | None

    def to_json(self) -> dict[str, Any]:
        """The figures and every group as JSON; unknown values are ``null``."""
        data = dataclasses.asdict(self)
        figures = data.pop("figures")
        groups = [dataclasses.asdict(group) | group.figures() for group in self.groups]
        plain: dict[str, Any] = finite({**data, **figures, "groups": groups})
        return plain


def evaluate_judge(
    name: str,
    judge: Judge,
    groups: Sequence[LabelledGroup],
    *,
    max_concurrency: int = 8,
    on_done: Callable[[], None] | None = None,
) -> JudgeEvaluation:
    """Have a judge score groups, and compare the scores with the environment's rewards.

    Args:
        name: What to call the judge.
        judge: The judge.
        groups: Whole groups of at least two attempts, with the environment's own rewards.
        max_concurrency: Most groups being judged at a time.
        on_done: Called once for each group judged, from any thread.

    Raises:
        EvaluationFailedError: If the judge fails for the first groups, or all.
        JudgingError: If the judge is misconfigured.
        ValueError: If a group has fewer than two attempts or is not whole.
    """
    attempts = [_attempts(played) for played in groups]
    count = on_done or (lambda: None)

    def ask(group: Sequence[Attempt]) -> dict[str, Score] | JudgeFailedError:
        try:
            return judge_group(judge, group)
        except JudgeFailedError as failure:
            return failure
        finally:
            count()

    pool = ThreadPoolExecutor(max_concurrency, thread_name_prefix="judge")
    try:
        before = _usage(judge)
        answers = []
        for answer in pool.map(ask, attempts):
            answers.append(answer)
            first = min(_MOST_FAULTS, len(attempts))
            if len(answers) == first and all(isinstance(one, JudgeFailedError) for one in answers):
                raise EvaluationFailedError(f"{name}: it failed for the first {first} groups: {answer}")
        after = _usage(judge)
    finally:
        pool.shutdown(cancel_futures=True)
    judged = [
        _judged(played, answer)
        for played, answer in zip(groups, answers, strict=True)
        if not isinstance(answer, JudgeFailedError)
    ]
    return JudgeEvaluation(
        judge=name,
        groups=tuple(judged),
        failures=Counter(answer.reason for answer in answers if isinstance(answer, JudgeFailedError)),
        figures=_figures(judged),
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
        interval = mean_interval if name == "tau" else rate_interval
        found[name] = interval(values, clusters, rng).within(-1.0, 1.0) if known else None
    return found


def _usage(judge: Judge) -> JudgeStatistics | None:
    found = getattr(judge, "statistics", None)
    return found if isinstance(found, JudgeStatistics) else None


def _spent(before: JudgeStatistics, after: JudgeStatistics) -> JudgeStatistics:
    names = [item.name for item in dataclasses.fields(JudgeStatistics) if item.name != "failures"]
    return JudgeStatistics(**{name: getattr(after, name) - getattr(before, name) for name in names})


def blind_judge(judge: Judge) -> Judge:
    """Hide from a judge what was right and what the result is, as if the environment did not report it."""

    def score(group: Sequence[Attempt], rubric: Rubric | None = None) -> Mapping[str, Score]:
        blind = [
            replace(one, facts={name: fact for name, fact in one.facts.items() if name not in _TRUTH})
            for one in group
        ]
        return judge(blind, rubric)

    return score
