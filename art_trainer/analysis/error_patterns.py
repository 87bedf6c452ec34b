"""Errors that are the same but for names and numbers, counted as one, each with an example."""

from __future__ import annotations

import re
from dataclasses import dataclass

from art_trainer.analysis.results import ErrorPattern
from art_trainer.episodes import Episode

_LIMIT = 400
_LONGEST = 240
_EXAMPLE = 300
_VARIABLE = (
    (re.compile(r"\b0x[0-9a-fA-F]+\b|\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*\b"), "<id>"),
    # Quotes open after a space or bracket: an apostrophe within a word is none.
    (re.compile(r"(?<![^\s(\[{=:,])([\"'`])(?:\\.|(?!\1)[^\\]){1,400}\1"), "<text>"),
    (re.compile(r"(?<!\S)(?:/[\w.-]+){2,}"), "<path>"),
    (re.compile(r"[-+]?\d+(?:[.,]\d+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
)


def normalised(message: str) -> str:
    """The message with what differs from case to case as ``<text>``, ``<n>``, ``<id>`` or ``<path>``."""
    words = message[: 4 * _LONGEST]
    for pattern, stand_in in _VARIABLE:
        words = pattern.sub(stand_in, words)
    return words.strip()[:_LONGEST]


@dataclass(slots=True)
class _Seen:
    count: int
    first_step: int
    last_step: int
    reply: str
    message: str
    where: str


class ErrorCollector:
    """Counts patterns of errors in bounded memory; past the limit rare ones are counted together.

    Attributes:
        replies: Replies seen.
        errors: Those without a valid call.
    """

    def __init__(self) -> None:
        self.replies = self.errors = 0
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._dropped = 0

    def add(self, step: int, episode: Episode) -> None:
        """Take in an episode's errors, and the fault that ended it where one did."""
        self.replies += len(episode.turns)
        for number, turn in enumerate(episode.turns, start=1):
            if turn.error is not None:
                self.errors += 1
                kind, message = str(turn.error.get("kind", "invalid")), str(turn.error.get("message", ""))
                self._count(step, episode, kind, message, turn.reply, f", turn {number}")
        if episode.failed:
            self._count(step, episode, episode.unjudged or str(episode.ending), episode.error or "", "", "")

    def patterns(self, most: int) -> tuple[ErrorPattern, ...]:
        """The most frequent patterns, most frequent first."""
        ordered = sorted(self._seen.items(), key=lambda pair: (-pair[1].count, pair[0]))
        total = self._dropped + sum(seen.count for seen in self._seen.values())
        return tuple(
            ErrorPattern(
                kind=kind,
                message=message,
                count=seen.count,
                share=seen.count / total,
                first_step=seen.first_step,
                last_step=seen.last_step,
                where=seen.where,
                example_reply=seen.reply,
                example_message=seen.message,
            )
            for (kind, message), seen in ordered[:most]
        )

    def _count(self, step: int, episode: Episode, kind: str, message: str, reply: str, turn: str) -> None:
        key = (kind, normalised(message))
        seen = self._seen.get(key)
        if seen is not None:
            seen.count += 1
            seen.last_step = max(seen.last_step, step)
            return
        where = f"step {step}, task {episode.task_id}, seed {episode.seed}{turn}"
        self._seen[key] = _Seen(1, step, step, reply[:_EXAMPLE], message[:_EXAMPLE], where)
        if len(self._seen) > 2 * _LIMIT:
            ordered = sorted(self._seen.items(), key=lambda pair: -pair[1].count)
            self._dropped += sum(seen.count for _, seen in ordered[_LIMIT:])
            self._seen = dict(ordered[:_LIMIT])
