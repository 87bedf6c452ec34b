"""A web page to watch training: curves, warnings, workers and every recorded episode.

It only reads the files of run folders, so it shows finished runs too and costs a run nothing.
``art-trainer dash`` serves it for folders on this machine, ``art-trainer serve`` beside the training::

    tail_reader     growing files of JSON lines: metrics and warnings
    episode_index   the table of episodes: filters, order, search
    episode_view    one episode with its tokens
    run_reader      a run folder; all of them
    router          HTTP routes
    static/         the page, which loads nothing else
"""

from art_trainer.serving.dashboard.router import dashboard_router, page
from art_trainer.serving.dashboard.run_reader import RunsSource

__all__ = ["RunsSource", "dashboard_router", "page"]
