"""The tables of episodes and actions of a W&B run, which grow, and whose new rows are sent now and then.

Writing a table costs W&B the same few milliseconds for one row as for hundreds, so rows are held until they
are worth it. What is held is in the run's folder as well: only the steps it belongs to must be remembered for
a later process. W&B drops without a word what is beyond ``wandb.Table.MAX_ROWS`` rows in one log, so more
than that are logged in parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import wandb

from art_trainer.monitoring.events import EpisodesPlayed, RunInfo
from art_trainer.monitoring.shown import ActionRow, EpisodeRow, action_rows, episode_rows
from art_trainer.monitoring.source import Cursor, events_after


class WandbTables:
    """Rows of both tables, those of some steps not yet logged.

    Args:
        run: The run.
        owed: Steps whose rows an earlier process held back; they are read from the run's folder.
        most_episodes: Of each step so many episodes are shown, from its first on: what a row costs is more
            than what looking at hundreds of them a step tells, and all are in the run's folder.
    """

    def __init__(self, run: RunInfo, owed: Iterable[int] = (), *, most_episodes: int = 128) -> None:
        self._run = run
        self._most_episodes = most_episodes
        self._owed = set(owed)
        self._held: set[int] = set()
        self._episodes = _PlainTable(EpisodeRow._fields, (int, str, float, int, bool, float, float))
        self._actions = _PlainTable(ActionRow._fields, (int, str, int, str, float, str))
        self._by_name = {"episodes": self._episodes, "actions": self._actions}

    @property
    def unlogged(self) -> list[int]:
        """The steps whose rows were not logged yet, in order."""
        return sorted(self._owed | self._held)

    @property
    def full(self) -> bool:
        """Whether there is as much as one log takes."""
        return any(table.full for table in self._by_name.values())

    def add(self, event: EpisodesPlayed) -> None:
        """Add a step's rows; one that comes again, because logging failed, is there already."""
        if event.step not in self._held:
            self._held.add(event.step)
            shown = replace(event, episodes=event.episodes[: self._most_episodes])
            self._episodes.wait(episode_rows(shown, self._run))
            self._actions.wait(action_rows(shown))

    def to_log(self) -> dict[str, Any]:
        """A row with the tables that have new rows, what an earlier process owes among them; else empty.

        There may be more: after :meth:`logged` it is asked for again, until it is empty. A resumed run does
        the steps after its checkpoint again: what it has not come to yet it goes on owing.
        """
        if self._owed:
            for event in events_after(self._run.folder, Cursor(min(self._owed), 0)):
                if event.step > max(self._owed):
                    break
                if isinstance(event, EpisodesPlayed) and event.step in self._owed:
                    self.add(event)
        self._owed -= self._held
        tables = {name: table for name, table in self._by_name.items() if table.fill()}
        return {"step": max(self._held), **tables} if tables else {}

    def logged(self) -> None:
        """What :meth:`to_log` gave is logged."""
        for table in self._by_name.values():
            table.forget()
        if not any(table.waiting for table in self._by_name.values()):
            self._held.clear()


class _PlainTable(wandb.Table):
    """A table whose cells are all plain JSON values of the columns' types, which costs W&B less to write.

    It asks of each cell, when a row is added and again when a table goes into an artifact, whether it is an
    array, a tensor or a date. And it keeps all rows that were ever logged; here they are let go.
    """

    def __init__(self, columns: Sequence[str], types: Sequence[type]) -> None:
        # Of an incremental table each log sends the new rows.
        super().__init__(columns=list(columns), dtype=list(types), optional=True, log_mode="INCREMENTAL")
        self.waiting: list[list[Any]] = []
        self._gone = 0

    @property
    def full(self) -> bool:
        """Whether one log could not take more."""
        return len(self.waiting) >= self.MAX_ROWS

    def wait(self, rows: Iterable[Sequence[Any]]) -> None:
        """Keep rows until a log takes them."""
        self.waiting += map(list, rows)

    def fill(self) -> bool:
        """Add as many of the rows that wait as one log takes; return whether there is anything to log."""
        room = self.MAX_ROWS - (len(self.data) - self._gone)
        added, self.waiting = self.waiting[:room], self.waiting[room:]
        if added:
            self.add_data(*added[0])  # W&B looks at this one only
            self.data.extend(added[1:])
        return len(self.data) > self._gone

    def forget(self) -> None:
        """Let go of the rows that there are, which were logged; W&B goes by their number alone."""
        self.data[self._gone :] = [[]] * (len(self.data) - self._gone)
        self._gone = len(self.data)

    def to_json(self, run_or_artifact: Any) -> dict[str, Any]:
        """As W&B has it, with the new rows as they are."""
        if not isinstance(run_or_artifact, wandb.Artifact):
            return super().to_json(run_or_artifact)
        rows, self.data = self.data, []
        try:
            written = super().to_json(run_or_artifact)
        finally:
            self.data = rows
        new = rows[self._gone :]
        return {**written, "data": new, "nrows": len(new)}
