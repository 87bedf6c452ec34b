"""What a criterion says of an attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from art_gym.wrappers.judging.attempts import Attempt, Step


class Finding(NamedTuple):
    """What a criterion found in one attempt."""

    value: float
    """From 0 to 1."""
    why: str
    """The reason, in a few words."""


CriterionFunction = Callable[[Attempt], tuple[float, str]]
"""Looks at one attempt alone and returns a `Finding`, or a plain pair of a value and the reason."""


def valid_steps(attempt: Attempt) -> list[Step]:
    """The steps whose reply was not refused."""
    return [step for step in attempt.steps if step.error is None]


def valid_share(attempt: Attempt) -> float:
    """The share of the replies that were not refused; 0 for an attempt without replies."""
    return len(valid_steps(attempt)) / len(attempt.steps) if attempt.steps else 0.0


def ended_itself(attempt: Attempt) -> bool:
    """Whether a valid reply brought the attempt to its end, and no limit cut it off."""
    return attempt.ending == "terminated" and bool(attempt.steps) and attempt.steps[-1].error is None
