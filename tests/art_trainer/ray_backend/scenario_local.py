"""A private Ray cluster on this machine: actors that are lost, find no room, or get damaged files.

A process of its own, since Ray warns and leaves sockets open where it is imported. Writes JSON into the file
that is its argument.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np

from art_trainer.errors import TrainerError
from art_trainer.ray_backend.cluster import ActorResources, Cluster
from art_trainer.ray_backend.hand import Patience
from art_trainer.ray_backend.parcels import Parcel
from art_trainer.remote.tensor_files import file_entry
from tests.art_trainer.ray_backend.hands import Company
from tests.art_trainer.ray_backend.players import tasks
from tests.art_trainer.ray_backend.scenario_tools import (
    MakeUp,
    Strikes,
    counted,
    open_to_all,
    seconds_until,
    tell,
)


def local(folder: Path) -> dict[str, Any]:
    cluster = Cluster(None, actors=2, resources=ActorResources())
    found: dict[str, Any] = {}
    try:
        found["faults"] = with_faults(cluster, folder)
        found["unplaced"] = without_room(folder)
        found["damaged"] = damaged(cluster, folder)
    finally:
        cluster.close()
    return found


def with_faults(cluster: Cluster, folder: Path) -> dict[str, Any]:
    """One actor is killed with -9 while it plays, another is stopped."""
    strikes = Strikes(folder, {100: signal.SIGKILL, 102: signal.SIGSTOP})
    patience = Patience(pulse=0.2, start=120, lease=3, silence=8)
    made = Company(folder / "faults", lambda number: cluster.hire(MakeUp(0.02, strikes)), patience=patience)
    try:
        made.publish(0)
        groups = made.groups.collect(tasks(6), on_episode=lambda episode: None)
        stopped = strikes.struck(102)
        return {
            **counted(made, groups),
            "open_to_all": open_to_all(),
            "stopped_ended_within": seconds_until(lambda: not Path(f"/proc/{stopped}").exists()),
        }
    finally:
        made.close()


def without_room(folder: Path) -> dict[str, Any]:
    """Actors ask for a GPU that no node has."""
    cluster = Cluster(None, actors=2, resources=ActorResources(cpus=1, gpus=1))
    made = Company(
        folder / "unplaced",
        lambda number: cluster.hire(MakeUp(0)),
        patience=Patience(start=1.5),
        room=cluster.room,
    )
    try:
        made.publish(0)
        made.groups.collect(tasks(2), on_episode=lambda episode: None)
    except TrainerError as fault:
        return {"words": str(fault)}
    finally:
        made.close()
    raise AssertionError("it found room")


def damaged(cluster: Cluster, folder: Path) -> str:
    """A file of which one bit is flipped in the object store."""
    file = folder / "weights.safetensors"
    file.write_bytes(bytes(100))
    content = np.fromfile(file, np.uint8)
    content[50] ^= 1
    parcel = Parcel(file_entry(file), cluster.put(content))
    try:
        parcel.unpack(folder)
    except TrainerError as fault:
        return str(fault)
    raise AssertionError("nobody noticed")


if __name__ == "__main__":
    tell(local)
