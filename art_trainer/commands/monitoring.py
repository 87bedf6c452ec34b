"""Sinks of a training run, ``art-trainer sync`` and ``art-trainer config``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from art_trainer.commands.policies import MakeEnv
from art_trainer.commands.settings import Settings
from art_trainer.errors import ConfigError
from art_trainer.monitoring.monitor import Monitor
from art_trainer.monitoring.registry import make_sinks, sink_names
from art_trainer.monitoring.settings import KNOWN, load_settings
from art_trainer.monitoring.sync import describe_run, sync_run

_NOT_DELIVERED = 1
"""Exit code where a sink did not take everything."""


def make_monitor(settings: Settings, folder: Path, make_env: MakeEnv, console: Console) -> Monitor | None:
    """Build the sinks that ``log`` names; ``None`` where it names none.

    Raises:
        ConfigError: For a sink that does not exist, is not installed or lacks a key; nothing has begun then.
    """
    names = sink_names(settings.run.log)
    if not names:
        return None
    services = load_settings()
    sinks = make_sinks(names, services.values)
    env = make_env()
    try:
        max_turns = getattr(env.unwrapped, "max_turns", None)
    finally:
        env.close()
    return Monitor(
        describe_run(folder, settings.to_mapping(), max_turns=max_turns),
        sinks,
        say=lambda words: console.print(words, markup=False, highlight=False, soft_wrap=True),
        close_seconds=services.integer("ART_LOG_CLOSE_SECONDS"),
    )


def run_sync(folder: Path, to: Sequence[str], timeout: int, console: Console) -> None:
    """Send each sink what it missed of a run.

    Raises:
        ConfigError: For a sink that does not exist, is not installed or lacks a key, or a folder without a
            run.
        typer.Exit: With code 1 where a sink did not take everything.
    """
    values = load_settings().values | {"ART_LOG_CLOSE_SECONDS": str(timeout)}
    sinks = make_sinks(sink_names(",".join(to)), values)
    if not sinks:
        raise ConfigError("--to names no sink, as in `--to wandb`")

    def say(words: str) -> None:
        console.print(words, markup=False, highlight=False, soft_wrap=True)

    complete = True
    for sink in sinks:
        try:
            result = sync_run(folder, sink, say=say, timeout=timeout)
        except (FileNotFoundError, ValueError) as error:
            raise ConfigError(str(error)) from error
        status = result.status
        complete &= status.complete
        rest = "" if status.complete else f"; not everything: {status.problem}"
        events = "event" if status.delivered == 1 else "events"
        say(f"{status.name}: sent {status.delivered} {events} of a run that {_WORDS[result.outcome]}{rest}")
    if not complete:
        raise typer.Exit(_NOT_DELIVERED)


_WORDS = {"finished": "finished", "interrupted": "was interrupted", "failed": "failed"}


def run_config(file: Path, console: Console) -> None:
    """Show keys and addresses that are in force, and where each comes from; secrets are masked.

    Raises:
        ConfigError: Where the file cannot be read.
    """
    services = load_settings(file=file)
    table = Table(box=None, pad_edge=False)
    table.add_column("setting", no_wrap=True)
    for title in ("value", "from", "for"):
        table.add_column(title, overflow="fold")
    for known in KNOWN:
        setting = services.settings.get(known.name)
        shown = ("", "not set") if setting is None else (setting.shown, setting.source)
        table.add_row(known.name, *shown, known.meaning, style="dim" if setting is None else None)
    console.print(table)
    for words in services.unknown.values():
        console.print(words, markup=False, highlight=False, soft_wrap=True)
