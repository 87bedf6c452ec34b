"""A judge is a plain function of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from art_gym.wrappers.judging.attempts import Attempt, check_group
from art_gym.wrappers.judging.errors import JudgeFailed
from art_gym.wrappers.judging.rubrics import Rubric, Score


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
            JudgeFailed: Where no usable answer was had.
        """


def judge_group(judge: Judge, group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
    """Ask a judge and hold it to its word: each attempt's score, by id, once.

    Raises:
        JudgingError: For a group or rubric that cannot be judged.
        JudgeFailed: Where the judge had no usable answer, or scored other attempts than those it was given.
    """
    check_group(group)
    scores = dict(judge(group, rubric))
    wanted = {attempt.id for attempt in group}
    if scores.keys() != wanted:
        missing, unknown = sorted(wanted - scores.keys()), sorted(map(str, scores.keys() - wanted))
        raise JudgeFailed("malformed", f"the judge left out {missing} and scored the unknown {unknown}")
    return {attempt.id: scores[attempt.id] for attempt in group}
