"""What a trainer tells those who play for it elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from art_trainer.config import GRPOConfig
from art_trainer.remote.messages import RunDescription, Sampling
from art_trainer.transformers_policy import TransformersPolicy


def describe_run(
    policy: TransformersPolicy, env: str, env_args: Mapping[str, Any], config: GRPOConfig
) -> RunDescription:
    """What a worker must know to play as the trainer's own process would.

    Args:
        policy: Who plays.
        env: The environment's id.
        env_args: Its arguments.
        config: The trainer's settings, which decide how replies are sampled.
    """
    dtype = next(policy.model.parameters()).dtype
    return RunDescription(
        env=env,
        env_args=dict(env_args),
        sampling=Sampling(
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
            min_p=config.min_p or 0.0,
            repetition_penalty=config.repetition_penalty,
            stop_strings=list(config.stop_strings),
            stop_token_ids=list(policy.sampling.stop_token_ids),
            max_new_tokens=config.max_completion_length,
        ),
        record_states=config.records_states,
        history_window=policy.format.history_window,
        max_context=policy.max_context,
        dtype=str(dtype).removeprefix("torch."),
    )
