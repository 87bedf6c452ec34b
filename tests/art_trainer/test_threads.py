"""How many CPU threads a run takes."""

from __future__ import annotations

import os

import pytest

from art_trainer.threads import default_threads


@pytest.mark.parametrize(
    ("weights", "cores", "environment", "threads"),
    [
        (1_000_000, 8, {}, 2),
        (1_000_000, 1, {}, 1),
        (500_000_000, 8, {}, 8),
        (500_000_000, 8, {"OMP_NUM_THREADS": "3"}, 3),
        (500_000_000, 8, {"OMP_NUM_THREADS": "many"}, 8),
        # What torchrun sets.
        (500_000_000, 8, {"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2"}, 4),
        (1_000_000, 2, {"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "4"}, 1),
    ],
)
def test_the_number_follows_from_size_cores_and_what_was_said(
    monkeypatch: pytest.MonkeyPatch, weights: int, cores: int, environment: dict[str, str], threads: int
) -> None:
    for name in ("OMP_NUM_THREADS", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    assert default_threads(weights) == threads
