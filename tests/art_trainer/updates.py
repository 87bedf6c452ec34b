"""What an update does to a model, caught on the way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from art_trainer.algorithms.losses import policy_loss, token_weights
from art_trainer.config import GRPOConfig
from art_trainer.training.learner import Learner
from art_trainer.types import Group, TokenHistory


def config(**settings: Any) -> GRPOConfig:
    return GRPOConfig(**{"learning_rate": 1e-3, "lr_scheduler_type": "constant", **settings})


def padded_policy_loss(
    logprobs_RT: torch.Tensor,
    old_logprobs_RT: torch.Tensor,
    advantages: torch.Tensor,
    mask_RT: torch.Tensor,
    *,
    max_length: int = 1,
    reference_logprobs_RT: torch.Tensor | None = None,
    correction_RT: torch.Tensor | None = None,
    **settings: Any,
) -> torch.Tensor:
    """The learner's loss of padded sequences; advantages are one a sequence, [R], or a token, [R, T]."""
    mask = mask_RT.bool()
    config: Any = SimpleNamespace(
        **{
            **{"loss_type": "dapo", "importance_sampling_level": "token", "epsilon": 0.2, "delta": None},
            **{"clip_high": settings.pop("epsilon_high", 0.28), "beta": 0.0, "use_bias_correction_kl": True},
            **settings,
        }
    )
    weights_R = token_weights(mask.sum(1), config.loss_type, max_length=max_length).to(logprobs_RT.dtype)
    sequences_N = mask.nonzero()[:, 0]
    return policy_loss(
        config,
        logprobs_N=logprobs_RT[mask],
        old_logprobs_N=old_logprobs_RT[mask],
        advantages_N=(advantages[:, None] if advantages.ndim == 1 else advantages).expand(mask.shape)[mask],
        weights_N=weights_R[sequences_N],
        sequences_N=sequences_N,
        reference_logprobs_N=(
            reference_logprobs_RT[mask] if config.beta and reference_logprobs_RT is not None else None
        ),
        corrections_N=None if correction_RT is None else correction_RT[mask],
    ).loss


def gradients_of(learner: Learner, groups: Sequence[Group]) -> tuple[list[torch.Tensor], dict[str, float]]:
    """The gradients that an update gives the learner's optimizer, step by step, and the update's metrics."""
    caught: list[torch.Tensor] = []

    def catch(*call: object) -> None:
        caught.append(torch.cat([p.grad.flatten() for p in learner.model.parameters() if p.grad is not None]))

    handle = learner.optimizer.register_step_pre_hook(catch)
    metrics = learner.update(groups)
    handle.remove()
    return caught, metrics


def caught_update(
    model: torch.nn.Module,
    groups: Sequence[Group],
    settings: GRPOConfig,
    prepare: Callable[[Learner], None] = lambda learner: None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """The gradient the learner gives its optimizer in a single step, and the step's metrics."""
    learner = Learner(model, settings)
    prepare(learner)
    (gradient,), metrics = gradients_of(learner, groups)
    return gradient, metrics


def gradient_of_update(model: torch.nn.Module, groups: Sequence[Group], settings: GRPOConfig) -> torch.Tensor:
    """The gradient the learner gives its optimizer in a single step."""
    return caught_update(model, groups, settings)[0]


def with_logprobs(group: Group, change: float) -> Group:
    """The same group as another policy would have sampled it."""

    def changed(history: TokenHistory) -> TokenHistory:
        spans = [replace(s, logprobs=tuple(x + change for x in s.logprobs)) for s in history.spans]
        return TokenHistory(tuple(spans))

    return Group(tuple(replace(e, histories=tuple(map(changed, e.histories))) for e in group.episodes))


def with_rewards(group: Group, rewards: Sequence[float]) -> Group:
    """The same group with other rewards, each at its attempt's last turn."""
    episodes = zip(group.episodes, rewards, strict=True)
    return Group(
        tuple(replace(e, turns=(*e.turns[:-1], replace(e.turns[-1], reward=r))) for e, r in episodes)
    )


@contextmanager
def saved_bytes(model: torch.nn.Module) -> Iterator[dict[int, int]]:
    """What autograd keeps between forward and backward beside the weights: bytes by address."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield saved


def logits_and_gradients(model: torch.nn.Module) -> torch.Tensor:
    """What a model makes of two rows of tokens, and the gradients of that, in one row."""
    model.zero_grad()
    logits = model(input_ids=torch.arange(12).view(2, 6)).logits
    logits.square().mean().backward()
    gradients = (p.grad.flatten() for p in model.parameters() if p.grad is not None)
    return torch.cat([logits.flatten(), *gradients]).detach()


def weights_of(model: torch.nn.Module) -> torch.Tensor:
    """All trained weights of a model in one row."""
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


def untimed(metrics: Mapping[str, float]) -> dict[str, float]:
    """A step's metrics, without how long it took."""
    return {k: v for k, v in metrics.items() if "time/" not in k and "tokens_per_second" not in k}


def logged_metrics(run: Path) -> list[dict[str, float]]:
    """The lines of a run's metrics, without times."""
    return [untimed(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]
