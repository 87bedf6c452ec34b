"""Judges: what attempts at one task are worth, seen beside each other."""

from art_gym.wrappers.judging.attempts import Attempt, Step, check_group
from art_gym.wrappers.judging.errors import JudgeFailed, JudgingError
from art_gym.wrappers.judging.judges import Judge, judge_group
from art_gym.wrappers.judging.rubrics import Criterion, Rubric, Score

__all__ = [
    "Attempt",
    "Criterion",
    "Judge",
    "JudgeFailed",
    "JudgingError",
    "Rubric",
    "Score",
    "Step",
    "check_group",
    "judge_group",
]
