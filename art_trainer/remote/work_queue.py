"""Groups with attempts that are free to be played, in the order in which they are wanted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import groupby

from art_trainer.remote.wanted_groups import Attempt, WantedGroup


class WorkQueue:
    """Groups that have free attempts, those of the oldest batch first."""

    def __init__(self) -> None:
        self._groups: list[WantedGroup] = []

    def __len__(self) -> int:
        return len(self._groups)

    def update(self, group: WantedGroup) -> None:
        """Put a group in where it has free attempts, and take it out where it has none."""
        place = bisect_left(self._groups, group.urgency, key=_urgency)
        listed = place < len(self._groups) and self._groups[place] is group
        if listed and not group.free:
            del self._groups[place]
        elif group.free and not listed:
            self._groups.insert(place, group)

    def forget(self, before_batch: int) -> None:
        """Take out the groups of all batches before one."""
        self._groups = [group for group in self._groups if group.task.batch >= before_batch]

    def choose(self, count: int, may: Callable[[Attempt], bool]) -> list[tuple[WantedGroup, int]]:
        """Choose attempts for one client.

        The prompt of a group is computed once where all of its attempts are played together: of the groups
        of a batch those are chosen first that fit in whole.

        Args:
            count: Most attempts.
            may: Whether the client may have an attempt.

        Returns:
            Groups and the members chosen.
        """
        chosen: list[tuple[WantedGroup, int]] = []
        if count < 1:
            return chosen
        for _, groups in groupby(self._groups, key=_batch):
            passed: list[list[tuple[WantedGroup, int]]] = []
            for group in groups:
                free = [(group, member) for member in group.free if may(group.attempts[member])]
                if len(free) <= count - len(chosen):
                    chosen += free
                else:
                    passed.append(free)
                if len(chosen) == count:
                    return chosen
            for free in passed:
                chosen += free[: count - len(chosen)]
        return chosen


def _urgency(group: WantedGroup) -> tuple[int, int]:
    return group.urgency


def _batch(group: WantedGroup) -> int:
    return group.task.batch
