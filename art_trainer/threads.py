"""How many CPU threads a run computes with.

The number is part of what decides a run's digits: sums are cut into as many parts as there are threads. So
it follows from the model's size, the machine's cores and the number of processes on it, and not from a
measurement at the start, whose outcome would depend on what else the machine is doing. On two cores that
other programs were using too, a model of 0.2 million weights seemed five times slower with two threads than
with one. ``run.yaml`` records the number, and a resumed or repeated run takes it from there. To measure, on a
quiet machine: ``benchmarks/bench_threads.py``; to set: ``--threads``, or ``OMP_NUM_THREADS`` as for any
program.
"""

from __future__ import annotations

import os

SMALL_MODEL = 50_000_000
"""Weights below which a third thread gains nothing."""
SMALL_MODEL_THREADS = 2


def default_threads(weights: int) -> int:
    """Return how many threads suit a model: what ``OMP_NUM_THREADS`` says, or else what its size asks for.

    In a process that a launcher started the variable is not asked: ``torchrun`` sets it to 1 by itself.

    Args:
        weights: How many weights it has.
    """
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said.isdecimal() and int(said) > 0 and "LOCAL_WORLD_SIZE" not in os.environ:
        return int(said)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # Launchers say how many processes share this machine.
    own = max(cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
    return min(own, SMALL_MODEL_THREADS) if weights < SMALL_MODEL else own
