"""Every training episode on disk, with all that its update needs: written, read, replayed, exported.

Replaying is in :mod:`art_trainer.records.replay`, which imports PyTorch; what is named here does not.

Why Zstandard and JSON lines: an email episode of 310 tokens takes 660 bytes so and 950 in Parquet, one of a
coding task 920 and 1440, at 0.1 ms of CPU each to write and to read (``benchmarks/bench_records.py``), and
any program reads it.
"""

from art_trainer.records.reader import (
    RecordedEpisode,
    RecordedSettings,
    StepRecord,
    iter_episodes,
    iter_steps,
    read_episodes,
    read_groups,
    read_step,
    recorded_settings,
    recorded_steps,
)
from art_trainer.records.writer import EpisodeWriter

__all__ = [
    "EpisodeWriter",
    "RecordedEpisode",
    "RecordedSettings",
    "StepRecord",
    "iter_episodes",
    "iter_steps",
    "read_episodes",
    "read_groups",
    "read_step",
    "recorded_settings",
    "recorded_steps",
]
