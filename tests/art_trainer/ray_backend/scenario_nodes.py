"""A Ray cluster of two nodes on this machine, one of which is killed while both play.

A process of its own, since Ray warns and leaves sockets open where it is imported. Writes JSON into the file
that is its argument.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster as Nodes

from art_trainer.episodes import Group
from art_trainer.ray_backend.cluster import ActorResources, Cluster
from art_trainer.ray_backend.hand import Patience
from tests.art_trainer.ray_backend.hands import Company
from tests.art_trainer.ray_backend.players import tasks
from tests.art_trainer.ray_backend.scenario_tools import MakeUp, counted, seconds_until, tell


def nodes(folder: Path) -> dict[str, Any]:
    """Two nodes, of which one is killed while both play."""
    machines = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = machines.add_node(num_cpus=2)
    cluster = Cluster(machines.address, actors=3, resources=ActorResources())
    patience = Patience(pulse=0.2, start=120, lease=10, silence=60)
    made = Company(
        folder / "nodes",
        lambda number: cluster.hire(MakeUp(0.05)),
        size=3,
        patience=patience,
        room=cluster.room,
    )
    heard = []

    def kill_one(place: int, group: Group) -> None:
        heard.append(place)
        if len(heard) == 4:
            machines.remove_node(second, allow_graceful=False)

    try:
        made.publish(0)
        assert seconds_until(lambda: made.crew.present == 3, 120) is not None
        groups = made.groups.collect(tasks(24), on_episode=lambda episode: None, on_group=kill_one)
        return {**counted(made, groups), "heard": sorted(heard)}
    finally:
        made.close()
        cluster.close()
        machines.shutdown()


if __name__ == "__main__":
    tell(nodes)
