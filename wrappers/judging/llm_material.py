"""What a group holds for a judge to read: each different attempt once, and once what all have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from art_gym.wrappers.judging.attempts import Attempt
from art_gym.wrappers.judging.judge_cache import canonical_json
from art_gym.wrappers.judging.llm_text import Section, attempt_sections


@dataclass(frozen=True, slots=True)
class Material:
    """A group without ids, order and repetitions.

    Attributes:
        task: What the agents were asked.
        tools: The schemas of the tools that any of them had, as JSON, sorted.
        shared: The sections with which all attempts begin, whole steps only.
        attempts: The further sections of each different attempt.
        ids: For each of ``attempts``, the ids of the group's attempts that read like it.
    """

    task: Section
    tools: Section
    shared: tuple[Section, ...]
    attempts: tuple[tuple[Section, ...], ...]
    ids: tuple[tuple[str, ...], ...]


def read_group(group: Sequence[Attempt], *, keep_order: bool = False) -> Material:
    """Read a group: attempts that read the same, word for word, become one.

    Args:
        group: Attempts at one task.
        keep_order: Whether the different attempts stay in the group's order; else they are sorted by their
            content, so that the group's order makes no difference.
    """
    ids: dict[tuple[Section, ...], list[str]] = {}
    for attempt in group:
        ids.setdefault(attempt_sections(attempt), []).append(attempt.id)
    different = list(ids) if keep_order else sorted(ids, key=_digest)
    count = _common_steps(different)
    tools = sorted({canonical_json(tool) for attempt in group for tool in attempt.tools})
    return Material(
        task=Section("what the agents were told", group[0].task),
        tools=Section("the tools they had", "\n".join(tools)),
        shared=different[0][:count],
        attempts=tuple(sections[count:] for sections in different),
        ids=tuple(tuple(ids[sections]) for sections in different),
    )


def _common_steps(different: Sequence[tuple[Section, ...]]) -> int:
    """How many leading sections all attempts share, whole steps only; 0 for a single attempt."""
    if len(different) == 1:
        return 0
    count = 0
    for places in zip(*different, strict=False):
        if len(set(places)) > 1:
            break
        count += 1
    return count - count % 2


def _digest(sections: tuple[Section, ...]) -> str:
    words = canonical_json([[section.title, section.text] for section in sections])
    return hashlib.sha256(words.encode()).hexdigest()
