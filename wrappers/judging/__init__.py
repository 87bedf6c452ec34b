"""Judges: scores for the attempts at one task, compared with each other."""

from art_gym.wrappers.judging.base import (
    Attempt,
    AttemptRecorder,
    Criterion,
    Judge,
    JudgeFailedError,
    JudgingError,
    Rubric,
    Score,
    Step,
    check_group,
    judge_group,
)
from art_gym.wrappers.judging.budget import JudgeBudget, JudgeStatistics
from art_gym.wrappers.judging.cache import CachedAnswer, JudgeCache
from art_gym.wrappers.judging.llm_judge import RULER_RUBRIC, LLMJudge
from art_gym.wrappers.judging.rubric_judge import (
    CLASSIC_CRITERIA,
    CLASSIC_RUBRIC,
    CriterionFunction,
    Finding,
    RubricJudge,
)

__all__ = [
    "CLASSIC_CRITERIA",
    "CLASSIC_RUBRIC",
    "RULER_RUBRIC",
    "Attempt",
    "AttemptRecorder",
    "CachedAnswer",
    "Criterion",
    "CriterionFunction",
    "Finding",
    "Judge",
    "JudgeBudget",
    "JudgeCache",
    "JudgeFailedError",
    "JudgeStatistics",
    "JudgingError",
    "LLMJudge",
    "Rubric",
    "RubricJudge",
    "Score",
    "Step",
    "check_group",
    "judge_group",
]
