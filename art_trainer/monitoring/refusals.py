"""Events that a sink refuses for what they are, and that are set aside so that the others go on.

A sink that is down is tried again for as long as the run goes on. An event that the service answers with
HTTP 400, or that the sink's own code trips over, would fail each time and hold up all that follow. After a
few tries it is set aside: named in the sink's file, kept in the run's folder as every event is, and tried
again by ``art-trainer sync``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from art_trainer.monitoring.events import CheckpointSaved, EpisodesPlayed, Event, EventRefusedError, StepDone
from art_trainer.monitoring.source import Cursor, cursor_of

TRIES = 3
"""After how many refusals an event is set aside."""

_ABOUT_VALUES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_ABOUT_THE_WORLD = (OSError, json.JSONDecodeError)
"""Kinds of the former that come from networks and disks, not from an event."""
_KINDS = {StepDone: "metrics", EpisodesPlayed: "episodes", CheckpointSaved: "checkpoint"}
_RANKS = {name: rank for rank, name in enumerate(_KINDS.values())}


def is_refusal(fault: Exception) -> bool:
    """Whether a sink's exception is about the event it was given, and not about the state of its service."""
    if isinstance(fault, EventRefusedError):
        return True
    return isinstance(fault, _ABOUT_VALUES) and not isinstance(fault, _ABOUT_THE_WORLD)


class Refusals:
    """The events that one sink refused: how often in a row, and those that are set aside.

    Args:
        aside: Words about each event that was set aside in earlier processes, by its place.
    """

    def __init__(self, aside: Mapping[Cursor, str] | None = None) -> None:
        self._aside = dict(aside or {})
        self._place: Cursor | None = None
        self._in_a_row = 0

    def __len__(self) -> int:
        """How many are set aside."""
        return len(self._aside)

    def __contains__(self, place: object) -> bool:
        """Whether the event of a place is set aside."""
        return place in self._aside

    @property
    def places(self) -> list[Cursor]:
        """Where they stand in the run, in order."""
        return sorted(self._aside)

    def sets_aside(self, event: Event, problem: str) -> bool:
        """Count a refusal; return whether it was the last one and the event is now set aside."""
        place = cursor_of(event)
        self._in_a_row = self._in_a_row + 1 if place == self._place else 1
        self._place = place
        if self._in_a_row >= TRIES or place in self._aside:
            self._aside[place] = problem
        return place in self._aside

    def taken(self, event: Event) -> None:
        """The sink has taken an event after all."""
        self.forget(cursor_of(event))

    def forget(self, place: Cursor) -> None:
        """The event is no longer wanted."""
        self._aside.pop(place, None)

    def words(self) -> str:
        """Which events are set aside, and why; of many the first."""
        place = min(self._aside)
        more = f" and {len(self._aside) - 1} more" if len(self._aside) > 1 else ""
        return f"refused the {_kind(place)} of step {place.step}{more}: {self._aside[place]}"

    def to_json(self) -> list[dict[str, Any]]:
        """One object for each event, in order."""
        return [
            {"step": place.step, "kind": _kind(place), "problem": self._aside[place]} for place in self.places
        ]

    @classmethod
    def from_json(cls, kept: Iterable[Mapping[str, Any]]) -> Refusals:
        """Read what :meth:`to_json` gave.

        Raises:
            KeyError, TypeError, ValueError: Where it is something else.
        """
        return cls({Cursor(int(one["step"]), _RANKS[one["kind"]]): str(one["problem"]) for one in kept})


def _kind(place: Cursor) -> str:
    return list(_RANKS)[place.rank]
