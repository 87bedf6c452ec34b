"""MLflow: a local store, read back through its client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow")

from art_trainer.monitoring.events import EpisodesPlayed
from art_trainer.monitoring.mlflow_sink import MlflowSink
from art_trainer.monitoring.monitor import Monitor
from art_trainer.monitoring.shown import episode_rows, shown_metrics
from art_trainer.monitoring.source import events_after
from art_trainer.monitoring.sync import sync_run
from tests.art_trainer.monitoring.sink_runs import QUICK, MadeRun

pytestmark = pytest.mark.filterwarnings("ignore:.*filesystem tracking backend.*:FutureWarning")


@pytest.fixture(autouse=True)
def _local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def _client(sink: MlflowSink) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=sink.state()["destination"])


def _play(run: MadeRun, sink: MlflowSink, first: int, last: int, outcome: Any = "finished") -> None:
    monitor = Monitor(run.info, [sink], say=pytest.fail, limits=QUICK, close_seconds=60.0)
    run.begin(monitor, step=first - 1)
    run.play(monitor, first=first, last=last)
    monitor.on_end(outcome)
    assert monitor.statuses[0].complete


def _history(client: Any, run_id: str, run: MadeRun) -> dict[tuple[str, int], list[float]]:
    found: dict[tuple[str, int], list[float]] = {}
    for name in {name for line in run.metrics() for name in shown_metrics(line)}:
        for metric in client.get_metric_history(run_id, name):
            found.setdefault((name, metric.step), []).append(metric.value)
    return found


def test_the_store_holds_every_metric_once_and_a_resumed_run_goes_on_in_it(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    first, second = MlflowSink(), MlflowSink()
    _play(run, first, 1, 3, "interrupted")
    client, run_id = _client(first), first.state()["id"]
    assert client.get_run(run_id).info.status == "KILLED"
    _play(run, second, 4, 6)
    assert second.state() == first.state()
    assert (tmp_path / "mlruns").is_dir()
    expected = {
        (name, int(line["step"])): [value]
        for line in run.metrics()
        for name, value in shown_metrics(line).items()
    }
    assert _history(client, run_id, run) == expected
    kept = client.get_run(run_id)
    assert kept.info.status == "FINISHED"
    assert client.get_experiment(kept.info.experiment_id).name == "art-tests"
    assert kept.data.params == {name: str(value) for name, value in run.info.config.items()}
    assert {"GRPO", "ART", "art-tiny", "checkpoint.latest"} <= kept.data.tags.keys()
    assert kept.data.tags["checkpoint.latest"].endswith("step-000006")
    artifacts = Path(kept.info.artifact_uri.removeprefix("file://")) / "episodes"
    rows = [
        json.loads(line) for file in sorted(artifacts.iterdir()) for line in file.read_text().splitlines()
    ]
    played = [event for event in events_after(run.folder) if isinstance(event, EpisodesPlayed)]
    assert rows == [row._asdict() for event in played for row in episode_rows(event, run.info)]


def test_a_store_that_is_gone_is_filled_later(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run", steps=3)
    (tmp_path / "mlruns").write_text("a file where the store should be")
    words: list[str] = []
    monitor = Monitor(run.info, [MlflowSink()], say=words.append, limits=QUICK)
    run.begin(monitor)
    run.play(monitor)
    monitor.on_end("finished")
    assert not monitor.statuses[0].complete
    assert "art-trainer sync" in words[-1]
    (tmp_path / "mlruns").unlink()
    sink = MlflowSink()
    assert sync_run(run.folder, sink, say=pytest.fail).status.complete
    assert len(_history(_client(sink), sink.state()["id"], run)) == 3 * len(shown_metrics(run.metrics()[0]))


def test_an_address_is_taken_from_the_settings() -> None:
    assert (
        MlflowSink.from_settings({"MLFLOW_TRACKING_URI": "http://there"}).state()["destination"]
        == "http://there"
    )
