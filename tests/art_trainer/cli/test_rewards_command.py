from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from art_trainer.errors import ConfigError
from art_trainer.tracking.episode_store import iter_steps
from art_trainer.tracking.run_dir import RunFolder
from art_trainer.training.run_settings import RunSettings
from art_trainer.training.run_setup import reward_model
from tests.wrappers.judging.judge_server import Reply, likes_short_attempts

TRAIN = "train --output-dir run --model art-tiny --env-args difficulty=1 --max-steps 2".split()
TRAIN += "--groups-per-step 3 --num-generations 4 --eval-episodes 4 --threads 1 --set baselines=[]".split()


@pytest.fixture
def metrics(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """The metrics of the run in the folder ``run``."""
    return lambda: list(RunFolder(tmp_path / "run").metrics().records)


def test_training_is_paid_by_a_judge_model_behind_http(
    tmp_path: Path, serve: Any, invoke: Any, metrics: Any
) -> None:
    server = serve(likes_short_attempts)
    invoke(*TRAIN, "--reward", "0.7*ruler+0.3*env", "--judge", f"openai:tiny@{server.url}")
    lines = metrics()
    assert len(lines) == 2
    for line in lines:
        assert line["failed_groups"] == 0
        assert 0 < line["score/ruler"] <= 0.7
        assert line["independent_reward"] != line["reward"]
    # One question a group, and each group of two steps was asked about.
    assert len(server.requests) == 6
    first = next(iter_steps(tmp_path / "run"))
    assert first.groups[0].episodes[0].judgements["ruler"].explanation


def test_a_server_that_is_gone_masks_every_group_and_then_stops_the_run(
    tmp_path: Path, serve: Any, refused: Any, metrics: Any
) -> None:
    server = serve(lambda number, request: Reply({"error": {"message": "no"}}, status=401))
    judge = ["--reward", "ruler", "--judge", f"openai:tiny@{server.url}", "--max-steps", "9"]
    assert "no group could be judged in 3 batches in a row" in refused(*TRAIN, *judge)
    lines = metrics()
    assert [line["unjudged_groups/refused"] for line in lines] == [3, 3]
    assert all(line["trained_tokens"] == 0 for line in lines)
    assert list((tmp_path / "run" / "checkpoints").iterdir())


def test_a_spent_budget_stops_the_run_with_a_checkpoint(
    tmp_path: Path, serve: Any, refused: Any, metrics: Any
) -> None:
    server = serve(likes_short_attempts)
    judge = ["--reward", "ruler", "--judge", f"openai:tiny@{server.url}", "--max-steps", "9"]
    error = refused(*TRAIN, *judge, "--set", "judge_args={budget: {max_requests: 4}}")
    assert "the judge's 4 requests are used up" in error
    assert (len(server.requests), len(metrics())) == (4, 1)
    assert list((tmp_path / "run" / "checkpoints").iterdir())


def test_the_rubric_rewards_without_a_model(invoke: Any, metrics: Any) -> None:
    invoke(*TRAIN, "--reward", "rubric")
    assert all(0 < line["score/rubric"] <= 1 for line in metrics())
    assert reward_model(RunSettings(), Path()) is None, "nor does the environment's own"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"reward": "ruler"}, "needs a judge model: --judge openai:MODEL@URL"),
        ({"reward": "ruler", "judge": "gpt"}, "names no model"),
        ({"reward": "rubrik"}, "did you mean `rubric`"),
        ({"reward": "rubric", "rubric": {"accuracy": 0.5}}, "weights sum to 1"),
        ({"reward": "rubric", "rubric": {"acuracy": 1.0}}, "did you mean `accuracy`"),
        ({"reward": "ruler", "judge": "openai:m@http://x/v1", "judge_args": {"timeout": -1}}, "timeout"),
        ({"reward": "ruler", "judge": "openai:m@http://x/v1", "judge_args": {"time": 1}}, "time"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        reward_model(RunSettings(**settings), tmp_path)
