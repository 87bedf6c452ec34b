"""Training is the same with sinks as without, whatever they do; together they tell what the folder has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from art_trainer.config import GRPOConfig
from art_trainer.monitoring.events import RunInfo, Sink
from art_trainer.monitoring.monitor import Monitor
from art_trainer.monitoring.registry import make_sink
from art_trainer.monitoring.shown import shown_metrics
from art_trainer.monitoring.source import events_after
from art_trainer.records import iter_episodes
from art_trainer.trainer import GRPOTrainer
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.monitoring.sink_runs import QUICK, MemorySink
from tests.art_trainer.monitoring.trace_receivers import (
    PUBLIC,
    SCORES,
    SECRET,
    Answer,
    receiving,
    scores_in,
    spans_in,
)
from tests.art_trainer.waiting import until

STEPS = 3


class DeadSink(MemorySink):
    """Nothing it is given arrives."""

    def __init__(self) -> None:
        super().__init__(fail=tuple(range(1, 10_000)))
        self.name = "dead"


class StuckSink(MemorySink):
    """Its first event never ends."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "stuck"
        self.gate.clear()


class AbsentSink(MemorySink):
    """Nobody opens."""

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        raise ConnectionRefusedError("nobody there")


def _trained(
    folder: Path, sinks: Sequence[Sink], *, close_seconds: float, told: Callable[[], bool] = lambda: True
) -> tuple[Monitor, dict[str, Any]]:
    """Train a little, as ``train()`` does, then end; return the monitor and the weights."""
    config = GRPOConfig(
        output_dir=str(folder), max_steps=STEPS, groups_per_step=2, num_generations=4, max_completion_length=2
    )
    trainer = GRPOTrainer(guess_policy(hidden=16), GuessEnv, config)
    info = RunInfo(
        folder.name, "art-tests", folder, "GuessEnv", "tiny", config.to_mapping(), ("ART", "GRPO", "tiny")
    )
    monitor = Monitor(info, sinks, say=lambda words: None, limits=QUICK, close_seconds=close_seconds)
    trainer.log.begin(config.to_mapping(), 0)
    monitor.on_begin(0)
    for _ in range(STEPS):
        groups = trainer.collect_episodes()
        metrics = trainer.update_policy(groups)
        trainer.log.write_metrics(metrics)
        trainer.log.write_episodes(trainer.step, groups, None)
        monitor.on_logged(metrics, groups)
        monitor.on_checkpoint(
            trainer.step, trainer.save_checkpoint(trainer.log.checkpoints / f"step-{trainer.step:06d}")
        )
    until(told)
    monitor.on_end("finished")
    trainer.close()
    return monitor, {name: value.clone() for name, value in trainer.policy.model.state_dict().items()}


def _metrics(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    timed = ("time/", "tokens_per_second")
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(timed)} for line in lines]


def _assert_same_training(folder: Path, weights: dict[str, Any], tmp_path: Path) -> None:
    _, alone = _trained(tmp_path / "alone", (), close_seconds=0.0)
    assert alone.keys() == weights.keys()
    assert all(torch.equal(alone[name], weights[name]) for name in alone)
    assert _metrics(folder) == _metrics(tmp_path / "alone")


def test_sinks_that_fail_in_every_way_change_nothing(tmp_path: Path) -> None:
    kept = MemorySink()
    stuck = StuckSink()
    absent = AbsentSink()
    absent.name = "absent"
    sinks = [DeadSink(), kept, stuck, absent]
    all_told = 3 * STEPS
    monitor, weights = _trained(
        tmp_path / "run", sinks, close_seconds=1.0, told=lambda: len(kept.events) == all_told
    )
    complete = {status.name: status.complete for status in monitor.statuses}
    assert complete == {"dead": False, "memory": True, "stuck": False, "absent": False}
    assert len(kept.events) == len(list(events_after(tmp_path / "run"))) == all_told
    _assert_same_training(tmp_path / "run", weights, tmp_path)
    stuck.gate.set()


# W&B's own temporary folders are removed when the interpreter ends, not before.
@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_all_sinks_at_once_tell_what_the_folder_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("wandb", "tensorboard", "trackio", "mlflow", "langfuse", "opentelemetry", "httpx"):
        pytest.importorskip(package)
    from mlflow import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from trackio import sqlite_storage

    from tests.art_trainer.monitoring.wandb_files import read_wandb

    for name, value in {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "wandb-data"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "wandb-cache"))
    monkeypatch.setattr(sqlite_storage, "TRACKIO_DIR", tmp_path / "trackio")
    names = ("wandb", "tensorboard", "trackio", "mlflow", "langfuse", "otel", "openpipe")
    folder = tmp_path / "run"
    with receiving(_accept) as server:
        settings = {
            "LANGFUSE_PUBLIC_KEY": PUBLIC,
            "LANGFUSE_SECRET_KEY": SECRET,
            "LANGFUSE_HOST": server.url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": server.url,
            "OPENPIPE_API_KEY": "opk-0123456789",
            "OPENPIPE_BASE_URL": f"{server.url}/openpipe",
        }
        sinks = [make_sink(name, settings) for name in names]
        monitor, weights = _trained(folder, sinks, close_seconds=60.0)
    assert [(status.name, status.complete, status.failures) for status in monitor.statuses] == [
        (name, True, 0) for name in names
    ]
    _assert_same_training(folder, weights, tmp_path)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    wanted = [shown_metrics(line) for line in lines]
    assert len(wanted) == STEPS

    rows = [row for row in read_wandb(folder).history if "episodes" not in row]
    assert [{name: row[name] for name in want} for row, want in zip(rows, wanted, strict=True)] == wanted
    rows = [row for row in sqlite_storage.SQLiteStorage.get_logs("art-tests", "run") if "episodes" not in row]
    assert [{name: row[name] for name in want} for row, want in zip(rows, wanted, strict=True)] == wanted
    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    run_id = json.loads((folder / "sinks" / "mlflow.json").read_text())["state"]["id"]
    read = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    for name in wanted[0]:
        values = [want[name] for want in wanted]
        assert [metric.value for metric in client.get_metric_history(run_id, name)] == values
        assert [event.value for event in read.Scalars(name)] == pytest.approx(values, rel=1e-6, abs=1e-12)
    _check_traces(folder, server.taken)


def _accept(number: int, request: Any) -> Answer:
    if request.path == "/openpipe/report":
        return Answer(200, '{"status": "ok"}')
    return Answer(202, '{"message": "Accepted"}') if request.path == SCORES else Answer(200, "{}")


def _check_traces(folder: Path, taken: Sequence[Any]) -> None:
    """Langfuse, OpenTelemetry and OpenPipe were told of every episode, reply and action in the records."""
    episodes = [recorded.episode for recorded in iter_episodes(folder)]
    turns = sum(len(episode.turns) for episode in episodes)
    assert len(episodes) == STEPS * 8
    seen = [score["value"] for score in scores_in(taken) if score["name"] == "reward"]
    assert sorted(seen) == pytest.approx(sorted(episode.reward for episode in episodes))
    kinds = [span.attributes["langfuse.observation.type"] for span in spans_in(taken)]
    assert [kinds.count(kind) for kind in ("agent", "generation", "tool")] == [len(episodes), turns, turns]
    kinds = [span.attributes["gen_ai.operation.name"] for span in spans_in(taken, "/v1/traces")]
    assert [kinds.count(kind) for kind in ("invoke_agent", "chat", "execute_tool")] == [
        len(episodes),
        turns,
        turns,
    ]
    reports = [json.loads(request.body) for request in taken if request.path == "/openpipe/report"]
    assert len(reports) == turns


_INTERRUPTED = """
import sys
import threading
from pathlib import Path
from art_trainer.monitoring.monitor import Monitor
from tests.art_trainer.monitoring.sink_runs import QUICK, MadeRun, MemorySink

ended = threading.Event()

class Kept(MemorySink):
    def close(self, outcome):
        super().close(outcome)
        ended.set()

class Lost(MemorySink):
    \"\"\"Its first event is under way for as long as the other sink works, and is lost then.\"\"\"
    def deliver(self, event):
        ended.wait()
        raise ConnectionError("nobody there")

kept, lost = Kept(), Lost()
lost.name = "lost"
run = MadeRun(Path(sys.argv[1]), steps=100_000)
monitor = Monitor(run.info, [kept, lost], say=print, limits=QUICK, close_seconds=60.0)
run.begin(monitor)
outcome = "failed"
try:
    print("begun", flush=True)
    run.play(monitor)
except KeyboardInterrupt:
    outcome = "interrupted"
finally:
    monitor.on_end(outcome)
    print(outcome, [status.complete for status in monitor.statuses])
"""


def test_ctrl_c_ends_the_run_with_its_data_whole_and_a_sync_sends_the_rest(tmp_path: Path) -> None:
    from art_trainer.monitoring.sync import sync_run

    process = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "begun\n"
        metrics = tmp_path / "run" / "metrics.jsonl"
        while process.poll() is None and (not metrics.exists() or metrics.stat().st_size < 5_000):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        told = process.stdout.read()
    assert process.wait(60) == 0
    assert "interrupted [True, False]" in told
    sink = MemorySink()
    sink.name = "lost"
    result = sync_run(tmp_path / "run", sink, say=pytest.fail)
    assert result.outcome == "interrupted"
    assert len(sink.events) > 20
    assert sink.events == list(events_after(tmp_path / "run"))
    # Ctrl-C may have come when a step was written but not yet told: the other sink has it all the same.
    rest = MemorySink()
    sync_run(tmp_path / "run", rest, say=pytest.fail)
    assert rest.events == []
