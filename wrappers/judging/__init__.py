"""Judges: what attempts at one task are worth, seen beside each other."""

from art_gym.wrappers.judging.attempts import Attempt, Step, check_group
from art_gym.wrappers.judging.criteria import CLASSIC_CRITERIA, CLASSIC_RUBRIC
from art_gym.wrappers.judging.criteria_findings import CriterionFunction, Finding
from art_gym.wrappers.judging.ensembles import (
    EnsembleJudge,
    EnsembleScore,
    OrderedJudge,
    PairwiseJudge,
    PositionBias,
    ShufflingJudge,
    position_bias,
)
from art_gym.wrappers.judging.errors import JudgeFailed, JudgingError
from art_gym.wrappers.judging.judge_budget import JudgeBudget
from art_gym.wrappers.judging.judge_cache import CachedAnswer, JudgeCache
from art_gym.wrappers.judging.judges import Judge, judge_group
from art_gym.wrappers.judging.llm_judge import LLMJudge
from art_gym.wrappers.judging.llm_rubric import RULER_RUBRIC
from art_gym.wrappers.judging.llm_statistics import JudgeStatistics
from art_gym.wrappers.judging.recording import AttemptRecorder
from art_gym.wrappers.judging.rubric_judge import RubricJudge
from art_gym.wrappers.judging.rubrics import Criterion, Rubric, Score

__all__ = [
    "CLASSIC_CRITERIA",
    "CLASSIC_RUBRIC",
    "RULER_RUBRIC",
    "Attempt",
    "AttemptRecorder",
    "CachedAnswer",
    "Criterion",
    "CriterionFunction",
    "EnsembleJudge",
    "EnsembleScore",
    "Finding",
    "Judge",
    "JudgeBudget",
    "JudgeCache",
    "JudgeFailed",
    "JudgeStatistics",
    "JudgingError",
    "LLMJudge",
    "OrderedJudge",
    "PairwiseJudge",
    "PositionBias",
    "Rubric",
    "RubricJudge",
    "Score",
    "ShufflingJudge",
    "Step",
    "check_group",
    "judge_group",
    "position_bias",
]
