"""A Ray cluster: one that runs, by its address, or a private one on this machine.

What Ray itself does about faults is not relied on. Its own retries run an episode twice and give up after a
node is lost; it never notices a process that is stopped; and an actor for which there is no room it waits for
without an end (measured with Ray 2.60). So actors are neither restarted nor called again by Ray, each wait
has a limit, and what comes of a lost actor's episodes is the ledger's affair.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import math
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from art_trainer.errors import ConfigError
from art_trainer.ray_backend.actor import Player, RolloutActor
from art_trainer.ray_backend.hand import ActorLost, ClusterError
from art_trainer.ray_backend.work import Report, Work

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_WHY_DEAD = re.compile(r"The actor is dead because (.*?)(?:\. Some common causes|$)", re.MULTILINE)
_MOST_PENDING = 4
"""Calls of an actor that Ray may hold; there is never more than one, and another at the end."""
_KNOCK_SECONDS = 10.0


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

    def __str__(self) -> str:
        return f"{self.cpus:g} CPU and {self.gpus:g} GPU"


class Cluster:
    """A connection to a Ray cluster.

    Args:
        address: Of a cluster that runs, ``host:port`` or ``auto``; ``None``: a private one on this machine,
            which nobody else can reach, as long as Ray is first imported here. Where this process is
            connected already, that connection is used.
        actors: How many actors a private cluster has room for.
        resources: What each of them asks for.

    Raises:
        ConfigError: Where Ray is not installed, or cannot be used by this kind of address.
        ClusterError: Where the cluster is not there.
    """

    def __init__(self, address: str | None, *, actors: int, resources: ActorResources) -> None:
        require_ray()
        if address is not None:
            _knock(address)
        # Ray reads them when it is imported. By default it tells its makers what runs, and what a private
        # cluster opens is open to all the network; so it is to this machine only.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address is None:
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        import ray

        self._ray: Any = ray
        self._resources = resources
        self._own = not ray.is_initialized()
        if not self._own:
            return
        options: dict[str, Any] = {"address": address}
        if address is None:
            options = {
                "address": "local",
                "include_dashboard": False,
                "num_cpus": max(1, math.ceil(actors * resources.cpus)),
            }
        try:
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ray.exceptions.RayError, RuntimeError, ValueError, OSError) as fault:
            which = "a private Ray cluster" if address is None else f"the Ray cluster at {address}"
            words = f"{which} is not there: {_last_line(str(fault))}{_about_token(address)}"
            raise ClusterError(words) from fault

    def put(self, data: NDArray[np.uint8]) -> Any:
        """Lay bytes into the cluster's object store; return what stands for them."""
        return self._ray.put(data)

    def hire(self, make_player: Callable[[], Player]) -> RayHand:
        """Have an actor made; where there is no place for it, its first call is not answered."""
        return RayHand(self._ray, make_player, self._resources)

    def room(self) -> str:
        """What an actor asks for, what the cluster has, and what could be done, in words."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        wanted = {"CPU": self._resources.cpus, "GPU": self._resources.gpus}
        return words_about_room(wanted, nodes, self._ray.available_resources())

    def close(self) -> None:
        """Give up the connection, where it was made here; a private cluster ends with it."""
        if self._own and self._ray.is_initialized():
            self._ray.shutdown()


class RayHand:
    """One Ray actor; implements :class:`art_trainer.ray_backend.hand.Hand`.

    Args:
        ray: The module ``ray``, connected.
        make_player: For the actor.
        resources: What it asks for.

    Raises:
        ClusterError: Where the cluster takes no actors, or this process is not connected any more.
    """

    def __init__(self, ray: Any, make_player: Callable[[], Player], resources: ActorResources) -> None:
        self._ray = ray
        self._require_connection()
        remote = ray.remote(RolloutActor).options(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            max_restarts=0,
            max_task_retries=0,
            max_pending_calls=_MOST_PENDING,
            scheduling_strategy="SPREAD",
        )
        try:
            self._actor = remote.remote(make_player)
        except ray.exceptions.RayError as fault:
            raise ClusterError(f"the cluster takes no actors: {_last_line(str(fault))}") from fault

    async def exchange(self, work: Work | None, wait: float) -> Report:
        """Call :meth:`~art_trainer.ray_backend.actor.RolloutActor.exchange`.

        Raises:
            ActorLost: Where the actor is gone.
            ClusterError: Where this process is not connected any more.
        """
        self._require_connection()
        try:
            answer = self._actor.exchange.remote(work, wait)
            report: Report = await asyncio.wrap_future(answer.future())
        except self._ray.exceptions.RayError as fault:
            raise ActorLost("died", why_lost(str(fault))) from None
        return report

    async def stop(self, seconds: float) -> None:
        """Ask it to close its environments; return when it has, or when so many seconds are over."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wrap_future(self._actor.stop.remote(seconds).future())
        except (TimeoutError, self._ray.exceptions.RayError):
            pass  # it is killed next

    def kill(self) -> None:
        """End its process, at once and whatever it does."""
        if self._ray.is_initialized():
            self._ray.kill(self._actor, no_restart=True)

    def _require_connection(self) -> None:
        """Be sure that Ray does not quietly start a cluster of its own."""
        if not self._ray.is_initialized():
            raise ClusterError("the connection to Ray was shut down while actors were at work")


def _knock(address: str) -> None:
    """Find out whether anybody is there: Ray itself would try for minutes.

    Raises:
        ConfigError: For an address of a kind that cannot be used.
        ClusterError: Where nobody is.
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
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_SECONDS).close()
    except (OSError, ValueError, OverflowError) as fault:
        raise ClusterError(
            f"there is no Ray cluster at {address} ({fault}): begin one there with `ray start --head`, or "
            "leave ray_address out for a private one"
        ) from fault


def _about_token(address: str | None) -> str:
    """A hint where a cluster may want a token that Ray has not sent it.

    A cluster begun on a machine where Ray has once saved a token wants that token. Ray sends it by itself to
    a cluster that it has found, not to an address that it was given (measured with Ray 2.60).
    """
    if address in (None, "auto") or "RAY_AUTH_MODE" in os.environ:
        return ""
    return (
        "; where it wants a token, which Ray keeps in ~/.ray/auth_token of the machine that began it, set "
        "RAY_AUTH_MODE=token"
    )


def require_ray() -> None:
    """Check that Ray is installed.

    Raises:
        ConfigError: With what to install.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError('backend is ray, which needs the package ray: pip install "art-gym[ray]"')


def why_lost(words: str) -> str:
    """What matters of the page that Ray writes about a lost actor."""
    found = _WHY_DEAD.search(words)
    return _last_line(words) if found is None else found[1].strip()


def words_about_room(
    wanted: Mapping[str, float], nodes: list[Mapping[str, float]], free: Mapping[str, float]
) -> str:
    """Say why there may be no room for an actor, and what would help.

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


def _last_line(words: str) -> str:
    lines = [line for line in _COLOURS.sub("", words).splitlines() if line.strip()]
    return lines[-1].strip() if lines else "for no reason given"
