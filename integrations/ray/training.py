"""Trainings without actors of a Ray cluster and with them: ``python -m … FILE`` writes JSON into the file.

A process of its own, since Ray warns and leaves sockets open where it is imported.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from art_trainer.config import GRPOConfig
from art_trainer.distributed.ray.backend import RayBackend
from art_trainer.distributed.ray.cluster import ActorResources, Cluster
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models.loading import add_lora_adapter
from art_trainer.training.trainer import GRPOTrainer
from art_trainer.types import Episode, Group
from tests.art_trainer.distributed.guess_envs import MODULE
from tests.art_trainer.guess import guess_policy

ENV = f"{MODULE}:guess/Guess-v0"
Trained = tuple[list[list[Group]], dict[str, int]]


def trained(folder: Path, *, staleness: int = 0, actors: int = 1, lora: bool = False) -> Trained:
    """The groups of three steps, and what was counted of their attempts."""
    sizes = {"groups_per_step": 4, "num_generations": 4, "max_completion_length": 2, "max_steps": 3}
    ahead: dict[str, Any] = {"max_staleness": staleness, "importance_sampling_correction": staleness > 0}
    config = GRPOConfig(output_dir=str(folder), learning_rate=1e-2, **sizes, **ahead)
    policy = guess_policy()
    if lora:
        adapted: Any = add_lora_adapter(policy.model, 4)
        policy = TransformersPolicy(adapted, policy.tokenizer, sampling=policy.sampling)
    backend = RayBackend(policy, ENV, {}, config, actors=actors) if actors else None
    trainer, steps = GRPOTrainer(policy, ENV, config, backend=backend), []
    try:
        while trainer.step < config.max_steps:
            steps.append(trainer.collect_episodes())
            trainer.update_policy(steps[-1])
        return steps, {} if backend is None else backend.status().results
    finally:
        trainer.close()


def versions(groups: list[Group]) -> list[int]:
    """Of the weights that sampled."""
    histories = [history for group in groups for one in group.episodes for history in one.histories]
    return sorted({span.policy_version for history in histories for span in history.spans})


def without_logprobs(episode: Episode) -> Any:
    """What must be equal to the bit."""
    spans = [
        (one.token_ids, one.turn, one.policy_version) for each in episode.histories for one in each.spans
    ]
    return spans, replace(episode, histories=())


def compared(wanted: list[Group], got: list[Group]) -> dict[str, Any]:
    """How alike a step's attempts are."""
    here, there = ([one for group in groups for one in group.episodes] for groups in (wanted, got))
    logprobs = ([x for one in each for x in one.histories[0].logprobs] for each in (here, there))
    return {
        "episodes": len(here),
        "same": sum(map(lambda w, g: without_logprobs(w) == without_logprobs(g), here, there)),
        "logprob_difference": max(abs(x - y) for x, y in zip(*logprobs, strict=True)),
        "words": sorted({turn.reply for one in here for turn in one.turns}),
    }


if __name__ == "__main__":
    out = Path(sys.argv[1])
    cluster = Cluster(None, actors=2, resources=ActorResources())
    try:
        here, _ = trained(out.parent / "here", actors=0)
        there, results = trained(out.parent / "there")
        ahead, results_ahead = trained(out.parent / "ahead", staleness=1, lora=True)
    finally:
        cluster.close()
    found = {
        "compared": [compared(*pair) for pair in zip(here, there, strict=True)],
        "there": {"results": results, "versions": [versions(step) for step in there]},
        "ahead": {"results": results_ahead, "versions": [versions(step) for step in ahead]},
    }
    out.write_text(json.dumps(found))
