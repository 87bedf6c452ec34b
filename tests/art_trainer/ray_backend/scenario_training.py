"""A private Ray cluster on this machine: the same training as without it, and the command.

A process of its own, since Ray warns and leaves sockets open where it is imported. Writes JSON into the file
that is its argument.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from pathlib import Path
from typing import Any
from unittest import mock

from art_trainer import cli
from art_trainer.config import GRPOConfig
from art_trainer.episodes import Group
from art_trainer.loading import with_adapter
from art_trainer.ray_backend.backend import RayBackend
from art_trainer.ray_backend.cluster import ActorResources, Cluster
from art_trainer.trainer import GRPOTrainer
from art_trainer.transformers_policy import TransformersPolicy
from tests.art_trainer.guess import guess_policy
from tests.art_trainer.ray_backend.hands import LocalHand
from tests.art_trainer.ray_backend.scenario_tools import (
    tell,
)

TRIED = ("ray_actors=1", "engine=vllm@http://127.0.0.1:1", "ray_actors=0", "backend=rya", "ray_actor_gpus=-1")
ENV = "tests.art_trainer.ray_backend.guess_id:guess/Guess-v0"


def trainings(folder: Path) -> dict[str, Any]:
    cluster = Cluster(None, actors=2, resources=ActorResources())
    try:
        return {"training": training(folder), "command": command(folder)}
    finally:
        cluster.close()


def training(folder: Path) -> dict[str, Any]:
    """The same steps here and there; and, with an adapter, batches played while another is learned from."""
    here, _ = trained(folder / "here", staleness=0, actors=0)
    there, results = trained(folder / "there", staleness=0, actors=1)
    with mock.patch.object(Cluster, "hire", lambda self, recipe: LocalHand(recipe)):
        # An actor in this process: another would only import PyTorch once more.
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
        adapted = with_adapter(policy.model, 4)
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


def command(folder: Path) -> dict[str, Any]:
    """``art-trainer train --set backend=ray``, and settings that do not go with it."""
    small = ["max_steps=1", "scratch={layers: 1, hidden_size: 32}", "eval_episodes=2", "baselines=[]"]
    found = {}
    with mock.patch.object(Cluster, "hire", lambda self, recipe: LocalHand(recipe)):
        for number, setting in enumerate(TRIED):
            flags = [part for pair in ("backend=ray", *small, setting) for part in ("--set", pair)]
            flags += ["--env", ENV, "--model", "scratch", "--output-dir", str(folder / f"run-{number}")]
            shown = io.StringIO()
            with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
                try:
                    cli.main(["train", *flags])
                except SystemExit as ended:
                    found[setting] = [ended.code, shown.getvalue()]
    return found


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


if __name__ == "__main__":
    tell(trainings)
