"""Our losses, advantages and corrections against TRL's own code, on the same tensors and trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from art_trainer.algorithms.advantages import estimate
from art_trainer.algorithms.losses import sampler_correction
from art_trainer.types import Group
from tests.art_trainer.made_episodes import made_groups
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_model
from tests.art_trainer.updates import caught_update, config, padded_policy_loss, with_logprobs

trl = pytest.importorskip("trl", reason="TRL is not installed: nothing to compare with")
datasets = pytest.importorskip("datasets")
grpo_trainer = pytest.importorskip("trl.trainer.grpo_trainer")

# TRL 1.16 uses names that Transformers 5.23 has new ones for.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning"),
]

LOSS_TYPES: list[Any] = ["grpo", "dr_grpo", "dapo", "bnpo", "cispo"]
LEVELS: list[Any] = ["token", "sequence"]
MODES: list[Any] = ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
SIZE = 4
MAX_LENGTH = 32


@dataclass
class Played:
    """Trajectories as TRL's generation step gives them."""

    prompts: list[list[int]]
    completions: list[list[int]]
    masks: list[list[int]]
    logprobs: list[list[float]]
    rewards: list[float]


def played(groups: Sequence[Group]) -> Played:
    result = Played([], [], [], [], [])
    for episode in (episode for group in groups for episode in group.episodes):
        history = episode.histories[0]
        start, reported = history.prompt_length, iter(history.logprobs)
        result.prompts.append(list(history.token_ids[:start]))
        result.completions.append(list(history.token_ids[start:]))
        result.masks.append([int(sampled) for sampled in history.action_mask[start:]])
        result.logprobs.append([next(reported) if sampled else 0.0 for sampled in result.masks[-1]])
        result.rewards.append(episode.reward)
    return result


def _trainer(kind: type, settings: type, folder: Path) -> Any:
    """A real trainer of TRL's that gets trajectories instead of sampling them."""

    class Handed(kind):  # type: ignore[misc]
        trajectories: Played

        def _generate(self, prompts: Any) -> Any:
            t = self.trajectories
            texts = [str(number) for number in range(len(prompts))]
            logprobs = t.logprobs if getattr(self, "use_vllm", False) else None
            return t.prompts, t.completions, t.masks, texts, logprobs, {}, None, None

        def _send_telemetry(self) -> None:
            """No network in tests."""

    tokenizer = byte_tokenizer()
    tokenizer.pad_token = "<|endoftext|>"
    arguments = settings(
        **{"output_dir": str(folder), "use_cpu": True, "bf16": False, "report_to": "none", "beta": 0.0},
        **{"per_device_train_batch_size": 3 * SIZE, "num_generations": SIZE},
        **{"gradient_checkpointing": False, "max_completion_length": MAX_LENGTH},
    )
    trainer = Handed(
        tiny_model(),
        args=arguments,
        reward_funcs=lambda completions, **_: [trainer.trajectories.rewards[int(i)] for i in completions],
        train_dataset=datasets.Dataset.from_list([{"prompt": "task"}]),
        processing_class=tokenizer,
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


@pytest.fixture(scope="module")
def made_trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _trainer(trl.GRPOTrainer, trl.GRPOConfig, tmp_path_factory.mktemp("trl"))


@pytest.fixture
def set_up(made_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the trainer with these attributes, for one test."""

    def set_attributes(**attributes: Any) -> Any:
        for name, value in {"beta": 0.0, "use_vllm": False, **attributes}.items():
            owner = made_trainer.args if name in ("delta", "use_bias_correction_kl") else made_trainer
            monkeypatch.setattr(owner, name, value, raising=False)
        made_trainer.model.zero_grad()
        return made_trainer

    return set_attributes


def scored(trainer: Any, groups: Sequence[Group]) -> dict[str, torch.Tensor]:
    """What TRL makes of trajectories: padded tensors, advantages, and whatever its settings ask for."""
    trainer.trajectories = played(groups)
    rows = [{"prompt": "task"} for _ in trainer.trajectories.rewards]
    result: dict[str, torch.Tensor] = trainer._generate_and_score_completions(rows)
    return result


def tensors(seed: int) -> dict[str, torch.Tensor]:
    """Ragged trajectories in double precision; observations lie between the sampled tokens."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows, width = 6, 9
    lengths = torch.randint(3, width + 1, (rows, 1), generator=generator)
    completion = (torch.arange(width) < lengths).long()
    sampled = (torch.rand(rows, width, generator=generator) < 0.7).long()
    sampled[:, 0] = 1
    new = normal(rows, width) * 0.3 - 2
    return {
        "new": new,
        "old": new + normal(rows, width) * 0.3,
        "reference": new + normal(rows, width) * 0.3,
        "advantages": normal(rows),
        "correction": normal(rows, width).exp(),
        "completion_mask": completion,
        "tool_mask": sampled,
    }


def trl_loss(trainer: Any, data: dict[str, torch.Tensor]) -> torch.Tensor:
    ids = torch.zeros(data["new"].shape, dtype=torch.long)
    loss: torch.Tensor = trainer._compute_loss(
        trainer.model,
        {
            **{"prompt_ids": ids[:, :2], "prompt_mask": ids[:, :2], "completion_ids": ids},
            **{name: data[name] for name in ("completion_mask", "tool_mask", "advantages")},
            **{"old_per_token_logps": data["old"], "ref_per_token_logps": data["reference"]},
            "importance_sampling_ratio": data["correction"],
            "num_items_in_batch": (data["completion_mask"] * data["tool_mask"]).sum(),
        },
    )
    return loss


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"delta": 1.4},
        {"beta": 0.3},
        {"beta": 0.3, "use_bias_correction_kl": False},
        {"corrected": True},
        {"delta": 1.4, "beta": 0.3, "corrected": True},
    ],
)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_losses_and_gradients_are_trls(
    set_up: Any, loss_type: Any, level: Any, options: dict[str, Any]
) -> None:
    data = tensors(seed=3)
    if level == "sequence":
        # One correction a sequence. With one a token the loss is TRL's too, but each token's gradient has its
        # own correction here (GSPO-token), where TRL's has their mean.
        data["correction"] = data["correction"][:, :1].expand(data["new"].shape)
    corrected = options.get("corrected", False)
    settings = {"loss_type": loss_type, "importance_sampling_level": level, "beta": 0.0, "delta": None}
    settings |= {"use_bias_correction_kl": True, "epsilon_high": 1.2 if loss_type == "cispo" else 0.15}
    settings |= {name: value for name, value in options.items() if name != "corrected"}
    theirs, ours = (data["new"].clone().requires_grad_() for _ in range(2))
    trainer = set_up(
        **settings,
        epsilon_low=0.1,
        use_vllm=corrected,
        _get_per_token_logps_and_entropies=lambda *_, **__: (theirs, torch.zeros_like(theirs), None),
    )
    wanted = trl_loss(trainer, data)
    found = padded_policy_loss(
        ours,
        data["old"],
        data["advantages"],
        data["completion_mask"] * data["tool_mask"],
        reference_logprobs_RT=data["reference"],
        correction_RT=data["correction"] if corrected else None,
        max_length=MAX_LENGTH,
        epsilon=0.1,
        **settings,
    )
    assert found.item() == pytest.approx(wanted.item(), rel=1e-9, abs=1e-12)
    wanted.backward()
    found.backward()
    assert theirs.grad.abs().max() > 1e-3
    assert torch.allclose(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)


def first_turns(groups: Sequence[Group], **settings: Any) -> list[float]:
    """The advantage of each attempt."""
    return [float(values[0]) for group in estimate(groups, config(**settings)) for values in group]


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_advantages_are_trls(set_up: Any, scale: Any) -> None:
    trainer = set_up(scale_rewards=scale)
    groups = made_groups(trainer.model, groups=3, size=SIZE)
    wanted = scored(trainer, groups)["advantages"]
    assert first_turns(groups, scale_rewards=scale) == pytest.approx(wanted.tolist(), abs=1e-6)


def test_leave_one_out_advantages_are_those_of_trls_rloo_trainer(tmp_path: Path) -> None:
    rloo = _trainer(trl.RLOOTrainer, trl.RLOOConfig, tmp_path)
    groups = made_groups(rloo.model, groups=3, size=SIZE)
    rloo.trajectories = played(groups)
    texts = list(map(str, range(3 * SIZE)))
    rloo._generate = lambda prompts: (rloo.trajectories.prompts, rloo.trajectories.completions, texts)
    wanted = rloo._generate_and_score_completions([{"prompt": "task"}] * (3 * SIZE))["advantages"]
    found = first_turns(groups, advantage_estimator="leave_one_out")
    assert found == pytest.approx(wanted.tolist(), abs=1e-6)


@pytest.mark.parametrize("bounds", [(None, 1.2), (0.8, 1.2), (0.8, None)])
@pytest.mark.parametrize("mode", MODES)
def test_corrections_for_another_sampler_are_trls(
    set_up: Any, mode: Any, bounds: tuple[float | None, float | None]
) -> None:
    settings = dict(zip(("mode", "clip_min", "clip_max"), (mode, *bounds), strict=True))
    trainer = set_up(use_vllm=True, **{f"vllm_importance_sampling_{k}": v for k, v in settings.items()})
    groups = made_groups(trainer.model, groups=3, size=SIZE)
    shifted = [with_logprobs(group, gap) for group, gap in zip(groups, (-0.1, 0.03, 0.2), strict=True)]
    inputs = scored(trainer, shifted)
    mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
    wanted = inputs["importance_sampling_ratio"].expand(mask.shape)[mask]
    found = sampler_correction(
        inputs["old_per_token_logps"][mask],
        inputs["sampling_per_token_logps"][mask],
        mask.nonzero()[:, 0],
        **settings,
    )
    assert len(set(found.tolist())) > 1
    assert found.tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


def trl_update(trainer: Any, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, float]:
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters()]), loss.item()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_learners_update_is_trls_on_the_same_trajectories(
    set_up: Any, loss_type: Any, level: Any
) -> None:
    shared = {"loss_type": loss_type, "importance_sampling_level": level, "scale_rewards": "group"}
    shared |= {"entropy_coef": 0.01, "epsilon_high": 1.1 if loss_type == "cispo" else 0.28}
    settings = config(max_completion_length=MAX_LENGTH, max_grad_norm=0.0, **shared)
    trainer = set_up(epsilon_low=0.2, _entropy_bonus_enabled=True, **shared)
    groups = made_groups(trainer.model, groups=3, size=SIZE)
    stale = [with_logprobs(group, gap) for group, gap in zip(groups, (-0.3, 0.05, 0.3), strict=True)]
    inputs = scored(trainer, stale)
    columns = [torch.tensor(values) for values in trainer.trajectories.logprobs]
    inputs["old_per_token_logps"] = torch.nn.utils.rnn.pad_sequence(columns, batch_first=True)
    wanted, loss = trl_update(trainer, inputs)
    found, metrics = caught_update(tiny_model(), stale, settings)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6)
    assert (found - wanted).norm() <= 1e-5 * wanted.norm()


def shrink(model: torch.nn.Module) -> None:
    """Make another policy of a model."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)


def test_the_update_is_trls_with_a_reference_and_another_sampler(set_up: Any) -> None:
    gaps = (-0.1, 0.05, 0.1)
    groups = [with_logprobs(g, gap) for g, gap in zip(made_groups(tiny_model()), gaps, strict=True)]
    reference = tiny_model()
    shrink(reference)
    grpo_trainer.add_fused_lm_head(reference)
    bounds = {"importance_sampling_mode": "token_truncate", "importance_sampling_clip_max": 1.05}
    theirs = {f"vllm_{name}": value for name, value in bounds.items()}
    trainer = set_up(beta=0.2, ref_model=reference, use_vllm=True, scale_rewards="none", **theirs)
    wanted, loss = trl_update(trainer, scored(trainer, groups))
    settings = config(
        beta=0.2, epsilon_high=0.2, importance_sampling_correction=True, max_grad_norm=0.0, **bounds
    )
    found, metrics = caught_update(tiny_model(), groups, settings, lambda learner: shrink(learner.reference))
    assert metrics["kl"] > 0.01
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6)
    assert metrics["sampling/importance_sampling_ratio/max"] == pytest.approx(1.05, abs=1e-6)
    assert (found - wanted).norm() <= 1e-5 * wanted.norm()
