"""What a training server tells of itself, at ``/status`` and on its dashboard."""

from __future__ import annotations

from typing import Literal

from art_trainer.remote.messages import Message

State = Literal["starting", "evaluating", "training", "starved", "draining", "finished", "failed"]
"""``starved``: there is work, and no worker to do it."""


class ClientStatus(Message):
    """A worker that has been seen."""

    id: str
    connected: bool
    policy_version: int | None
    leases: int
    episodes_played: int
    episodes_per_second: float
    last_seen_seconds: float
    """How long ago it said anything, on the server's clock."""
    last_error: str | None
    software: dict[str, str]


class QueueStatus(Message):
    """Where the episodes that were asked for are."""

    waiting: int
    leased: int
    finished: int
    """Played, and not yet taken by the trainer."""
    groups_waiting: int
    """Groups of which at least one episode is not played."""


class LeaseStatus(Message):
    """An episode that is being played somewhere."""

    lease: str
    client: str
    group: str
    attempt: int
    """How often it has been leased, this time included."""
    seconds_left: float


class ServerStatus(Message):
    """A training server, now."""

    state: State
    run: str
    """The run's folder, its name alone."""
    env: str
    step: int
    max_steps: int
    policy_version: int
    uptime_seconds: float
    seconds_left: float | None
    """Until the last step, at the speed of the last few; ``None`` where nothing can be said yet."""
    clients: list[ClientStatus]
    queue: QueueStatus
    leases: list[LeaseStatus]
    """The first hundred, those that run out first."""
    results: dict[str, int]
    """Results by outcome, and leases by how they ended: ``expired``, ``released``, ``failed``."""
