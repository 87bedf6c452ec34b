"""The recorded episodes as a polars DataFrame, for questions that nobody asked yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars

from art_trainer.analysis.reading import Broken, iter_groups
from art_trainer.analysis.repetition import repeated_calls, repeated_words
from art_trainer.analysis.windows import terms_of, token_counts
from art_trainer.episodes import Episode

_CHUNK = 20_000


def episodes_frame(runs: Sequence[Path]) -> polars.DataFrame:
    """One row a recorded training episode.

    Columns: ``run``, ``step``, ``group`` (from 0 in a run), ``task_id``, ``seed``, ``ending``, ``failed``,
    ``success``, ``reward``, ``independent_reward``, ``turns``, ``invalid_actions``, ``reply_characters``,
    ``repeated_calls``, ``repeated_words``, ``tokens`` and ``read_tokens`` (null where the records hold none),
    and for each part of the reward ``term/NAME``, for each judge ``judge/NAME``.

    Args:
        runs: The runs' folders.
    """
    parts: list[polars.DataFrame] = []
    rows: list[dict[str, Any]] = []
    for row in _rows(runs):
        rows.append(row)
        if len(rows) == _CHUNK:
            parts.append(polars.DataFrame(rows, infer_schema_length=None))
            rows = []
    if rows:
        parts.append(polars.DataFrame(rows, infer_schema_length=None))
    return polars.concat(parts, how="diagonal_relaxed") if parts else polars.DataFrame()


def _rows(runs: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for run in runs:
        for number, (step, members) in enumerate(iter_groups(run, Broken())):
            for episode in members:
                yield {"run": str(run), "step": step, "group": number, **_row(episode)}


def _row(episode: Episode) -> dict[str, Any]:
    replies = [turn.reply for turn in episode.turns]
    sampled, read = token_counts(episode) if episode.histories else (None, None)
    return {
        "task_id": episode.task_id,
        "seed": episode.seed,
        "ending": str(episode.ending),
        "failed": episode.failed,
        "success": episode.success,
        "reward": float(episode.reward),
        "independent_reward": episode.independent_reward,
        "turns": len(replies),
        "invalid_actions": episode.invalid_actions,
        "reply_characters": sum(map(len, replies)),
        "repeated_calls": repeated_calls(episode.turns),
        "repeated_words": repeated_words(replies),
        "tokens": sampled,
        "read_tokens": read,
        **{f"term/{name}": float(value) for name, value in terms_of(episode).items()},
        **{f"judge/{name}": float(judged.score) for name, judged in episode.judgements.items()},
    }
