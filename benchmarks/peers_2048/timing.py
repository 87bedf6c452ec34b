"""How every peer is timed: random play on one core, counted in CPU-seconds. Needs nothing but Python."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping

Run = Callable[[int], int]
"""``run(k)`` plays about ``k`` units (steps, or steps of a batch) and returns the steps of all games."""


def rate(run: Run, seconds: float) -> float:
    """Steps per CPU-second over about so many seconds, after a run that compiles and warms up."""
    run(2)
    units, spent, steps = 1, 0.0, 0
    while spent < seconds:
        begun = time.process_time()
        made = run(units)
        took = time.process_time() - begun
        steps, spent = steps + made, spent + took
        if took < seconds / 8:
            units *= 2
    return steps / spent


def main(runs: Mapping[str, Run]) -> None:
    """Print the rate of every run as JSON; the seconds for each are the only argument."""
    seconds = float(sys.argv[1])
    print(json.dumps({name: rate(run, seconds) for name, run in runs.items()}))
