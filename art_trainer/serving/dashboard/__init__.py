"""A web page to watch training: curves, warnings, workers and every recorded episode.

It only reads the files of run folders, so it shows finished runs too and costs a run nothing.
``art-trainer dash`` serves it for folders on this machine, ``art-trainer serve`` beside the training::

    router          HTTP routes to what art_trainer.tracking.reading reads
    static/         the page, which loads nothing else
"""

from art_trainer.serving.dashboard.router import dashboard_router, page
from art_trainer.tracking.reading.run_reader import RunsSource

__all__ = ["RunsSource", "dashboard_router", "page"]
