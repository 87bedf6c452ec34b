"""Runs made by hand, with a folder as a trainer leaves it, and a sink that misbehaves."""

from __future__ import annotations

import threading
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from art_trainer.tracking.callbacks import Outcome
from art_trainer.tracking.run_dir import RunFolder
from art_trainer.tracking.sinks.base import Cursor, Event, RunInfo, Sink
from art_trainer.tracking.sinks.delivery import SinkDispatcher, SinkStatus
from art_trainer.types import Ending, Episode, Group, Turn

QUICK = {"first_pause": 0.01}


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
    prompt = "You search a mailbox. " * 10 + "Who wrote about tea?"
    return Episode(
        "toy/Mail-v0", f"task-{task}", task, prompt, (*turns, last), (), Ending.TERMINATED, success=success
    )


class MadeRun:
    """Writes a run folder as a trainer would, and hands it to a dispatcher."""

    def __init__(self, folder: Path, *, steps: int = 6, seed: int = 0) -> None:
        self.folder = folder
        self.steps = steps
        self.log = RunFolder(folder)
        self.rng = np.random.default_rng(seed)
        config = {
            "env": "toy/Mail-v0", "model": "art-tiny", "learning_rate": 0.001, "max_steps": steps,
            "env_args": {"difficulty": 1},
        }  # fmt: skip
        self.info = RunInfo(folder, config, max_turns=4)

    def begin(self, dispatcher: SinkDispatcher | None = None, *, step: int = 0) -> None:
        self.log.begin(self.info.config, step)
        if dispatcher is not None:
            dispatcher.on_begin(step)

    def played(self) -> MadeRun:
        """Do all steps, without sinks."""
        self.begin()
        self.play()
        return self

    def play(
        self, dispatcher: SinkDispatcher | None = None, *, first: int = 1, last: int | None = None
    ) -> None:
        """Do some steps; every third saves a checkpoint."""
        for _ in self.writes(dispatcher, first=first, last=last):
            pass

    def writes(
        self, dispatcher: SinkDispatcher | None = None, *, first: int = 1, last: int | None = None
    ) -> Iterator[None]:
        """Do the same, one write to the folder at a time."""
        for step in range(first, (last or self.steps) + 1):
            names = ("reward", "success", "kl", "policy_loss", "clip_ratio", "grad_norm", "time/update")
            metrics = {"step": float(step), **{name: float(self.rng.normal()) for name in names}}
            groups = [Group((played_episode(k, self.rng), played_episode(k, self.rng))) for k in range(2)]
            self.log.write_episodes(step, groups, 100)
            yield
            self.log.write_metrics(metrics)
            if dispatcher is not None:
                dispatcher.on_logged(metrics, groups)
            yield
            if step % 3 == 0:
                self._save(step, dispatcher)
                yield

    def deliver(
        self,
        sink: Sink,
        *,
        first: int = 1,
        last: int | None = None,
        outcome: Outcome = "finished",
        close_seconds: float = 60.0,
        **options: Any,
    ) -> SinkStatus:
        """Do some steps with one sink; return how it stands."""
        dispatcher = SinkDispatcher(self.info, [sink], close_seconds=close_seconds, **{**QUICK, **options})
        self.begin(dispatcher, step=first - 1)
        self.play(dispatcher, first=first, last=last)
        dispatcher.on_end(outcome)
        return dispatcher.statuses[0]

    def _save(self, step: int, dispatcher: SinkDispatcher | None) -> None:
        folder = self.log.checkpoints / f"step-{step:06d}"
        (folder / "model").mkdir(parents=True, exist_ok=True)
        (folder / "model" / "weights").write_text(f"weights {step}")
        if dispatcher is not None:
            dispatcher.on_checkpoint(step, folder)

    def metrics(self) -> list[dict[str, float]]:
        """The lines of ``metrics.jsonl``."""
        return list(self.log.metrics().records)


class MemorySink(Sink):
    """Keeps what it is given, but fails as its options say; it waits while its ``gate`` is closed.

    Args:
        fail: Which calls of ``deliver`` raise ``fault``, from 1.
        refused: What ``deliver`` raises for some events.
        open_faults: What ``open`` raises, once each.
        close_fault: What ``close`` raises.
    """

    name = "memory"

    def __init__(
        self,
        *,
        fail: Container[int] = (),
        fault: Exception | None = None,
        refused: Mapping[Cursor, Exception] | None = None,
        open_faults: Iterable[Exception] = (),
        close_fault: Exception | None = None,
        destination: str = "here",
        name: str = "memory",
    ) -> None:
        self.name = name  # type: ignore[misc]
        self.fail, self.fault = fail, fault or RuntimeError("out of paper")
        self.refused = dict(refused or {})
        self.open_faults, self.close_fault = iter(open_faults), close_fault
        self.destination = destination
        self.gate = threading.Event()
        self.gate.set()
        self.calls = 0
        self.events: list[Event] = []
        self.tried: list[Cursor] = []
        self.resumed: Mapping[str, Any] | None = None
        self.closed: Outcome | None = None

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        for fault in self.open_faults:
            raise fault
        self.resumed = resume

    def deliver(self, event: Event) -> None:
        self.gate.wait()
        self.calls += 1
        if self.calls in self.fail:
            raise self.fault
        if Cursor.of(event) in self.refused:
            self.tried.append(Cursor.of(event))
            raise self.refused[Cursor.of(event)]
        self.events.append(event)

    def state(self) -> dict[str, Any]:
        return {"destination": self.destination, "seen": len(self.events)}

    def close(self, outcome: Outcome) -> None:
        if self.close_fault is not None:
            raise self.close_fault
        self.closed = outcome

    @property
    def cursors(self) -> list[Cursor]:
        """Where each event it took stands in the run."""
        return [Cursor.of(event) for event in self.events]


def all_cursors(steps: int) -> list[Cursor]:
    """The cursors of all events of a :class:`MadeRun`."""
    kinds = {step: (0, 1, 2) if step % 3 == 0 else (0, 1) for step in range(1, steps + 1)}
    return [Cursor(step, kind) for step, of_step in kinds.items() for kind in of_step]
