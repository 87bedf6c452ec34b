"""Runs made by hand, with a folder as a trainer leaves it, and sinks that misbehave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from art_trainer.episodes import Ending, Episode, Group, Turn
from art_trainer.monitoring.delivery import DeliveryLimits
from art_trainer.monitoring.events import Event, Outcome, RunInfo
from art_trainer.monitoring.monitor import Monitor
from art_trainer.monitoring.source import cursor_of
from art_trainer.run_log import RunLog

QUICK = DeliveryLimits(first_pause=0.01, longest_pause=0.05, flush_every=0.02)


def played_episode(task: int, rng: np.random.Generator) -> Episode:
    """An episode of one to three turns, the last of which may be wrong."""
    turns = [
        Turn("search()", f"Found {k} mails,\n  numbered.", 0.1, call={"name": "search", "arguments": {}})
        for k in range(int(rng.integers(0, 3)))
    ]
    success = bool(rng.random() < 0.5)
    last = (
        Turn("select(m1)", "Right.", 1.0, call={"name": "select", "arguments": {"email_id": "m1"}})
        if success
        else Turn("hm", "That is no call.", -0.5, error={"kind": "no_call", "message": "no call"})
    )
    return Episode(
        "toy/Mail-v0",
        f"task-{task}",
        task,
        "You search a mailbox. " * 10 + "Who wrote about tea?",
        (*turns, last),
        (),
        Ending.TERMINATED,
        success=success,
    )


class MadeRun:
    """Writes a run's folder as a trainer would, and tells a monitor of it."""

    def __init__(self, folder: Path, *, steps: int = 6, seed: int = 0) -> None:
        self.folder = folder
        self.steps = steps
        self.log = RunLog(folder)
        self.rng = np.random.default_rng(seed)
        self.info = RunInfo(
            name=folder.name,
            project="art-tests",
            folder=folder,
            env_id="toy/Mail-v0",
            model="art-tiny",
            config={"learning_rate": 0.001, "max_steps": steps, "env_args": {"difficulty": 1}},
            tags=("ART", "GRPO", "art-tiny"),
            max_turns=4,
        )

    def begin(self, monitor: Monitor | None = None, *, step: int = 0) -> None:
        self.log.begin(self.info.config, step)
        if monitor is not None:
            monitor.on_begin(step)

    def play(self, monitor: Monitor | None = None, *, first: int = 1, last: int | None = None) -> None:
        """Do some steps; every third saves a checkpoint."""
        for _ in self.writes(monitor, first=first, last=last):
            pass

    def writes(
        self, monitor: Monitor | None = None, *, first: int = 1, last: int | None = None
    ) -> Iterator[None]:
        """Do the same, one write to the folder at a time."""
        for step in range(first, (last or self.steps) + 1):
            names = ("reward", "success", "kl", "policy_loss", "clip_ratio", "grad_norm", "time/update")
            metrics = {"step": float(step), **{name: float(self.rng.normal()) for name in names}}
            groups = [Group((played_episode(k, self.rng), played_episode(k, self.rng))) for k in range(2)]
            self.log.write_episodes(step, groups, 100)
            yield
            self.log.write_metrics(metrics)
            if monitor is not None:
                monitor.on_logged(metrics, groups)
            yield
            if step % 3 == 0:
                self.save(step, monitor)
                yield

    def save(self, step: int, monitor: Monitor | None = None) -> Path:
        folder = self.log.checkpoints / f"step-{step:06d}"
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "weights").write_text(f"weights {step}")
        if monitor is not None:
            monitor.on_checkpoint(step, folder)
        return folder

    def metrics(self) -> list[dict[str, float]]:
        """The lines of ``metrics.jsonl``."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


class MemorySink:
    """Keeps what it is given, and fails or waits as it is told."""

    def __init__(
        self,
        *,
        fail: tuple[int, ...] = (),
        fault: Exception | None = None,
        wait: float = 0.0,
        destination: str = "here",
    ) -> None:
        self.name = "memory"
        self.fail = set(fail)
        self.fault = fault or RuntimeError("out of paper")
        self.wait = wait
        self.destination = destination
        self.gate = threading.Event()
        self.gate.set()
        self.calls = 0
        self.events: list[Event] = []
        self.resumed: Mapping[str, Any] | None = None
        self.closed: Outcome | None = None
        self.flushes = 0

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> MemorySink:
        return cls()

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        self.resumed = resume

    def deliver(self, event: Event) -> None:
        self.gate.wait()
        time.sleep(self.wait)
        self.calls += 1
        if self.calls in self.fail:
            raise self.fault
        self.events.append(event)

    def flush(self) -> None:
        self.flushes += 1

    def state(self) -> dict[str, Any]:
        return {"destination": self.destination, "seen": len(self.events)}

    def close(self, outcome: Outcome) -> None:
        self.closed = outcome

    @property
    def places(self) -> list[tuple[int, int]]:
        """Where each event it took stands in the run."""
        return [tuple(cursor_of(event)) for event in self.events]  # type: ignore[misc]


def all_places(steps: int) -> list[tuple[int, int]]:
    """The places of all events of a :class:`MadeRun`."""
    return [(step, rank) for step in range(1, steps + 1) for rank in ((0, 1, 2) if step % 3 == 0 else (0, 1))]
