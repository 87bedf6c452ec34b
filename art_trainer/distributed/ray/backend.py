"""Rollout backend whose groups are played by actors of a Ray cluster.

Each actor is a :class:`~art_trainer.distributed.worker.worker.Worker` that plays for a training server in the
driver's process: leases, weights and results go the same way as with any worker, and Ray only starts the
processes. The driver replaces an actor that has died, does not answer, or does not get on.
"""

from __future__ import annotations

import logging
import math
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from art_trainer.config import GRPOConfig, LeaseOptions
from art_trainer.distributed.backend import RemoteBackend
from art_trainer.distributed.protocol import ClientStatus, ServerStatus
from art_trainer.distributed.ray.cluster import (
    ActorResources,
    Cluster,
    ClusterError,
    RayActorHandle,
)
from art_trainer.distributed.server import ServerOptions
from art_trainer.errors import ConfigError
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.rollout.episodes import DEFAULT_MAX_CONCURRENT

FailureReason = Literal["died", "unresponsive", "stalled", "unschedulable"]
"""How an actor was lost. ``died``: its process has ended, maybe with an error. ``unresponsive``: it sends no
heartbeats. ``stalled``: it does, but no episode ends. ``unschedulable``: it does not start."""
_MAX_CAPACITY = 1024
_LONGEST_PAUSE = 30.0
_TRIES = 3
"""As many times the pool's size consecutive failures without a result end it."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ActorTimeouts:
    """Timeouts of actors in seconds, on the driver's clock."""

    startup: float = 300.0
    """For the cluster to schedule an actor, and for its process to connect to the driver."""
    lease: float = LeaseOptions().lease_seconds
    """Without a heartbeat, until an actor's episodes are given to others."""
    heartbeat: float = 60.0
    """Without a heartbeat, until an actor is killed; at least ``lease``."""
    progress: float = 1800.0
    """Without a finished episode, until an actor that has leases is killed."""


@dataclass(eq=False, slots=True)
class _Slot:
    """One place of the pool, across the actors that fill it."""

    number: int
    actors: int = 0
    name: str = ""
    handle: RayActorHandle | None = None
    next_start: float = 0.0
    started: float = 0.0
    played: int = -1
    progressed: float = 0.0
    """When an episode of its actor ended last, or it had no leases."""
    reported: bool = False
    """Whether the cluster's lack of resources was logged."""

    def failure(
        self, client: ClientStatus | None, timeouts: ActorTimeouts
    ) -> tuple[FailureReason, str] | None:
        """Return how its actor has failed, or ``None``."""
        assert self.handle is not None
        now = time.monotonic()
        if (error := self.handle.error()) is not None:
            return "died", error
        if client is None:
            late = now - self.started > timeouts.startup
            return ("unschedulable", f"it did not start within {timeouts.startup:g} s") if late else None
        self.reported = False
        if client.last_seen_seconds > timeouts.heartbeat:
            return "unresponsive", f"it did not answer for {timeouts.heartbeat:g} s"
        if client.episodes_played != self.played or not client.leases:
            self.played, self.progressed = client.episodes_played, now
        if now - self.progressed > timeouts.progress:
            return "stalled", f"none of {client.leases} episodes ended within {timeouts.progress:g} s"
        return None


class ActorPool:
    """Keeps a number of actors running.

    Args:
        create_actor: Creates an actor of a name; may raise :class:`ClusterError`.
        status: Returns the status of the driver's server.
        size: How many actors.
        timeouts: Timeouts of actors.
        describe_resources: Describes the cluster's resources, for messages.

    Attributes:
        failures: How many actors were lost, by reason.
    """

    def __init__(
        self,
        create_actor: Callable[[str], RayActorHandle],
        status: Callable[[], ServerStatus],
        *,
        size: int,
        timeouts: ActorTimeouts,
        describe_resources: Callable[[], str],
    ) -> None:
        self.failures: Counter[str] = Counter()
        self._create_actor = create_actor
        self._status = status
        self._slots = [_Slot(number) for number in range(size)]
        self._timeouts = timeouts
        self._describe_resources = describe_resources
        self._consecutive_failures = 0
        self._results = 0

    def check(self) -> None:
        """Replace actors that have failed, and start those that are due; call it about once a second.

        Raises:
            ClusterError: If no actor can play.
        """
        status = self._status()
        clients = {client.id: client for client in status.clients}
        results = status.results.get("accepted", 0)
        if results > self._results:
            self._results, self._consecutive_failures = results, 0
        for slot in self._slots:
            if slot.handle is None:
                if time.monotonic() >= slot.next_start:
                    self._start(slot)
            elif (failure := slot.failure(clients.get(slot.name), self._timeouts)) is not None:
                self._replace(slot, *failure, alone=not any(client.connected for client in clients.values()))

    def close(self) -> None:
        """Kill all actors."""
        for slot in self._slots:
            if slot.handle is not None:
                slot.handle.kill()
                slot.handle = None

    def _start(self, slot: _Slot) -> None:
        slot.actors += 1
        slot.name = f"actor-{slot.number}.{slot.actors}"  # the server forgets no name
        slot.handle = self._create_actor(slot.name)
        slot.played, slot.started = -1, time.monotonic()

    def _replace(self, slot: _Slot, reason: FailureReason, message: str, *, alone: bool) -> None:
        """Kill an actor; another one is started after a pause.

        Raises:
            ClusterError: If continuing cannot succeed.
        """
        assert slot.handle is not None
        slot.handle.kill()
        slot.handle = None
        self.failures[reason] += 1
        if reason == "unschedulable":
            message = (
                f"{slot.name} cannot be scheduled in the cluster: {message}. {self._describe_resources()}"
            )
            if alone:
                raise ClusterError(message)
            if not slot.reported:
                slot.reported = True
                _log.warning("%s. It is tried again; meanwhile the others play", message)
            return
        self._consecutive_failures += 1
        slot.next_start = time.monotonic() + min(_LONGEST_PAUSE, 0.1 * 2**self._consecutive_failures)
        message = f"{slot.name} failed ({reason}): {message}"
        _log.warning("%s; its episodes are played again", message)
        if self._consecutive_failures > _TRIES * len(self._slots):
            raise ClusterError(
                f"{self._consecutive_failures} consecutive actor failures without a result; last: {message}"
            )


class RayBackend(RemoteBackend):
    """Plays groups in a Ray cluster.

    A failed actor's episodes are played by others; an episode that fails too often has an error, and its
    group is dropped. With ``config.max_staleness`` 0 actors wait during an update; with 1 they play the next
    batch meanwhile.

    Args:
        policy: The trained policy; actors get its model's files, and its weights with every version.
        env: The environment's id, known on every node; ``module:id`` imports the module first.
        env_args: Its arguments.
        config: The trainer's settings.
        address: Of a running cluster, ``auto`` or ``10.0.0.5:6379``; ``None``: a private one on this machine.
            All nodes need the same version of this package, and reach this process by TCP.
        actors: How many actors.
        resources: What each asks the cluster for; with GPUs its model is on one.
        timeouts: Timeouts of actors.

    Raises:
        ConfigError: If Ray is not installed, or a number is out of range.
        ClusterError: If there is no cluster.
    """

    def __init__(
        self,
        policy: TransformersPolicy,
        env: str,
        env_args: Mapping[str, Any],
        config: GRPOConfig,
        *,
        address: str | None = None,
        actors: int = 2,
        resources: ActorResources | None = None,
        timeouts: ActorTimeouts | None = None,
    ) -> None:
        if actors < 1:
            raise ConfigError(f"ray_actors is {actors}: set at least 1")
        timeouts = timeouts or ActorTimeouts()
        cluster = Cluster(address, actors=actors, resources=resources or ActorResources())
        token = secrets.token_urlsafe(32)
        # Not used after this process: a resumed run plays again what it needs.
        self._folder = folder = tempfile.TemporaryDirectory(prefix="art-ray-")
        leases = LeaseOptions(lease_seconds=timeouts.lease)
        try:
            options = ServerOptions(cluster.host, token=token, leases=leases)
            super().__init__(
                policy, env, env_args, config, Path(folder.name), options=options, drain_seconds=2.0
            )
        except BaseException:
            cluster.close()
            folder.cleanup()
            raise
        # All actors share one step's groups.
        share = math.ceil(config.groups_per_step / actors) * config.num_generations
        capacity = min(share, config.max_concurrent or DEFAULT_MAX_CONCURRENT, _MAX_CAPACITY)
        self._pool = ActorPool(
            lambda name: cluster.create_actor(
                self.url, client_id=name, token=token, capacity=capacity, env_threads=config.env_threads
            ),
            self.status,
            size=actors,
            timeouts=timeouts,
            describe_resources=cluster.describe_resources,
        )
        self._opened.callback(cluster.close)
        self._opened.callback(self._pool.close)

    @property
    def failures(self) -> dict[str, int]:
        """How many actors failed, by :data:`FailureReason`."""
        return dict(self._pool.failures)

    def publish(self, version: int) -> None:
        """Publish the policy's present weights to the actors; the first time they are started."""
        super().publish(version)
        self._pool.check()

    def _check(self) -> None:
        super()._check()
        self._pool.check()

    def close(self) -> None:
        """Stop the actors and the server, and a cluster that was started here."""
        super().close()
        self._folder.cleanup()
