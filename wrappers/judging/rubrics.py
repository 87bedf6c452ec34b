"""Rubrics and scores: what is looked for, and what was found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from art_gym.wrappers.judging.errors import JudgingError

_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that a judge looks for."""

    name: str
    weight: float
    """Its share of the score, from 0 to 1."""
    description: str = ""
    """What it means, in words for a model or a reader."""

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise JudgingError("a criterion needs a name")
        if not 0 <= self.weight <= 1:
            raise JudgingError(f"criterion `{self.name}` has weight {self.weight}: set a number from 0 to 1")


@dataclass(frozen=True, slots=True)
class Rubric:
    """Criteria whose weights sum to 1.

    Attributes:
        criteria: At least one.
        guidance: What a model is told about the score as a whole; judges without a model do not read it.

    Raises:
        JudgingError: For no criteria, a name twice, or weights that do not sum to 1.
    """

    criteria: tuple[Criterion, ...]
    guidance: str = ""

    def __post_init__(self) -> None:
        names = self.names
        if not names:
            raise JudgingError("a rubric needs at least one criterion")
        for name in names:
            if names.count(name) > 1:
                raise JudgingError(f"the rubric names criterion `{name}` {names.count(name)} times")
        total = math.fsum(criterion.weight for criterion in self.criteria)
        if not abs(total - 1) <= _SUM_TOLERANCE:
            shown = ", ".join(f"{criterion.name} {criterion.weight:g}" for criterion in self.criteria)
            raise JudgingError(f"a rubric's weights sum to 1, these sum to {total:g}: {shown}")

    @property
    def names(self) -> tuple[str, ...]:
        """The criteria's names, in order."""
        return tuple(criterion.name for criterion in self.criteria)

    @classmethod
    def of(cls, weights: Mapping[str, float], guidance: str = "") -> Rubric:
        """A rubric from weights by name."""
        return cls(tuple(Criterion(name, weight) for name, weight in weights.items()), guidance)


@dataclass(frozen=True, slots=True)
class Score:
    """How good an attempt was.

    Raises:
        JudgingError: Where the value or a part is not a number from 0 to 1.
    """

    value: float
    """From 0 to 1."""
    explanation: str = ""
    """Why, in words."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Each criterion's own score from 0 to 1, where the judge has them."""

    def __post_init__(self) -> None:
        for name, value in [("value", self.value), *self.parts.items()]:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise JudgingError(f"a score's {name} is a number from 0 to 1, not {value!r}")
