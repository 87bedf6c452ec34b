"""Judges: what attempts at one task are worth, seen beside each other."""

from art_gym.wrappers.judging.attempts import Attempt, Step, check_group
from art_gym.wrappers.judging.criteria import CLASSIC_CRITERIA, CLASSIC_RUBRIC
from art_gym.wrappers.judging.criteria_findings import CriterionFunction, Finding
from art_gym.wrappers.judging.errors import JudgeFailed, JudgingError
from art_gym.wrappers.judging.judges import Judge, judge_group
from art_gym.wrappers.judging.recording import AttemptRecorder
from art_gym.wrappers.judging.rubric_judge import RubricJudge
from art_gym.wrappers.judging.rubrics import Criterion, Rubric, Score

__all__ = [
    "CLASSIC_CRITERIA",
    "CLASSIC_RUBRIC",
    "Attempt",
    "AttemptRecorder",
    "Criterion",
    "CriterionFunction",
    "Finding",
    "Judge",
    "JudgeFailed",
    "JudgingError",
    "Rubric",
    "RubricJudge",
    "Score",
    "Step",
    "check_group",
    "judge_group",
]
