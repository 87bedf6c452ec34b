"""The sandbox's error."""

from __future__ import annotations

from art_gym.errors import ArtGymError


class SandboxUnavailable(ArtGymError, RuntimeError):
    """No sandbox can be made on this machine, or not the one that was asked for; the message says why."""
