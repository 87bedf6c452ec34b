"""What a training server tells of itself, at ``/status`` and on its dashboard."""

from __future__ import annotations

from typing import Literal

from art_trainer.remote.fields import Message

State = Literal["starting", "evaluating", "training", "starved", "draining", "finished", "failed"]
"""``starved``: there is work, and no worker to do it."""


class ClientStatus(Message):
    """A worker that has been seen."""

    id: str
    """Its name."""
    connected: bool
    """Whether it is there now."""
    policy_version: int | None
    """Of the weights it plays with, as it said last; ``null``: of none yet."""
    leases: int
    """How many it holds."""
    episodes_played: int
    """As it said last."""
    episodes_per_second: float
    """As it said last."""
    last_seen_seconds: float
    """How long ago it said anything, on the server's clock."""
    last_error: str | None
    """What went wrong there last."""
    software: dict[str, str]
    """Names and versions."""


class QueueStatus(Message):
    """Where the episodes that were asked for are."""

    waiting: int
    """Nobody plays them yet."""
    leased: int
    """Somebody plays them."""
    finished: int
    """Played, and not yet taken by the trainer."""
    groups_waiting: int
    """Groups of which at least one episode is not played."""


class LeaseStatus(Message):
    """An episode that is being played somewhere."""

    lease: str
    """Its id."""
    client: str
    """Who plays it."""
    group: str
    """Its group's id."""
    attempt: int
    """How often it has been leased, this time included."""
    seconds_left: float
    """Until it runs out, unless it is renewed."""


class ServerStatus(Message):
    """A training server, now."""

    state: State
    """``starved``: there is work, and nobody plays. ``draining``: no more work is given out."""
    run: str
    """The run's folder, its name alone."""
    env: str
    """The environment's id."""
    step: int
    """Training steps done."""
    max_steps: int
    """Training steps in all."""
    policy_version: int
    """Of the newest weights."""
    uptime_seconds: float
    """Since the server was started."""
    seconds_left: float | None
    """Until the last step, at the speed of the last few; ``null`` where nothing can be said yet."""
    clients: list[ClientStatus]
    """Everyone who has been seen, by name."""
    queue: QueueStatus
    """Where the episodes are."""
    leases: list[LeaseStatus]
    """The first hundred, those that run out first."""
    results: dict[str, int]
    """Results by outcome, and leases by how they ended: ``expired``, ``released``, ``failed``."""
