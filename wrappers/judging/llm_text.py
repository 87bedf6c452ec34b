"""Attempts as text that a judge can read and that cannot pass for anything but an attempt.

Each line of what an agent or an environment wrote is quoted with ``| ``; lines without it are ours. Whatever
the text holds, it cannot begin a line of its own, so it can close no section and open none.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from art_gym.wrappers.judging.attempts import Attempt

_QUOTE = "| "
_BYTES_PER_TOKEN = 3

# What chat templates write between messages. Many servers read these words as control tokens wherever they
# stand, so a space is put inside.
_CONTROL_SIGNS = re.compile(r"<(?=[|｜])|(?<=[|｜])(?=>)")
_CONTROL_WORDS = re.compile(
    r"(?<=[<\[])(?=/?(?:s|bos|eos|pad|unk|start_of_turn|end_of_turn|INST|SYSTEM_PROMPT|AVAILABLE_TOOLS"
    r"|TOOL_CALLS|TOOL_RESULTS|<SYS>|</SYS>)[>\]])"
)


@dataclass(frozen=True, slots=True)
class Section:
    """Words of one speaker, under a title of ours."""

    title: str
    text: str

    @property
    def shown(self) -> str:
        """The title, then the words, each line quoted."""
        return f"{self.title}:\n{quoted(self.text)}"


def quoted(text: str) -> str:
    """Text with ``| `` before each line, whatever its line breaks are, and without chat control tokens."""
    return "\n".join(_QUOTE + line for line in without_control_tokens(text).splitlines() or [""])


def without_control_tokens(text: str) -> str:
    """Text with a space inside everything that a chat template could take for the end of a message."""
    text = _CONTROL_SIGNS.sub(lambda found: f"{found[0]} ", printable(text))
    return _CONTROL_WORDS.sub(" ", text)


def printable(text: str) -> str:
    """Text that UTF-8 can hold: a lone surrogate becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def estimated_tokens(text: str) -> int:
    """About how many tokens a text has, rather too many: one for each three bytes of UTF-8.

    English prose and code have three to five bytes a token and Chinese about three. Long runs of digits can
    have one, and then the estimate is too low: the server refuses, and the judge shows less.
    """
    return math.ceil(len(text.encode("utf-8", "backslashreplace")) / _BYTES_PER_TOKEN)


def attempt_sections(attempt: Attempt) -> tuple[Section, ...]:
    """Two sections for each step, the reply and what it met, and one that says how the attempt ended."""
    sections = []
    for number, step in enumerate(attempt.steps, start=1):
        sections.append(Section(f"step {number}, the agent", step.reply))
        sections.append(Section(f"step {number}, the environment", step.observation))
    return (*sections, Section("end of the episode", attempt.ending))


def shown(sections: Sequence[Section], room: int) -> str:
    """Sections as text, with the middle left out and a note in its place where they are too long.

    Args:
        sections: What to show, in order.
        room: Most tokens, as :func:`estimated_tokens` counts them; the note comes on top.
    """
    texts = [section.shown for section in sections]
    full = "\n".join(texts)
    if estimated_tokens(full) <= room:
        return full
    half = max(room, 0) * _BYTES_PER_TOKEN // 2
    starts = [0, *accumulate(len(text) + 1 for text in texts)][: len(texts)]

    stop = len(full.encode()[:half].decode(errors="ignore"))
    place = bisect_right(starts, stop) - 1
    if stop <= starts[place] + len(sections[place].title) + 1:
        stop = starts[place]  # not in the middle of a title

    resume = len(full) - len(full.encode()[-half:].decode(errors="ignore") if half else "")
    place = bisect_right(starts, resume) - 1
    if resume <= starts[place] + len(sections[place].title) + 1:
        rest = full[starts[place] :]
        resume = starts[place]
    else:
        inside = full[resume:]
        # A line that was cut begins anew; so does one of which the quote's own sign was cut.
        inside = inside if full[resume - 1] == "\n" else _QUOTE + inside
        rest = f"{sections[place].title}, goes on:\n{inside}"
    note = f"[… {resume - stop:,} characters left out here …]"
    head = full[:stop].rstrip("\n").removesuffix("\n|")  # the first half of a quote's sign
    return "\n".join(part for part in (head, note, rest) if part)
