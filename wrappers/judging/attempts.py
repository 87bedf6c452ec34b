"""What a judge reads: one attempt at a task, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from art_gym.wrappers.judging.errors import JudgingError


@dataclass(frozen=True, slots=True)
class Step:
    """One reply and what came of it."""

    reply: str
    observation: str
    reward: float = 0.0
    call: Mapping[str, Any] | None = None
    """The tool call that was read from the reply, ``{"name": …, "arguments": {…}}``."""
    error: Mapping[str, Any] | None = None
    """What was wrong with the reply, ``{"kind": …, "message": …}``; ``None`` for a valid call."""
    seconds: float | None = None
    """How long the reply and the environment's answer took, wall time; ``None`` where nobody measured. It
    comes in as data, so that a replay is judged alike."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a task, from its first observation to its end.

    Attributes:
        id: Names the attempt within its group; a judge answers by it.
        task: What the agent was asked: the first observation.
        steps: The turns, in order.
        tools: Schemas of the tools it had, in OpenAI's format.
        ending: How it ended, such as ``"terminated"`` or ``"truncated"``.
        success: What the environment said of it; only a judge that is trusted with the truth looks.
        facts: What the environment knows about the episode, see :meth:`art_gym.env.TextEnv.facts`.
    """

    id: str
    task: str
    steps: tuple[Step, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    ending: str = "terminated"
    success: bool | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reward(self) -> float:
        """The environment's own reward, summed over the steps."""
        return sum(step.reward for step in self.steps)


def check_group(group: Sequence[Attempt]) -> None:
    """Refuse what no judge can rank.

    Raises:
        JudgingError: For an empty group, an id that two attempts share, or attempts at different tasks.
    """
    if not group:
        raise JudgingError("a group to judge holds at least one attempt, this one is empty")
    ids = [attempt.id for attempt in group]
    for id_ in ids:
        if ids.count(id_) > 1:
            raise JudgingError(f"{ids.count(id_)} attempts share the id {id_!r}: give each its own")
    tasks = {attempt.task for attempt in group}
    if len(tasks) > 1:
        raise JudgingError(
            f"a group holds attempts at one task, this one holds {len(tasks)} tasks: judge each task's group "
            "by itself"
        )
