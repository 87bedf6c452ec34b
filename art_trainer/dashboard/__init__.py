"""A page to watch training on: curves, workers, and every recorded episode.

It reads the files that a run leaves in its folder as it goes, so it shows finished runs as well, and costs a
run nothing. ``art-trainer dash`` serves it for folders on this machine, ``art-trainer serve`` beside the
training itself.

How it is put together::

    growing, growing_frames     files that another process writes, followed
    old_steps                   records of earlier versions, as today's
    metric_table, episode_index what is kept of them in memory, bounded
    episode_query, episode_view what a reader asks for
    run_files, runs_source      a run's folder; all of them
    router                      HTTP, without authentication: that is the application's guard's
    page, static/, vendor/      the page, one document that loads nothing else
"""

from art_trainer.dashboard.page import PAGE_HEADERS, page
from art_trainer.dashboard.router import dashboard_router
from art_trainer.dashboard.runs_source import RunsSource
from art_trainer.dashboard.source import DashboardSource, RunSummary, UnknownPlaceError

__all__ = [
    "PAGE_HEADERS",
    "DashboardSource",
    "RunSummary",
    "RunsSource",
    "UnknownPlaceError",
    "dashboard_router",
    "page",
]
