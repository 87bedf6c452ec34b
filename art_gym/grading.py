"""What an episode's outcome depends on beside what the agent is shown.

An environment that grades with hidden tests, or searches a mailbox, may say so. Whoever fixes a list of tasks
to compare policies on (``art-trainer make-suite``) takes it into the list's hash, so that results on tasks
that are graded otherwise by now are not held against each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from art_gym.tasks import Task


@runtime_checkable
class TellsGrading(Protocol):
    """An environment that has more to say of a task than the :class:`~art_gym.tasks.Task` holds."""

    def grading(self, task: Task) -> Mapping[str, Any]:
        """What decides how an episode of this task ends and what it pays; JSON-able, never for the agent.

        Such as hidden tests, the tolerance of a comparison, or a digest of data that the tools read. What the
        environment's arguments and the task itself say need not be among it.
        """
