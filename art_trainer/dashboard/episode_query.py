"""Which episodes a reader wants to see, in which order, and the rows of the table that come of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from art_trainer.episodes import Ending

ENDINGS = tuple(Ending)
UNJUDGED = len(ENDINGS)
"""The code of an episode that no judge could score; before it come those of ``ENDINGS``."""
YES, NO, UNTOLD = 1, 0, -1

ROW = np.dtype(
    [
        ("step", "i4"),
        ("place", "i4"),
        ("group", "i4"),
        ("frame", "i4"),
        ("task", "i4"),
        ("turns", "i4"),
        ("tokens", "i4"),
        ("invalid", "i4"),
        ("success", "i1"),
        ("ending", "i1"),
        ("replaced", "?"),
        ("reward", "f8"),
    ]
)
"""What is kept in memory of an episode, beside a preview; ``task`` and ``frame`` are numbers of lists."""

SortKey = Literal["step", "reward", "task", "outcome", "turns", "tokens", "invalid"]
Outcome = Literal[
    "success", "failure", "terminated", "truncated", "context_full", "env_error", "policy_error",
    "unjudged", "invalid", "replaced",
]  # fmt: skip
OUTCOMES: tuple[str, ...] = get_args(Outcome)


@dataclass(frozen=True, slots=True)
class EpisodeQuery:
    """What to show of the table of episodes.

    Attributes:
        text: Words that occur, letter by letter and in any case, in what was said, shown or judged.
        task: A part of the task's name.
        outcome: How it ended.
        reward_min: The smallest reward.
        reward_max: The largest reward.
        step_min: The first step.
        step_max: The last step.
        sort: The column to sort by; equal ones are ordered by step and place.
        descending: Largest first.
        offset: Rows to pass over.
        limit: Rows wanted.
    """

    text: str = ""
    task: str = ""
    outcome: Outcome | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    step_min: int | None = None
    step_max: int | None = None
    sort: SortKey = "step"
    descending: bool = True
    offset: int = 0
    limit: int = 100


@dataclass(frozen=True, slots=True)
class EpisodePage:
    """Rows of the table.

    Attributes:
        rows: The rows, as JSON-able mappings.
        matches: How many rows the filters leave, as far as is known.
        known: Episodes that were looked at.
        recorded: Episodes in the file.
        left_out: Episodes of earlier steps that are not kept in memory.
        searched: The share of the episodes that were searched for ``text``, from 0 to 1.
        fault: What is wrong with the file behind these episodes, in words.
    """

    rows: tuple[dict[str, Any], ...]
    matches: int
    known: int
    recorded: int
    left_out: int
    searched: float
    fault: str | None = None

    @property
    def complete(self) -> bool:
        """Whether asking again would give the same, were nothing written meanwhile."""
        return self.known + self.left_out >= self.recorded and self.searched >= 1


def matching(rows: np.ndarray, query: EpisodeQuery, tasks: list[str]) -> np.ndarray:
    """Return for each row whether all filters but ``text`` leave it.

    Args:
        rows: Of dtype ``ROW``.
        query: The filters.
        tasks: Names of tasks, by number.
    """
    found = np.ones(len(rows), bool)
    if query.task:
        part = query.task.casefold()
        wanted = np.array([part in name.casefold() for name in tasks], bool)
        found &= wanted[rows["task"]] if len(tasks) else False
    if query.outcome is not None:
        found &= _with_outcome(rows, query.outcome)
    for column, low, high in (
        ("reward", query.reward_min, query.reward_max),
        ("step", query.step_min, query.step_max),
    ):
        if low is not None:
            found &= rows[column] >= low
        if high is not None:
            found &= rows[column] <= high
    return found


def _with_outcome(rows: np.ndarray, outcome: Outcome) -> np.ndarray:
    found: np.ndarray
    if outcome in ("success", "failure"):
        found = rows["success"] == (YES if outcome == "success" else NO)
    elif outcome == "invalid":
        found = rows["invalid"] > 0
    elif outcome == "replaced":
        found = rows["replaced"]
    else:
        code = UNJUDGED if outcome == "unjudged" else ENDINGS.index(Ending(outcome))
        found = rows["ending"] == code
    return found


def ordered(rows: np.ndarray, chosen: np.ndarray, query: EpisodeQuery, tasks: list[str]) -> np.ndarray:
    """Return the indices of the chosen rows in the query's order.

    Rows come in the order of their steps, and so do equal ones; the newest step first where ``descending``.
    """
    index = np.flatnonzero(chosen)
    if query.sort == "step":
        steps = rows["step"][index]
        return index[np.argsort(-steps, kind="stable")] if query.descending else index
    if query.sort == "task":
        rank = np.empty(len(tasks), np.int64)
        rank[sorted(range(len(tasks)), key=tasks.__getitem__)] = np.arange(len(tasks))
        keys = rank[rows["task"][index]]
    elif query.sort == "outcome":
        keys = rows["success"][index] * 16.0 - rows["ending"][index]
    else:
        keys = rows[query.sort][index].astype(np.float64)
    return index[np.argsort(-keys if query.descending else keys, kind="stable")]
