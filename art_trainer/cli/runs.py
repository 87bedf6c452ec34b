"""``art-trainer runs``: the runs in a folder, with how far each is and what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from art_trainer.cli.options import command
from art_trainer.errors import ConfigError, RecordError
from art_trainer.formatting import duration, number, percent, sparkline
from art_trainer.tracking.run_dir import AFTER, BEFORE, RunFolder

if TYPE_CHECKING:
    from art_trainer.tracking.reading.run_reader import RunReader


@command("runs", "`art-trainer runs`, or `art-trainer runs experiments/` for another folder than `runs/`.")
def runs(folder: Path = Path("runs")) -> None:
    """List the runs in a folder: their state, the curve of the reward, and success before and after.

    The newest is last. `art-trainer dash` shows the same and more in a browser.

    Flags:
        folder: Folder that contains runs.
    """
    from art_trainer.cli.console import make_table

    if not folder.is_dir():
        raise ConfigError(f"no folder at {folder}: name one that contains runs")
    found = [path for path in folder.iterdir() if path.is_dir() and RunFolder(path).holds_run]
    if not found:
        raise ConfigError(f"no run in {folder}: name a folder that contains runs")
    console = Console()
    # A terminal of less than 80 columns has no room for the curve beside the results.
    room = min(24, console.width - 74) if console.width >= 80 else 0
    right = ["reward", "step", "before", "after"] if room else ["step", "before", "after"]
    table = make_table(None, ["run", "model", "state"], right)
    for path in sorted(found, key=lambda one: one.stat().st_mtime):
        reader, run = run_reader(path), RunFolder(path)
        columns = reader.metrics(None)["columns"]  # the whole file: a summary knows of a stall then
        rewards = [one for one in columns.get("reward", ()) if one is not None]
        facts = reader.summary()
        state = facts["state"]
        if facts["seconds_left"] is not None:
            state += f", {duration(facts['seconds_left'])} left"
        if facts["stall"] is not None:
            state += f": {facts['stall']['title']}"
        step = f"{facts['step']}/{facts['max_steps'] or '?'}"
        shown = [path.name, facts["model"] or "–", state, *([sparkline(rewards, room)] if room else [])]
        table.add_row(*map(Text, (*shown, step, _result(run, BEFORE), _result(run, AFTER))))
    console.print(table)


def run_reader(path: Path) -> RunReader:
    """The reader of a run's folder; a ConfigError if there is no run."""
    from art_trainer.tracking.reading.run_reader import RunReader

    if not RunFolder(path).holds_run:
        raise ConfigError(f"no run in {path}: name the folder of one")
    return RunReader(path)


def _result(run: RunFolder, name: str) -> str:
    """Success in an evaluation, or without one the mean reward."""
    try:
        found = run.evaluation(name)
    except RecordError:
        return "damaged"
    if found is None:
        return "–"
    text = percent(found.success) if found.success is not None else number(found.reward)
    return text.partition(" ")[0]
