"""Judge groups of attempts, several at the same time, and count how it went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, get_args

from art_gym.errors import did_you_mean
from art_gym.wrappers.judging.base import (
    Attempt,
    Judge,
    JudgeFailedError,
    JudgingError,
    Rubric,
    Score,
    judge_group,
)

OnFailure = Literal["nan", "raise"]
"""What happens to a group that the judge fails on."""

Verdict = Mapping[str, Score] | JudgeFailedError

_MOST_THREADS = 8


class GroupScorer:
    """Calls the judge; counts ``judged`` groups, and ``failures`` of the judge by reason.

    Args:
        judge: Scores the attempts of a group.
        rubric: What the judge is to look for; ``None``: its own rubric.
        on_failure: With ``"raise"`` the failure of a judge is raised, with ``"nan"`` it is returned.

    Raises:
        JudgingError: For an unknown ``on_failure``.
        TypeError: If the judge cannot be called.
    """

    def __init__(self, judge: Judge, rubric: Rubric | None = None, *, on_failure: OnFailure = "nan") -> None:
        if not callable(judge):
            raise TypeError(f"a judge is called with a group and a rubric, {judge!r} cannot be called")
        if on_failure not in get_args(OnFailure):
            raise JudgingError(f"no on_failure `{on_failure}`{did_you_mean(on_failure, get_args(OnFailure))}")
        self.judge, self.rubric, self.on_failure = judge, rubric, on_failure
        self.judged = 0
        self.failures: Counter[str] = Counter()

    def verdicts(self, groups: Sequence[Sequence[Attempt]]) -> list[Verdict]:
        """Judge groups, several at the same time, and count the results."""
        with ThreadPoolExecutor(min(len(groups), _MOST_THREADS)) as threads:
            found = list(threads.map(self._verdict, groups))
        failures = [verdict for verdict in found if isinstance(verdict, JudgeFailedError)]
        self.failures.update(failure.reason for failure in failures)
        self.judged += len(found) - len(failures)
        if failures and self.on_failure == "raise":
            raise failures[0]
        return found

    def _verdict(self, group: Sequence[Attempt]) -> Verdict:
        try:
            return judge_group(self.judge, group, self.rubric)
        except JudgeFailedError as failure:
            return failure
