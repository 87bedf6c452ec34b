"""What the dashboard shows, as plain data; where it comes from is behind one interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from art_trainer.dashboard.episode_query import EpisodePage, EpisodeQuery
from art_trainer.dashboard.metric_table import MetricRows
from art_trainer.errors import TrainerError

if TYPE_CHECKING:
    from art_trainer.remote.status import ServerStatus

RunState = Literal["starting", "running", "quiet", "finished"]
"""``starting``: no step is done; ``quiet``: steps are missing and nothing was written for a while."""


class UnknownPlaceError(TrainerError, LookupError):
    """There is no such run, or no such episode in it."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in a few words and numbers.

    Attributes:
        id: Its number.
        name: Its folder's name, with the parent's where two are called the same.
        env: The environment, where known.
        model: The model, where known.
        state: What it does.
        step: Steps done.
        max_steps: Steps wanted, where known.
        seconds_left: Until the last step, at the speed of the last few; ``None`` where nothing can be said.
        quiet_seconds: Since anything was written; ``None`` where nothing was.
        metrics: Changes with the metrics.
        episodes: Episodes recorded.
        warnings: Events written.
        evaluations: Changes with the evaluations.
        latest: The newest value of some metrics.
    """

    id: int
    name: str
    env: str | None
    model: str | None
    state: RunState
    step: int
    max_steps: int | None
    seconds_left: float | None
    quiet_seconds: float | None
    metrics: str
    episodes: int
    warnings: int
    evaluations: str
    latest: Mapping[str, float]


class DashboardSource(Protocol):
    """Gives the dashboard what it shows. Several threads call it at once.

    A run is named by its number in :meth:`runs`. All but :meth:`runs` and :meth:`status` raise
    :class:`UnknownPlaceError` for a run that is not there.
    """

    def runs(self) -> Sequence[RunSummary]:
        """All runs; a number once given stays the run's."""

    def status(self) -> ServerStatus | None:
        """What the training server tells of itself; ``None`` without one."""

    def metrics(self, run: int, after: str | None) -> MetricRows:
        """The rows after a cursor."""

    def events(self, run: int) -> Sequence[Mapping[str, Any]]:
        """Warnings, oldest first."""

    def evaluations(self, run: int) -> Sequence[Mapping[str, Any]]:
        """Evaluations: ``name``, ``episodes``, and ``success`` and ``reward`` with ``value, low, high``."""

    def episodes(self, run: int, query: EpisodeQuery) -> EpisodePage:
        """Rows of the table of episodes.

        Raises:
            RecordError: Where the records are damaged.
        """

    def episode(self, run: int, step: int, place: int) -> Mapping[str, Any]:
        """A whole episode, see :func:`art_trainer.dashboard.episode_view.episode_view`.

        Raises:
            UnknownPlaceError: Where it is not recorded.
            RecordError: Where the records are damaged.
        """
