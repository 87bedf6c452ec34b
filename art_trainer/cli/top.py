"""``art-trainer top``: the view of a run that trains elsewhere, from its folder's files alone."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.live import Live

from art_trainer.cli.live_view import SHOWN, RunView, is_live, run_view
from art_trainer.cli.options import RunDir, command
from art_trainer.cli.runs import run_reader
from art_trainer.errors import RecordError
from art_trainer.tracking.episode_store import iter_episodes
from art_trainer.tracking.run_dir import RunFolder


@command("top", "`art-trainer top runs/Email-v0-art-tiny-1` in another terminal than the training's.")
def top(run: RunDir, *, once: bool = False) -> None:
    """Watch a run: progress, curves, its newest episode and warnings, refreshed once a second.

    Ends with the run, or with Ctrl-C; the run continues. It only reads the run's folder.

    Flags:
        once: Print the view once, as where the output is no terminal.
    """
    console, reader = Console(), ViewReader(run)
    reader.read()
    if not once and is_live(console):
        with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
            while not reader.ended:
                live.update(run_view(reader.view, console), refresh=True)
                time.sleep(1.0)
                reader.read()
    console.print(run_view(reader.view, console))


class ViewReader:
    """Reads a run's ``view`` from its folder, and whether it has ``ended``: is finished, or was stopped."""

    def __init__(self, path: Path) -> None:
        self.view, self.ended = RunView(), False
        self._folder, self._reader = RunFolder(path), run_reader(path)
        self._cursor: str | None = None
        self._episode_of = 0

    def read(self) -> None:
        """Read what is new; an ``OSError`` if a file cannot be read."""
        view, rows, facts = self.view, self._reader.metrics(self._cursor), self._reader.summary()
        self._cursor = rows["cursor"]
        for name in SHOWN:
            known = [] if rows["reset"] else view.series.get(name, [])
            view.series[name] = known + [one for one in rows["columns"].get(name, ()) if one is not None]
        view.step, view.steps, state = facts["step"], facts["max_steps"], facts["state"]
        self.ended = state in ("finished", "stopped")
        view.seconds_left = None if self.ended else facts["seconds_left"]
        view.title = f"{self._folder.path.resolve().name}: {state}"
        view.warnings = [str(event.get("message", "")) for event in self._reader.events()]
        if view.step != self._episode_of:
            try:
                for found in iter_episodes(self._folder.path, [view.step]):
                    view.episode = found.episode  # a step without any leaves an earlier one
                self._episode_of = view.step
            except RecordError as error:
                view.warnings.append(str(error))
