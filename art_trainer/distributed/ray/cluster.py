"""Connection to a Ray cluster: a running one, or a private one on this machine.

Ray's own fault tolerance is not used (measured with Ray 2.60): its retries run an episode twice and give up
after a node is lost, it does not notice a stopped process, and it waits for ever for an actor that cannot be
scheduled. So Ray neither restarts actors nor repeats calls, and the task queue decides about the episodes of
a failed actor.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import re
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_trainer.errors import ConfigError, EngineError

_ANSI_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_DEATH_CAUSE = re.compile(r"The actor is dead because (.*?)(?:\. Some common causes|$)", re.MULTILINE)
_CONNECT_SECONDS = 10.0


class ClusterError(EngineError):
    """A Ray cluster that cannot be used, or in which nothing can be played; says what would help."""


class RolloutActor:
    """The class of the Ray actors."""

    def run(self, url: str, options: Mapping[str, Any]) -> None:
        """Be a :class:`~art_trainer.distributed.worker.worker.Worker` until the driver's server ends it."""
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the server sends all files
        from art_trainer.distributed.worker.worker import Worker
        from art_trainer.rollout.envs import env_maker

        with tempfile.TemporaryDirectory(prefix="art-ray-") as cache:
            Worker(url, env_maker, Path(cache), **options).run()


@dataclass(frozen=True, slots=True)
class ActorResources:
    """What one actor asks the cluster for.

    Raises:
        ConfigError: For a number below 0, or nothing at all.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    """A fraction lets several actors share a GPU."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"ray_actor_{name} is {getattr(self, name)}: set a number of at least 0")
        if not self.cpus and not self.gpus:
            raise ConfigError("ray_actor_cpus and ray_actor_gpus are both 0: set one of them")


class Cluster:
    """A connection to a Ray cluster.

    Args:
        address: Of a running cluster, ``host:port`` or ``auto``; ``None``: a private one on this machine,
            which nobody else can reach if Ray is first imported here. An existing connection of this process
            is used.
        actors: How many actors a private cluster has room for.
        resources: What each of them asks for.

    Raises:
        ConfigError: If Ray is not installed, or the address is of a kind that cannot be used.
        ClusterError: If there is no cluster.
    """

    def __init__(self, address: str | None, *, actors: int, resources: ActorResources) -> None:
        require_ray()
        if address is not None:
            check_reachable(address)
        # Ray reads these on import: no usage statistics; a private cluster only listens on loopback, and its
        # actors do not give way to all else on a busy machine (Ray's own niceness is 15).
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address is None:
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
            os.environ.setdefault("RAY_worker_niceness", "0")
        import ray

        self._ray: Any = ray
        self._resources = resources
        self._own = not ray.is_initialized()
        if not self._own:
            return
        options: dict[str, Any] = {"address": address}
        if address is None:
            cpus = max(1, math.ceil(actors * resources.cpus))
            options = {"address": "local", "include_dashboard": False, "num_cpus": cpus}
        try:
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ray.exceptions.RayError, RuntimeError, ValueError, OSError) as error:
            which = "a private Ray cluster" if address is None else f"the Ray cluster at {address}"
            raise ClusterError(
                f"{which} cannot be used: {_last_line(str(error))}{_token_hint(address)}"
            ) from error

    @property
    def host(self) -> str:
        """The address of this machine that the cluster's nodes reach."""
        return str(self._ray.util.get_node_ip_address())

    def create_actor(self, url: str, **options: Any) -> RayActorHandle:
        """Create an actor; if it cannot be scheduled it never connects.

        Args:
            url: The driver's training server.
            **options: Of its :class:`~art_trainer.distributed.worker.worker.Worker`.
        """
        return RayActorHandle(self._ray, self._resources, url, options)

    def describe_resources(self) -> str:
        """Describe what an actor asks for, what the cluster has, and what could be done."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        wanted = {"CPU": self._resources.cpus, "GPU": self._resources.gpus}
        return describe_shortage(wanted, nodes, self._ray.available_resources())

    def close(self) -> None:
        """Close a connection that was opened here; a private cluster ends with it."""
        if self._own and self._ray.is_initialized():
            self._ray.shutdown()


class RayActorHandle:
    """One Ray actor.

    Args:
        ray: The module ``ray``, connected.
        resources: What it asks for.
        url: The driver's training server.
        options: Of its worker.

    Raises:
        ClusterError: If the cluster takes no actors, or this process is no longer connected.
    """

    def __init__(self, ray: Any, resources: ActorResources, url: str, options: Mapping[str, Any]) -> None:
        self._ray = ray
        self._require_connection()
        remote = ray.remote(RolloutActor).options(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )
        try:
            self._actor = remote.remote()
            self._running = self._actor.run.remote(url, options)
        except ray.exceptions.RayError as error:
            raise ClusterError(f"the cluster takes no actors: {_last_line(str(error))}") from error

    def error(self) -> str | None:
        """Return why it has ended; ``None`` while it runs.

        Raises:
            ClusterError: If this process is no longer connected.
        """
        self._require_connection()
        if not self._ray.wait([self._running], timeout=0)[0]:
            return None
        try:
            self._ray.get(self._running)
        except self._ray.exceptions.RayError as error:
            return death_cause(str(error))
        return "its worker has ended"

    def kill(self) -> None:
        """Kill its process."""
        if self._ray.is_initialized():
            self._ray.kill(self._actor, no_restart=True)

    def _require_connection(self) -> None:
        """Prevent Ray from starting a cluster of its own."""
        if not self._ray.is_initialized():
            raise ClusterError("the connection to Ray was shut down while actors were at work")


def check_reachable(address: str) -> None:
    """Check that something listens at an address: Ray itself would try for minutes.

    Raises:
        ConfigError: If the address is of a kind that cannot be used.
        ClusterError: If nothing listens.
    """
    if "://" in address:
        raise ConfigError(
            f"ray_address is {address}: give the head node's own address, as in 10.0.0.5:6379, on a machine "
            "that belongs to the cluster; Ray's client cannot be used"
        )
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ClusterError(
            f"there is no Ray cluster at {address} ({error}): start one there with `ray start --head`, or "
            "leave ray_address out for a private one"
        ) from error


def require_ray() -> None:
    """Check that Ray is installed.

    Raises:
        ConfigError: With what to install.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError('backend is ray, which needs the package ray: pip install "art-gym[ray]"')


def death_cause(message: str) -> str:
    """Return the cause from Ray's long message about a dead actor."""
    found = _DEATH_CAUSE.search(message)
    return _last_line(message) if found is None else found[1].strip()


def describe_shortage(
    wanted: Mapping[str, float], nodes: list[Mapping[str, float]], free: Mapping[str, float]
) -> str:
    """Describe why an actor may not be scheduled, and what would help.

    Args:
        wanted: What it asks for.
        nodes: What each node has, free or not.
        free: What is free on all nodes together.
    """
    asked = " and ".join(f"{count:g} {name}" for name, count in wanted.items())
    if any(all(node.get(name, 0) >= count for name, count in wanted.items()) for node in nodes):
        left = " and ".join(f"{free.get(name, 0):g} {name}" for name in wanted)
        return (
            f"Each actor asks for {asked}; there are nodes with as much, but of all {len(nodes)} together "
            f"{left} are free. Ask for fewer actors (ray_actors) or for less each, add nodes, or end what "
            "else runs in the cluster"
        )
    most = " and ".join(f"{max((n.get(name, 0) for n in nodes), default=0):g} {name}" for name in wanted)
    return (
        f"Each actor asks for {asked}, but none of the cluster's {len(nodes)} nodes has as much; the most "
        f"that one has is {most}. Ask for less (ray_actor_cpus, ray_actor_gpus), or add a node that has it"
    )


def _token_hint(address: str | None) -> str:
    """A hint that the cluster may need a token, which Ray only sends to a cluster that it has found itself.

    A cluster that was started on a machine with a saved token requires it (measured with Ray 2.60).
    """
    if address in (None, "auto") or "RAY_AUTH_MODE" in os.environ:
        return ""
    return (
        "; if it needs a token, which Ray keeps in ~/.ray/auth_token of the machine that started it, set "
        "RAY_AUTH_MODE=token"
    )


def _last_line(text: str) -> str:
    lines = [line for line in _ANSI_COLORS.sub("", text).splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no reason given"
