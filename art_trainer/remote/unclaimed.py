"""What a journal holds of groups that nobody has asked for yet, after a server was started anew."""

from __future__ import annotations

from collections.abc import Iterable

from art_trainer.remote.journal import Journal, JournalError
from art_trainer.remote.journal_lines import Entry
from art_trainer.starts import GroupTask

Batch = dict[str, dict[int, Entry]]
"""Entries by group and member."""


class UnclaimedEntries:
    """Entries of a journal until their group is asked for; a batch is read once, before anyone writes to it.

    Args:
        journal: The journal.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._batches: dict[int, Batch] = {}

    def read(self, batches: Iterable[int]) -> dict[int, Batch]:
        """Read what has not been read of some batches; nothing is changed until :meth:`keep`.

        Raises:
            JournalError: Where the journal is damaged.
        """
        return {batch: self._read(batch) for batch in set(batches) - self._batches.keys()}

    def keep(self, read: dict[int, Batch]) -> None:
        """Keep what was read until it is asked for."""
        self._batches |= read

    def take(self, task: GroupTask) -> dict[int, Entry]:
        """Take out the entries of a group whose batch has been read.

        Raises:
            JournalError: Where they are of another group by the same name.
        """
        entries = self._batches[task.batch].get(task.id, {})
        for entry in entries.values():
            other = entry.task
            if (other.seed, other.size) != (task.seed, task.size):
                raise JournalError(
                    f"{self._journal.folder}: there group {task.id} has seed {other.seed} and {other.size} "
                    f"attempts, in this run seed {task.seed} and {task.size} attempts. Go on with the "
                    "settings that the run had, or delete the journal: what it holds is then played again"
                )
        return self._batches[task.batch].pop(task.id, {})

    def forget(self, before_batch: int) -> None:
        """Drop the entries of all batches before one."""
        self._batches = {batch: groups for batch, groups in self._batches.items() if batch >= before_batch}

    def _read(self, batch: int) -> Batch:
        found: Batch = {}
        for entry in self._journal.replay(batch):
            members = found.setdefault(entry.task.id, {})
            known = members.get(entry.member)
            if known is None or known.round < entry.round:
                members[entry.member] = entry
        return found
