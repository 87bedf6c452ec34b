"""What a logger raises reaches no training; what is missing is said before it begins."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError
from art_trainer.tracking.callbacks import Outcome
from art_trainer.tracking.loggers.base import (
    LOGGER_NAMES,
    LoggerCallback,
    RunInfo,
    RunLogger,
    dashboard_metrics,
    logger_names,
    make_logger,
)
from art_trainer.training.trainer import GRPOTrainer
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.tracking.loggers.logged_runs import log_run
from tests.art_trainer.updates import logged_metrics


class MemoryLogger(RunLogger):
    """Keeps the calls, and raises at some of them: by their number from 0, with ``begin`` as the first."""

    def __init__(self, name: str, fails_at: Any = ()) -> None:
        self.name = name  # type: ignore[misc]
        self.fails_at = fails_at
        self.calls: list[Any] = []

    def _call(self, *call: Any) -> None:
        self.calls.append(call)
        if len(self.calls) - 1 in self.fails_at:
            raise RuntimeError("the key hunter2-hunter2\nis wrong")

    def on_begin(self, step: int) -> None:
        self._call("begin", step)

    def on_logged(self, metrics: Any, groups: Any = ()) -> None:
        self._call("step", metrics["step"], sum(len(group.episodes) for group in groups))

    def on_checkpoint(self, step: int, folder: Path, aliases: Any) -> None:
        self._call("checkpoint", step, folder.name, aliases)

    def on_end(self, outcome: Outcome) -> None:
        self._call("end", outcome)


def test_three_failures_in_a_row_switch_a_logger_off_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hunter2-hunter2")
    bad, shaky, good = (
        MemoryLogger("bad", (3, 4, 5)),
        MemoryLogger("shaky", (1, 2, 4, 5)),
        MemoryLogger("good"),
    )
    log_run(tmp_path, [bad, shaky, good], last=6)
    assert [call[0] for call in good.calls] == ["begin", *["step"] * 6, "checkpoint", "end"]
    assert (len(bad.calls), len(shaky.calls)) == (6, 9)
    warnings = [message for message in caplog.messages if message.startswith("bad")]
    assert warnings[:3] == ["bad: the key *** is wrong"] * 3
    assert warnings[3:] == [f"bad is switched off for the rest of the run; everything is in {tmp_path}"]
    assert len(caplog.messages) == len(warnings) + 4


def test_a_logger_that_cannot_begin_is_switched_off_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = MemoryLogger("bad", (0,))
    log_run(tmp_path, [bad])
    assert bad.calls == [("begin", 0)]
    assert "switched off" in caplog.messages[-1]


def trained(folder: Path, loggers: list[RunLogger]) -> dict[str, torch.Tensor]:
    """Train three steps; return the weights."""
    config = GRPOConfig(
        output_dir=str(folder), max_steps=3, groups_per_step=2, num_generations=4,
        max_completion_length=2, save_steps=1, eval_steps=2, eval_episodes=2,
    )  # fmt: skip
    callback = LoggerCallback(RunInfo(folder, config.to_mapping()), loggers)
    trainer = GRPOTrainer(guess_policy(hidden=16), GuessEnv, config, callbacks=[callback])
    trainer.train()
    trainer.close()
    return {name: value.clone() for name, value in trainer.policy.model.state_dict().items()}


def test_a_training_is_the_same_with_loggers_that_fail(tmp_path: Path) -> None:
    good = MemoryLogger("good")
    weights = trained(tmp_path / "run", [MemoryLogger("bad", range(99)), good])
    alone = trained(tmp_path / "alone", [])
    assert all(torch.equal(alone[name], weights[name]) for name in alone)
    assert logged_metrics(tmp_path / "run") == logged_metrics(tmp_path / "alone")
    shown = [call for call in good.calls if call[0] == "step"]
    assert [(step, episodes) for _, step, episodes in shown] == [(0, 0), *((step, 8) for step in (1, 2, 3))]
    assert good.calls[-2:] == [("checkpoint", 3, "step-000003", good.calls[-2][3]), ("end", "finished")]
    assert "final" in good.calls[-2][3]


@pytest.mark.parametrize("name", LOGGER_NAMES)
def test_a_missing_package_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"art_trainer.tracking.loggers.{name}", raising=False)
    with pytest.raises(ConfigError, match=rf'{name}: pip install "art-gym\[{name}\]"'):
        make_logger(name, RunInfo(Path()))


def test_names_are_parsed_and_a_wrong_one_gets_a_proposal() -> None:
    for given in (" wandb,,tensorboard,wandb ", ["wandb", "tensorboard"]):
        assert logger_names(given) == LOGGER_NAMES
    with pytest.raises(ConfigError, match="no logger `tensorbord`; did you mean `tensorboard`"):
        logger_names("tensorbord")


def test_metrics_have_the_names_of_dashboards() -> None:
    names = {
        "policy_loss": "train/policy_loss", "clip_ratio": "train/clip_fraction",
        "grad_norm": "train/gradient_norm", "reward": "rollout/average_reward",
        "success": "rollout/success_rate", "turns": "rollout/average_episode_length",
        "tokens_per_second": "rollout/tokens_per_second", "eval_success": "eval/success",
        "time/update": "time/update", "score/found": "score/found", "new": "train/new",
    }  # fmt: skip
    assert list(dashboard_metrics({"step": 3.0, **dict.fromkeys(names, 1.0)})) == list(names.values())
