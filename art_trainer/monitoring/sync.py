"""Sends a sink what it missed of a run, or a whole run to a sink that was not there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from art_trainer.monitoring.delivery import Delivery, Say, SinkStatus
from art_trainer.monitoring.events import Outcome, RunInfo, Sink
from art_trainer.monitoring.redaction import is_secret_name
from art_trainer.monitoring.sink_file import read_run_info, write_run_info
from art_trainer.run_folder import RunFolder

PROJECT = "art-gym"
"""The project of a run that names none."""


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What came of it."""

    status: SinkStatus
    outcome: Outcome
    """How the run ended, as its folder tells."""


def describe_run(folder: Path, settings: Mapping[str, Any], *, max_turns: int | None = None) -> RunInfo:
    """Describe a run to its sinks.

    Args:
        folder: The run's folder.
        settings: All its settings by name, as in ``run.yaml``; secrets among them are left out.
        max_turns: Most turns of a training episode, where known.
    """
    model = str(settings.get("model", "unknown"))
    return RunInfo(
        name=folder.resolve().name,
        project=PROJECT,
        folder=folder,
        env_id=str(settings.get("env", "unknown")),
        model=model,
        config=_without_secrets(settings),
        tags=("ART", "GRPO", Path(model).name),
        max_turns=max_turns,
    )


def sync_run(folder: Path, sink: Sink, *, say: Say, timeout: float = 600.0) -> SyncResult:
    """Hand a sink every event of a run that it has not taken, also those it once refused, and end it.

    The run must have ended: its own sinks keep the same cursor.

    Args:
        folder: The run's folder.
        sink: The sink, not yet open.
        say: Is told of trouble.
        timeout: Seconds after which it is given up.

    Raises:
        FileNotFoundError: Where the folder holds no run.
        ValueError: Where a file of the run is damaged.
    """
    run_folder = RunFolder(folder)
    if not run_folder.metrics_file.exists():
        raise FileNotFoundError(f"{folder} holds no run (it has no {run_folder.metrics_file.name})")
    run = read_run_info(folder)
    if run is None:
        run = describe_run(folder, run_folder.settings())
        write_run_info(run)
    steps = [line["step"] for line in run_folder.metrics().records if "step" in line]
    last = int(max(steps, default=0))
    outcome: Outcome = "finished" if last >= int(run.config.get("max_steps", 0)) else "interrupted"
    delivery = Delivery(sink, replace(run, resumed_from_step=last), say=say)
    delivery.end(outcome)
    delivery.start(resume=True, resend=True)
    return SyncResult(delivery.join(timeout), outcome)


def _without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of settings, however deep, without those whose names say that they are secret."""
    return {
        name: _without_secrets(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if not is_secret_name(str(name))
    }
