"""What can go wrong when a group is judged."""

from __future__ import annotations

from art_gym.errors import ArtGymError


class JudgingError(ArtGymError, ValueError):
    """A group, rubric, score or judge is not what it has to be; a mistake of the caller's."""


class JudgeFailed(ArtGymError, RuntimeError):
    """A judge gave no usable answer about a group, although it was asked properly.

    The group's attempts are then left out of the update; they never get a made-up score.

    Attributes:
        reason: One word for counting, such as ``"timeout"``, ``"malformed"``, ``"refused"`` or ``"budget"``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
