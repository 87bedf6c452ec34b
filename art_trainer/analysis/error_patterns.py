"""Error patterns: errors that differ only in names and numbers, counted as one, each with an example."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from art_trainer.types import Episode

_LIMIT = 400  # patterns kept; beyond twice as many the rare ones are counted together
_LONGEST = 240
_EXAMPLE = 300
_VARIABLE = (
    (re.compile(r"\b0x[0-9a-fA-F]+\b|\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*\b"), "<id>"),
    # A quote opens after a space or a bracket: an apostrophe within a word does not.
    (re.compile(r"(?<![^\s(\[{=:,])([\"'`])(?:\\.|(?!\1)[^\\]){1,400}\1"), "<text>"),
    (re.compile(r"(?<!\S)(?:/[\w.-]+){2,}"), "<path>"),
    (re.compile(r"[-+]?\d+(?:[.,]\d+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
)


def normalized(message: str) -> str:
    """Replace what varies in a message by ``<text>``, ``<n>``, ``<id>`` or ``<path>``."""
    shown = message[: 4 * _LONGEST]
    for pattern, placeholder in _VARIABLE:
        shown = pattern.sub(placeholder, shown)
    return shown.strip()[:_LONGEST]


@dataclass(slots=True)
class ErrorPattern:
    """Errors that differ only in names and numbers, with the first as an example.

    ``share`` is of all errors.
    """

    kind: str
    message: str
    first_step: int
    last_step: int
    where: str
    example_reply: str
    example_message: str
    count: int = 1
    share: float = 0.0


class ErrorCollector:
    """Counts error patterns in bounded memory.

    Attributes:
        replies: Replies seen.
        errors: Those without a valid call.
        first_replies: The first three of them.
    """

    def __init__(self) -> None:
        self.replies = self.errors = 0
        self.first_replies: list[str] = []
        self._seen: dict[tuple[str, str], ErrorPattern] = {}
        self._dropped = 0

    def add(self, step: int, episode: Episode) -> None:
        """Count an episode's errors, and the fault that ended it if there is one."""
        self.replies += len(episode.turns)
        for number, turn in enumerate(episode.turns, start=1):
            if turn.error is not None:
                self.errors += 1
                self.first_replies = [*self.first_replies, turn.reply][:3]
                kind, message = str(turn.error.get("kind", "invalid")), str(turn.error.get("message", ""))
                self._count(step, episode, kind, message, turn.reply, f", turn {number}")
        if episode.failed:
            self._count(step, episode, episode.unjudged or str(episode.ending), episode.error or "", "", "")

    def patterns(self, most: int) -> tuple[ErrorPattern, ...]:
        """The most frequent patterns, most frequent first."""
        total = self._dropped + sum(seen.count for seen in self._seen.values())
        return tuple(replace(seen, share=seen.count / total) for seen in self._ordered()[:most])

    def _ordered(self) -> list[ErrorPattern]:
        return sorted(self._seen.values(), key=lambda seen: (-seen.count, seen.kind, seen.message))

    def _count(self, step: int, episode: Episode, kind: str, message: str, reply: str, turn: str) -> None:
        pattern = normalized(message)
        seen = self._seen.get((kind, pattern))
        if seen is not None:
            seen.count += 1
            seen.last_step = max(seen.last_step, step)
            return
        where = f"step {step}, task {episode.task_id}, seed {episode.seed}{turn}"
        examples = reply[:_EXAMPLE], message[:_EXAMPLE]
        self._seen[kind, pattern] = ErrorPattern(kind, pattern, step, step, where, *examples)
        if len(self._seen) > 2 * _LIMIT:
            ordered = self._ordered()
            self._dropped += sum(one.count for one in ordered[_LIMIT:])
            self._seen = {(one.kind, one.message): one for one in ordered[:_LIMIT]}
