"""Runs recorded as the trainer records them, on guess-the-number, small enough for any test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from art_trainer.config import GRPOConfig
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models.weights_io import weights_digest
from art_trainer.tracking.frame_file import append_frame, read_frames
from art_trainer.tracking.run_dir import RunFolder, checkpoint_path, list_checkpoints
from art_trainer.training.trainer import GRPOTrainer
from tests.art_trainer.guess import GuessEnv, guess_policy

SETTINGS: dict[str, Any] = {
    "learning_rate": 2e-3,
    "groups_per_step": 3,
    "num_generations": 4,
    "max_completion_length": 1,
    "drop_zero_variance_groups": False,
    "entropy_coef": 0.01,
}


def policy_of(lora: bool = False, seed: int = 0) -> TransformersPolicy:
    """The policy that runs begin with."""
    policy = guess_policy(seed, hidden=16)
    if lora:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = get_peft_model(
                policy.model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
            )
        return TransformersPolicy(model, policy.tokenizer, sampling=policy.sampling)
    return policy


def builder(lora: bool = False) -> Callable[[Path | None], torch.nn.Module]:
    """What makes the model of such a run, as it began; a checkpoint's weights are loaded into it."""
    return lambda checkpoint: policy_of(lora).model


def record_run(
    folder: Path,
    steps: int = 3,
    *,
    save_at: tuple[int, ...] = (),
    lora: bool = False,
    resume: bool = False,
    limit: int | None = None,
    make_env: Any = GuessEnv,
    **settings: Any,
) -> GRPOTrainer:
    """Train for some steps, or go on from the newest checkpoint; write what the trainer writes."""
    config = GRPOConfig(output_dir=str(folder), **{**SETTINGS, "max_steps": 10, **settings})
    trainer = GRPOTrainer(policy_of(lora), make_env, config)
    if resume:
        trainer.load_checkpoint(list_checkpoints(folder / "checkpoints")[-1])
    log = RunFolder(folder)
    log.begin(config.to_mapping(), trainer.step, weights_digest(trainer.policy.model))
    while trainer.step < steps:
        groups = trainer.collect_episodes()
        replaced = list(trainer._replaced)
        metrics = trainer.update_policy(groups)
        log.write_metrics(metrics)
        log.write_episodes(trainer.step, groups, limit, replaced)
        if trainer.step in save_at:
            log.sync()
            trainer.save_checkpoint(checkpoint_path(log.checkpoints, trainer.step))
    trainer.close()
    return trainer


def rewrite(file: Path, step: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a step's first line and write the file anew, with digests that fit: a careful forgery."""
    frames = [(dict(frame.header), [line.decode() for line in frame.lines()]) for frame in read_frames(file)]
    file.unlink()
    for header, lines in frames:
        if header.get("step") == step:
            data = json.loads(lines[0])
            change(data)
            lines[0] = json.dumps(data)
        append_frame(file, header, lines)
