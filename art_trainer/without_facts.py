"""A judge that is not told what was right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from art_gym.wrappers.judging import Attempt, Judge, Rubric, Score

TRUTH_FACTS = ("expected", "result")
"""The facts that tell a judge without a model what was right and what came of it."""


class WithoutFacts:
    """A judge that does not see some facts of the attempts, as in an environment that does not know them.

    Args:
        judge: Who judges.
        hidden: The names of the facts.
    """

    def __init__(self, judge: Judge, hidden: Sequence[str] = TRUTH_FACTS) -> None:
        self._judge = judge
        self._hidden = frozenset(hidden)

    def __call__(self, group: Sequence[Attempt], rubric: Rubric | None = None) -> Mapping[str, Score]:
        """Score the attempts of a group, by id.

        Args:
            group: Attempts at one task.
            rubric: For the judge.

        Raises:
            JudgingError: As the judge does.
            JudgeFailed: As the judge does.
        """
        return self._judge([self._without(attempt) for attempt in group], rubric)

    def _without(self, attempt: Attempt) -> Attempt:
        facts = {name: value for name, value in attempt.facts.items() if name not in self._hidden}
        return replace(attempt, facts=facts)
