"""What an update does to a model, caught on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from art_trainer.config import GRPOConfig
from art_trainer.episodes import Group, TokenHistory
from art_trainer.learner import Learner


def config(**settings: Any) -> GRPOConfig:
    return GRPOConfig(**{"learning_rate": 1e-3, "lr_scheduler_type": "constant", **settings})


def caught_update(
    model: torch.nn.Module,
    groups: Sequence[Group],
    settings: GRPOConfig,
    prepare: Callable[[Learner], None] = lambda learner: None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """The gradient the learner gives its optimizer in a single step, and the step's metrics."""
    learner = Learner(model, settings)
    prepare(learner)
    caught: list[torch.Tensor] = []

    def catch(*call: object) -> None:
        caught.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))

    handle = learner.optimizer.register_step_pre_hook(catch)
    metrics = learner.update(groups)
    handle.remove()
    assert len(caught) == 1
    return caught[0], metrics


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


def weights_of(model: torch.nn.Module) -> torch.Tensor:
    """All weights of a model in one row."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])
