"""A full disk under a sink that writes files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from art_trainer.tracking.sinks.delivery import sync_run
from tests.art_trainer.tracking.full_disk import full_disk
from tests.art_trainer.tracking.sinks.sink_runs import MadeRun

MakeService = Callable[[str], Any]


def test_a_full_disk_loses_nothing(make_service: MakeService, tmp_path: Path) -> None:
    service, run = make_service("tensorboard"), MadeRun(tmp_path / "run", steps=30)
    run.played()
    with full_disk(8_000):
        status, _ = sync_run(run.folder, service.sink())
    assert (status.complete, status.delivered > 5) == (False, True)
    assert "No space left" in str(status.problem)
    assert sync_run(run.folder, service.sink())[0].complete
    assert {step for (step, _), _ in service.metrics(run)} == set(range(1, 31))
