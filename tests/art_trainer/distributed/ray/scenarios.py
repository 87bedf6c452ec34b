"""What happens in real Ray clusters on this machine: ``python -m … SCENARIO FILE`` writes JSON into the file.

A process of its own, since Ray warns and leaves sockets open where it is imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from art_trainer.cli import main as cli
from art_trainer.config import GRPOConfig
from art_trainer.distributed.ray.backend import ActorTimeouts, RayBackend
from art_trainer.distributed.ray.cluster import ActorResources, Cluster
from art_trainer.errors import TrainerError
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models.loading import add_lora_adapter
from art_trainer.training.trainer import GRPOTrainer
from art_trainer.types import Group, GroupSpec
from tests.art_trainer.guess import guess_policy

MODULE = "tests.art_trainer.distributed.ray.guess_id"
ENV = f"{MODULE}:guess/Guess-v0"
STRIKING = f"{MODULE}:guess/Striking-v0"
SIZE = 4


def local(folder: Path) -> dict[str, Any]:
    """A private cluster: one actor is killed, one is stopped; then there is no room."""
    backend = RayBackend(
        guess_policy(hidden=16),
        STRIKING,
        {"folder": str(folder)},
        GRPOConfig(num_generations=SIZE, groups_per_step=2),
        timeouts=ActorTimeouts(lease=3, heartbeat=8),
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
    backend = RayBackend(
        guess_policy(hidden=16),
        ENV,
        {},
        GRPOConfig(num_generations=SIZE, groups_per_step=2),
        resources=ActorResources(cpus=1, gpus=1),
        timeouts=ActorTimeouts(startup=1.5),
    )
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
    backend = RayBackend(
        guess_policy(hidden=16),
        ENV,
        {},
        GRPOConfig(num_generations=SIZE, groups_per_step=3),
        address=machines.address,
        actors=3,
    )
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


def training(folder: Path) -> dict[str, Any]:
    cluster = Cluster(None, actors=2, resources=ActorResources())
    try:
        return {"training": compared_training(folder), "command": command(folder)}
    finally:
        cluster.close()


def compared_training(folder: Path) -> dict[str, Any]:
    """The same steps here and there; and, with an adapter, batches played while another is learned from."""
    here, _ = trained(folder / "here", staleness=0, actors=0)
    there, results = trained(folder / "there", staleness=0, actors=1)
    ahead, results_ahead = trained(folder / "ahead", staleness=1, actors=1, lora=True)
    return {
        "compared": [compared(*pair) for pair in zip(here, there, strict=True)],
        "there": {"results": results, "versions": [versions(step) for step in there]},
        "ahead": {"results": results_ahead, "versions": [versions(step) for step in ahead]},
    }


def trained(
    folder: Path, *, staleness: int, actors: int, lora: bool = False
) -> tuple[list[list[Group]], dict[str, int]]:
    """The groups of a few steps, and what the ledger counted."""
    config = GRPOConfig(
        groups_per_step=4,
        num_generations=4,
        max_completion_length=2,
        max_steps=3,
        learning_rate=1e-2,
        max_staleness=staleness,
        importance_sampling_correction=staleness > 0,
        output_dir=str(folder),
    )
    policy = guess_policy()
    if lora:
        adapted = add_lora_adapter(policy.model, 4)
        policy = TransformersPolicy(adapted, policy.tokenizer, sampling=policy.sampling)
    backend = RayBackend(policy, ENV, {}, config, actors=actors) if actors else None
    trainer = GRPOTrainer(policy, ENV, config, backend=backend)
    steps = []
    try:
        while trainer.step < config.max_steps:
            steps.append(trainer.collect_episodes())
            trainer.update_policy(steps[-1])
        return steps, {} if backend is None else backend.status().results
    finally:
        trainer.close()


def command(folder: Path) -> list[Any]:
    """``art-trainer train --set backend=ray``."""
    small = ["backend=ray", "ray_actors=1", "max_steps=1", "scratch={layers: 1, hidden_size: 32}"]
    flags = [part for each in (*small, "eval_episodes=2", "baselines=[]") for part in ("--set", each)]
    flags += ["--env", ENV, "--model", "scratch", "--output-dir", str(folder / "run")]
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            cli.main(["train", *flags])
        except SystemExit as ended:
            return [ended.code, shown.getvalue()]
    raise AssertionError("main ends with an exit code")


def versions(groups: list[Group]) -> list[int]:
    """Of the weights that sampled."""
    histories = [h for group in groups for episode in group.episodes for h in episode.histories]
    return sorted({span.policy_version for history in histories for span in history.spans})


def compared(wanted: list[Group], got: list[Group]) -> dict[str, Any]:
    pairs = [
        pair for w, g in zip(wanted, got, strict=True) for pair in zip(w.episodes, g.episodes, strict=True)
    ]
    differences = [
        abs(x - y)
        for w, g in pairs
        for x, y in zip(w.histories[0].logprobs, g.histories[0].logprobs, strict=True)
    ]

    def without_logprobs(episode: Any) -> Any:
        spans = [[(s.token_ids, s.turn, s.policy_version) for s in h.spans] for h in episode.histories]
        return spans, dataclasses.replace(episode, histories=())

    return {
        "episodes": len(pairs),
        "same": sum(without_logprobs(w) == without_logprobs(g) for w, g in pairs),
        "logprob_difference": max(differences),
        "words": sorted({turn.reply for w, _ in pairs for turn in w.turns}),
    }


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
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
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
    deadline = time.monotonic() + 60
    while not true() and time.monotonic() < deadline:
        time.sleep(0.1)
    return true()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    name, out = sys.argv[1], Path(sys.argv[2])
    scenarios = {"local": local, "nodes": nodes, "training": training}
    out.write_text(json.dumps(scenarios[name](out.parent)))
