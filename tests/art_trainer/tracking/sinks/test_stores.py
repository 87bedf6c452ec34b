"""What TensorBoard and MLflow have beside metrics and episodes; a full disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from art_trainer.tracking.sinks.delivery import sync_run
from tests.art_trainer.tracking.full_disk import full_disk
from tests.art_trainer.tracking.sinks.sink_runs import MadeRun

MakeService = Callable[[str], Any]


@pytest.mark.filterwarnings("ignore:.*filesystem tracking backend.*:FutureWarning")
def test_mlflow_has_parameters_tags_and_status(make_service: MakeService, tmp_path: Path) -> None:
    service, run = make_service("mlflow"), MadeRun(tmp_path / "run")
    run.deliver(service.sink(), last=3, outcome="interrupted")
    client, run_id = service.client(run)
    assert client.get_run(run_id).info.status == "KILLED"
    run.deliver(service.sink(), first=4)
    kept = client.get_run(run_id)
    assert kept.info.status == "FINISHED"
    assert client.get_experiment(kept.info.experiment_id).name == "art-gym"
    assert kept.data.params == {name: str(value) for name, value in run.info.config.items()}
    assert {"GRPO", "ART", "art-tiny", "checkpoint.latest"} <= kept.data.tags.keys()
    assert kept.data.tags["checkpoint.latest"].endswith("step-000006")


def test_a_full_disk_loses_nothing(make_service: MakeService, tmp_path: Path) -> None:
    service, run = make_service("tensorboard"), MadeRun(tmp_path / "run", steps=30)
    run.played()
    with full_disk(8_000):
        status, _ = sync_run(run.folder, service.sink())
    assert (status.complete, status.delivered > 5) == (False, True)
    assert "No space left" in str(status.problem)
    assert sync_run(run.folder, service.sink())[0].complete
    assert {step for (step, _), _ in service.metrics(run)} == set(range(1, 31))
