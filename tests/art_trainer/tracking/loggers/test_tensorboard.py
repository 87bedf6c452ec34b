"""TensorBoard: event files as its own reader sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from art_trainer.tracking.loggers.base import dashboard_metrics
from tests.art_trainer.tracking.loggers.logged_runs import log_run, metrics


def read(run: Path) -> dict[str, list[tuple[int, Any]]]:
    """Steps and values by name, as TensorBoard shows them."""
    found = EventAccumulator(
        str(run / "tensorboard"), tensor_size_guidance={"scalars": 0, "text": 0}
    ).Reload()
    return {
        name: [(event.step, make_ndarray(event.tensor_proto).item()) for event in found.Tensors(name)]
        for name in found.Tags()["tensors"]
    }


def test_a_resumed_run_shows_each_step_once(tmp_path: Path) -> None:
    log_run(tmp_path, ["tensorboard"], last=3)
    log_run(tmp_path, ["tensorboard"], first=2, last=4)
    found = read(tmp_path)
    episodes, settings = found.pop("episode/text_summary"), found.pop("settings/text_summary")
    assert found == {
        name: [(step, dashboard_metrics(metrics(step))[name]) for step in (1, 2, 3, 4)]
        for name in dashboard_metrics(metrics(1))
    }
    heads = [(step, text.decode().partition(":")[0]) for step, text in episodes]
    assert heads == [(step, f"00000{step}-0000") for step in (1, 2, 3, 4)]
    assert "    > I look.\n" in episodes[0][1].decode()
    assert '"seed": 3' in settings[0][1].decode()
