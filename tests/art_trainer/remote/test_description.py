"""What a worker is told makes it sample as the trainer's own process would."""

from __future__ import annotations

import dataclasses

from art_trainer.config import GRPOConfig
from art_trainer.remote.description import describe_run
from art_trainer.remote.messages import RunDescription
from art_trainer.remote.worker_model import sampling_params
from art_trainer.trainer import GRPOTrainer
from tests.art_trainer.guess import guess_policy


def test_a_worker_samples_as_the_trainer_does() -> None:
    policy = guess_policy(0)
    policy.sampling = dataclasses.replace(policy.sampling, stop_token_ids=(3, 5))
    config = GRPOConfig(
        temperature=0.7, top_p=0.9, top_k=7, min_p=0.05, repetition_penalty=1.2, stop_strings=("HIGH",),
        max_completion_length=9,
    )  # fmt: skip
    trainer = GRPOTrainer(policy, "art/2048-v0", config)
    told = describe_run(policy, "art/2048-v0", {"board_size": 3}, config)
    trainer.close()
    assert sampling_params(RunDescription.model_validate_json(told.model_dump_json())) == policy.sampling
    assert policy.sampling.stop_token_ids == (3, 5)
