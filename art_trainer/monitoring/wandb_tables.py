"""The tables of episodes and actions of a W&B run, which grow, and whose new rows are sent now and then.

Writing a table costs W&B the same few milliseconds for one row as for hundreds, so rows are held until they
are worth it. What is held is in the run's folder as well: only the steps it belongs to must be remembered for
a later process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """

    def __init__(self, run: RunInfo, owed: Iterable[int] = ()) -> None:
        self._run = run
        self._owed = set(owed)
        self._held: set[int] = set()
        self._episodes = _table(EpisodeRow._fields, (int, str, float, int, bool, float, float))
        self._actions = _table(ActionRow._fields, (int, str, int, str, float, str))

    @property
    def unlogged(self) -> list[int]:
        """The steps whose rows were not logged yet, in order."""
        return sorted(self._owed | self._held)

    def add(self, event: EpisodesPlayed) -> None:
        """Add a step's rows; one that comes again, because logging failed, is there already."""
        if event.step not in self._held:
            self._held.add(event.step)
            self._episodes.extend(episode_rows(event, self._run))
            self._actions.extend(action_rows(event))

    def to_log(self) -> dict[str, Any]:
        """A row with the tables, what an earlier process owes among them; empty without new rows.

        A resumed run does the steps after its checkpoint again: what it has not come to yet it goes on owing.
        """
        if self._owed:
            for event in events_after(self._run.folder, Cursor(min(self._owed), 0)):
                if event.step > max(self._owed):
                    break
                if isinstance(event, EpisodesPlayed) and event.step in self._owed:
                    self.add(event)
        self._owed -= self._held
        if not self._held:
            return {}
        return {"step": max(self._held), "episodes": self._episodes, "actions": self._actions}

    def logged(self) -> None:
        """What :meth:`to_log` gave is logged."""
        self._held.clear()
        for table in (self._episodes, self._actions):
            table.forget()


class _PlainTable(wandb.Table):
    """A table whose cells are all plain JSON values of the columns' types, which costs W&B less to write.

    It asks of each cell, when a row is added and again when a table goes into an artifact, whether it is an
    array, a tensor or a date. And it keeps all rows that were ever logged; here they are let go.
    """

    _gone = 0

    def extend(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows; W&B looks at the first one only."""
        rows = iter(rows)
        for first in rows:
            self.add_data(*first)
            self.data.extend(list(row) for row in rows)

    def forget(self) -> None:
        """Let go of the rows that there are, which were logged; W&B goes by their number alone."""
        self.data[self._gone :] = [[]] * (len(self.data) - self._gone)
        self._gone = len(self.data)

    def to_json(self, run_or_artifact: Any) -> dict[str, Any]:
        """As W&B has it, with the rows as they are."""
        if not isinstance(run_or_artifact, wandb.Artifact):
            return super().to_json(run_or_artifact)
        new = self._to_table_json(self.MAX_ARTIFACT_ROWS)["data"]
        rows, self.data = self.data, []
        try:
            written = super().to_json(run_or_artifact)
        finally:
            self.data = rows
        return {**written, "data": new, "nrows": len(new)}


def _table(columns: Sequence[str], types: Sequence[type]) -> _PlainTable:
    """A table of which each log sends the new rows."""
    return _PlainTable(columns=list(columns), dtype=list(types), optional=True, log_mode="INCREMENTAL")
