"""From the settings of a run to what its training pays."""

from __future__ import annotations

from pathlib import Path

from art_gym.wrappers.judging import (
    CLASSIC_RUBRIC,
    Judge,
    JudgeBudget,
    JudgingError,
    LLMJudge,
    Rubric,
    RubricJudge,
)
from art_trainer.commands.policies import openai_words
from art_trainer.commands.settings import RunSettings
from art_trainer.errors import ConfigError
from art_trainer.judging import ENV, RewardMix, RewardModel
from art_trainer.monitoring.settings import value_of

_CACHE = "judge_cache.sqlite"

RUBRIC, RULER = "rubric", "ruler"


def reward_model(run: RunSettings, folder: Path) -> RewardModel | None:
    """What judges a run's episodes; ``None`` where the environment's own reward is paid as it is.

    Args:
        run: The settings.
        folder: The run's, where a judge model's answers are kept, so that a resumed run does not ask again.

    Raises:
        ConfigError: For a mix, rubric or judge that makes no sense.
    """
    mix = RewardMix.parse(run.reward, (RUBRIC, RULER))
    if mix.weights == {ENV: 1.0}:
        return None
    judges: dict[str, Judge] = {}
    try:
        rubric = Rubric.of(run.rubric) if run.rubric else None
        if RUBRIC in mix.judges:
            judges[RUBRIC] = RubricJudge(rubric or CLASSIC_RUBRIC)
        if RULER in mix.judges:
            judges[RULER] = _llm_judge(run, rubric, folder)
    except (JudgingError, TypeError) as error:
        raise ConfigError(f"reward {run.reward!r}: {error}") from error
    return RewardModel(mix, judges)


def _llm_judge(run: RunSettings, rubric: Rubric | None, folder: Path) -> LLMJudge:
    """The judge model that the settings name.

    Raises:
        ConfigError: Where they name none, or its package is missing.
        JudgingError: For an argument out of range.
        TypeError: For an argument that the judge does not have.
    """
    if run.judge is None:
        raise ConfigError(
            "the reward `ruler` needs a judge model: --judge openai:MODEL@URL, as in "
            "--judge openai:qwen3@http://localhost:8000/v1"
        )
    model, url = openai_words(run.judge)
    arguments = {"cache": folder / _CACHE, "api_key": value_of("OPENAI_API_KEY"), **run.judge_args}
    if isinstance(arguments.get("budget"), dict):
        arguments["budget"] = JudgeBudget(**arguments["budget"])
    if rubric is not None:
        arguments["rubric"] = rubric
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return LLMJudge(model, url, **arguments)
    except ImportError as error:
        raise ConfigError(str(error)) from error
