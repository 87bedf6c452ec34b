"""Reads run folders while they grow, for the commands and the dashboard.

::

    tail_reader     growing files of JSON lines: metrics and warnings
    episode_index   the table of episodes: filters, order, search
    episode_view    one episode with its tokens
    run_reader      a run folder; all of them
"""
