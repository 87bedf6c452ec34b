"""What happens in real Ray clusters on this machine: ``python -m … SCENARIO FILE`` writes JSON into the file.

A process of its own, since Ray warns and leaves sockets open where it is imported.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from art_trainer.config import GRPOConfig
from art_trainer.distributed.ray.backend import ActorTimeouts, RayBackend
from art_trainer.distributed.ray.cluster import ActorResources
from art_trainer.errors import TrainerError
from art_trainer.types import Group, GroupSpec
from tests.art_trainer.distributed.guess_envs import MODULE
from tests.art_trainer.guess import guess_policy

ENV = f"{MODULE}:guess/Guess-v0"
STRIKING = f"{MODULE}:guess/Striking-v0"
SIZE = 4
CONFIG = GRPOConfig(num_generations=SIZE, groups_per_step=2)


def local(folder: Path) -> dict[str, Any]:
    """A private cluster: one actor is killed, one is stopped; then there is no room."""
    timeouts = ActorTimeouts(lease=3, heartbeat=15)
    backend = RayBackend(
        guess_policy(hidden=16), STRIKING, {"folder": str(folder)}, CONFIG, timeouts=timeouts
    )
    try:
        groups = collect(backend, 6)
        assert soon(lambda: checked(backend).failures.get("unresponsive", 0) == 1)
        faults = report(backend, groups) | {"open_to_all": open_to_all()}
        stopped = int((folder / "102").read_text())
        faults["stopped_ended"] = soon(lambda: not Path(f"/proc/{stopped}").exists())
    finally:
        backend.close()
    return {"faults": faults, "unschedulable": without_room()}


def without_room() -> str:
    """Actors ask for a GPU that no node has."""
    lack: dict[str, Any] = {
        "resources": ActorResources(cpus=1, gpus=1),
        "timeouts": ActorTimeouts(startup=1.5),
    }
    backend = RayBackend(guess_policy(hidden=16), ENV, {}, CONFIG, **lack)
    try:
        collect(backend, 2)
    except TrainerError as error:
        return str(error)
    finally:
        backend.close()
    raise AssertionError("it found room")


def nodes(folder: Path) -> dict[str, Any]:
    """Two nodes, of which one is killed while both play."""
    from ray.cluster_utils import Cluster as Nodes  # a private cluster is to be the first to import Ray

    machines = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = machines.add_node(num_cpus=2)
    backend = RayBackend(guess_policy(hidden=16), ENV, {}, CONFIG, address=machines.address, actors=3)
    heard: list[int] = []

    def kill_one(place: int, group: Group) -> None:
        heard.append(place)
        if len(heard) == 4:
            machines.remove_node(second, allow_graceful=False)

    try:
        backend.publish(0)
        assert soon(lambda: checked(backend).server.connections.connected == 3)
        groups = backend.collect(specs(24), on_episode=lambda episode: None, on_group=kill_one)
        assert soon(lambda: checked(backend).failures.get("died", 0) >= 1)
        more = [GroupSpec(500 + n, SIZE, (0, 1, n)) for n in range(4)]
        later = backend.collect(more, on_episode=lambda episode: None)
        return {**report(backend, groups), "heard": sorted(heard), "later": sum(g.whole for g in later)}
    finally:
        backend.close()
        machines.shutdown()


def specs(count: int) -> list[GroupSpec]:
    return [GroupSpec(100 + n, SIZE, (0, 0, n)) for n in range(count)]


def collect(backend: RayBackend, count: int) -> list[Group]:
    backend.publish(0)
    return backend.collect(specs(count), on_episode=lambda episode: None)


def checked(backend: RayBackend) -> RayBackend:
    """Let a backend start actors and replace lost ones, as it does while it waits for groups."""
    backend._check()
    return backend


def report(backend: RayBackend, groups: list[Group]) -> dict[str, Any]:
    return {
        "seeds": [[episode.seed for episode in group.episodes] for group in groups],
        "whole": sum(group.whole for group in groups),
        "results": backend.status().results,
        "failures": backend.failures,
    }


def open_to_all() -> list[str]:
    """The sockets of all processes with this one's home that listen to other machines too."""
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [row.split() for table in tables for row in table]
    listening = {f"socket:[{row[9]}]": row[1] for row in rows if row[3] == "0A"}
    home = f"HOME={os.environ['HOME']}".encode()
    ours = set()
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and home in (process / "environ").read_bytes().split(b"\0"):
                ours |= {os.readlink(file) for file in (process / "fd").iterdir()}
        except OSError:
            continue  # it has ended meanwhile
    addresses = [listening[file] for file in ours & listening.keys()]
    assert addresses  # Ray listens somewhere
    loopback = ("0100007F:", "00000000000000000000000001000000:", "0000000000000000FFFF00000100007F:")
    return sorted(address for address in addresses if not address.startswith(loopback))


def soon(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 600  # actors import PyTorch first, on a machine that may be busy
    while not true() and time.monotonic() < deadline:
        time.sleep(0.1)
    return true()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    name, out = sys.argv[1], Path(sys.argv[2])
    scenarios = {"local": local, "nodes": nodes}
    out.write_text(json.dumps(scenarios[name](out.parent)))
