"""The one-page GRPO makes the trainer's updates, and learns."""

import ast
import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from art_trainer.config import GRPOConfig
from art_trainer.training.learner import Learner
from art_trainer.types import Ending, Episode, Group, Span, TokenHistory, Turn
from recipes import grpo_minimal
from recipes.grpo_minimal import Batch, Settings, make_model, make_optimizer, play, update

SETTINGS = Settings(
    groups_per_step=3,
    num_generations=4,
    num_iterations=2,
    learning_rate=3e-3,
    beta=0.05,
    max_grad_norm=0.5,
    # AdamW divides a gradient by its own size: with less, rounding would move weights without gradient.
    adam_epsilon=1e-4,
)


def as_groups(batch: Batch, size: int) -> list[Group]:
    """A batch of the recipe in the trainer's types, one group of attempts after the other."""
    episodes = []
    for row in range(len(batch.ids_RT)):
        ids, logprobs = batch.ids_RT[row].tolist(), batch.logprobs_RT[row].tolist()
        spans, turns = [Span((ids[0],))], []
        for turn, place in enumerate(batch.mask_RT[row].nonzero()[:, 0].tolist()):
            spans += [Span((ids[place],), turn, (logprobs[place],)), Span((ids[place + 1],))]
            turns.append(Turn(str(ids[place]), str(ids[place + 1]), 0.0))
        turns[-1] = Turn(turns[-1].reply, turns[-1].observation, batch.rewards_R[row].item())
        history = TokenHistory(tuple(spans))
        task = f"task-{row // size}"
        episodes.append(Episode("guess", task, 0, "GUESS", tuple(turns), (history,), Ending.TERMINATED))
    return [Group(tuple(episodes[i : i + size])) for i in range(0, len(episodes), size)]


@contextmanager
def recorded_gradients(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[list[torch.Tensor]]:
    """The gradient before each optimizer step."""
    found: list[torch.Tensor] = []

    def record(*call: object) -> None:
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))

    handle = optimizer.register_step_pre_hook(record)
    yield found
    handle.remove()


def test_three_steps_are_those_of_the_trainer() -> None:
    """Loss, gradients and weights agree to 1e-6 in float64."""
    settings = SETTINGS
    own = make_model().double()
    reference, trained = copy.deepcopy(own), copy.deepcopy(own)
    optimizer = make_optimizer(own, settings)
    learner = Learner(
        trained,
        GRPOConfig(
            loss_type="grpo",
            scale_rewards="group",
            drop_zero_variance_groups=False,
            groups_per_step=settings.groups_per_step,
            num_generations=settings.num_generations,
            num_iterations=settings.num_iterations,
            steps_per_generation=1,
            learning_rate=settings.learning_rate,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            adam_beta1=0.9,
            adam_beta2=0.99,
            adam_epsilon=settings.adam_epsilon,
            epsilon=settings.epsilon,
            epsilon_high=settings.epsilon,
            beta=settings.beta,
            use_bias_correction_kl=False,
            max_grad_norm=settings.max_grad_norm,
        ),
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        hidden = torch.randint(grpo_minimal.NUMBERS, (settings.groups_per_step,), generator=generator)
        batch = play(own, hidden.repeat_interleave(settings.num_generations), generator, settings.temperature)
        assert batch.rewards_R.std() > 0
        with recorded_gradients(own, optimizer) as gradients:
            losses = update(own, reference, optimizer, batch, settings)
        with recorded_gradients(trained, learner.optimizer) as wanted:
            metrics = learner.update(as_groups(batch, settings.num_generations))
        assert sum(losses) / len(losses) == pytest.approx(metrics["loss"], abs=1e-6)
        for gradient, other in zip(gradients, wanted, strict=True):
            assert gradient.norm() > 1e-3
            assert torch.allclose(gradient, other, rtol=0, atol=1e-6)
        for (name, weight), other in zip(own.named_parameters(), trained.parameters(), strict=True):
            assert torch.allclose(weight, other, rtol=0, atol=1e-6), name


def test_it_imports_torch_and_transformers_alone_and_fits_on_a_page() -> None:
    source = Path(grpo_minimal.__file__).read_text(encoding="utf-8")
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported == {"__future__", "copy", "dataclasses", "torch", "transformers"}
    assert len(source.splitlines()) <= 300


@pytest.mark.e2e
def test_it_learns() -> None:
    _, rewards = grpo_minimal.train(Settings(max_steps=100), log_every=0)
    first, last = (math.fsum(part) / 10 for part in (rewards[:10], rewards[-10:]))
    assert last > first + 0.2
