"""``RubricJudge``: scores by a rubric without a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real

from art_gym.errors import did_you_mean
from art_gym.wrappers.judging.attempts import Attempt, check_group
from art_gym.wrappers.judging.criteria import CLASSIC_CRITERIA, CLASSIC_RUBRIC
from art_gym.wrappers.judging.criteria_findings import CriterionFunction
from art_gym.wrappers.judging.errors import JudgingError
from art_gym.wrappers.judging.rubrics import Rubric, Score


class RubricJudge:
    """Scores each attempt by the weighted sum of a rubric's criteria, each a small function.

    Deterministic and quick, and it looks at each attempt alone: its order, its id and the other attempts
    change nothing. It reads the transcript and ``facts``; never the environment's reward or success. How far
    to trust it hangs on the facts: with an expected result it measures, without one it guesses (see
    `criteria_transcript`).

    Where it misleads even with good facts: a wrong result costs no more than none, and with the right actions
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
        """Score the attempts of a group, by id.

        Args:
            group: Attempts at one task.
            rubric: In place of the judge's own.

        Raises:
            JudgingError: For a group that cannot be judged, a criterion that has no function, or one whose
                value is not a number from 0 to 1.
        """
        check_group(group)
        return {attempt.id: self.score(attempt, rubric) for attempt in group}

    def score(self, attempt: Attempt, rubric: Rubric | None = None) -> Score:
        """Score one attempt.

        Raises:
            JudgingError: As for a group.
        """
        rubric = self.rubric if rubric is None else self._checked(rubric)
        parts: dict[str, float] = {}
        words = []
        for name in rubric.names:
            parts[name], why = self._find(name, attempt)
            words.append(f"{name} {parts[name]:.2f}: {why}")
        total = math.fsum(criterion.weight * parts[criterion.name] for criterion in rubric.criteria)
        return Score(min(1.0, max(0.0, total)), "; ".join(words), parts)

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
