"""Our losses, advantages and corrections against TRL's own code, on the same tensors and trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from art_trainer.episodes import Group
from art_trainer.estimators import batch_advantages
from art_trainer.importance import sampler_correction
from art_trainer.losses import policy_loss
from tests.art_trainer.made_episodes import made_groups
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_model
from tests.art_trainer.updates import caught_update, config, with_logprobs

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
    """Trajectories as TRL's generation step hands them on."""

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


def _trainer(base: type, settings: Any, model: torch.nn.Module) -> Any:
    """A real trainer of TRL's that is handed trajectories instead of sampling them."""

    class Handed(base):  # type: ignore[misc]
        trajectories: Played

        def _generate(self, prompts: Any) -> Any:
            t = self.trajectories
            texts = [str(number) for number in range(len(prompts))]
            logprobs = t.logprobs if getattr(self, "use_vllm", False) else None
            return t.prompts, t.completions, t.masks, texts, logprobs, {}, None, None

        def _send_telemetry(self) -> None:
            """Tests tell nobody."""

    tokenizer = byte_tokenizer()
    tokenizer.pad_token = "<|endoftext|>"
    trainer = Handed(
        model,
        args=settings,
        reward_funcs=lambda completions, **_: [trainer.trajectories.rewards[int(i)] for i in completions],
        train_dataset=datasets.Dataset.from_list([{"prompt": "task"}]),
        processing_class=tokenizer,
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def _settings(kind: type, folder: Path) -> Any:
    return kind(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        report_to="none",
        per_device_train_batch_size=3 * SIZE,
        num_generations=SIZE,
        gradient_checkpointing=False,
        max_completion_length=MAX_LENGTH,
    )


@pytest.fixture(scope="module")
def made_trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    settings = _settings(trl.GRPOConfig, tmp_path_factory.mktemp("trl"))
    return _trainer(trl.GRPOTrainer, settings, tiny_model())


@pytest.fixture
def trainer(made_trainer: Any) -> Iterator[Any]:
    """The trainer, whose settings a test may change."""
    names = ("loss_type", "importance_sampling_level", "epsilon_low", "epsilon_high", "beta", "scale_rewards")
    names += ("use_vllm", "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max", "ref_model")
    names += ("vllm_importance_sampling_clip_min", "_entropy_bonus_enabled", "entropy_coef")
    before = {name: getattr(made_trainer, name) for name in names}
    yield made_trainer
    for name, value in before.items():
        setattr(made_trainer, name, value)
    made_trainer.args.delta, made_trainer.args.use_bias_correction_kl = None, True
    made_trainer.__dict__.pop("_get_per_token_logps_and_entropies", None)
    made_trainer.model.zero_grad()


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


def trl_loss(
    trainer: Any, data: dict[str, torch.Tensor], new: torch.Tensor, *, corrected: bool
) -> torch.Tensor:
    rows, width = new.shape
    ids = torch.zeros(rows, width, dtype=torch.long)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (new, torch.zeros_like(new), None)
    trainer.use_vllm = corrected
    loss: torch.Tensor = trainer._compute_loss(
        trainer.model,
        {
            "prompt_ids": ids[:, :2],
            "prompt_mask": ids[:, :2],
            "completion_ids": ids,
            "completion_mask": data["completion_mask"],
            "tool_mask": data["tool_mask"],
            "advantages": data["advantages"],
            "old_per_token_logps": data["old"],
            "ref_per_token_logps": data["reference"],
            "importance_sampling_ratio": data["correction"],
            "num_items_in_batch": (data["completion_mask"] * data["tool_mask"]).sum(),
        },
    )
    return loss


@pytest.mark.parametrize("corrected", [False, True], ids=["", "corrected"])
@pytest.mark.parametrize(("beta", "unbiased"), [(0.0, True), (0.3, True), (0.3, False)])
@pytest.mark.parametrize("delta", [None, 1.4])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_losses_and_gradients_are_trls(
    trainer: Any,
    loss_type: Any,
    level: Any,
    delta: float | None,
    beta: float,
    unbiased: bool,
    corrected: bool,
) -> None:
    data = tensors(seed=3)
    if level == "sequence":
        # One correction a sequence. With one a token the loss is TRL's too, but each token's gradient has its
        # own correction here (GSPO-token), where TRL's has their mean.
        data["correction"] = data["correction"][:, :1].expand(data["new"].shape)
    trainer.loss_type, trainer.importance_sampling_level = loss_type, level
    trainer.epsilon_low, trainer.epsilon_high, trainer.beta = 0.1, 1.2 if loss_type == "cispo" else 0.15, beta
    trainer.args.delta, trainer.args.use_bias_correction_kl = delta, unbiased
    theirs, ours = (data["new"].clone().requires_grad_() for _ in range(2))
    wanted = trl_loss(trainer, data, theirs, corrected=corrected)
    found = policy_loss(
        ours,
        data["old"],
        data["advantages"],
        data["completion_mask"] * data["tool_mask"],
        loss_type=loss_type,
        importance_sampling_level=level,
        epsilon=trainer.epsilon_low,
        epsilon_high=trainer.epsilon_high,
        delta=delta,
        beta=beta,
        reference_logprobs_RT=data["reference"],
        use_bias_correction_kl=unbiased,
        correction_RT=data["correction"] if corrected else None,
        max_length=MAX_LENGTH,
    )
    assert found.item() == pytest.approx(wanted.item(), rel=1e-9, abs=1e-12)
    wanted.backward()
    found.backward()
    assert theirs.grad is not None
    assert ours.grad is not None
    assert theirs.grad.abs().max() > 1e-3
    assert torch.allclose(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_advantages_are_trls(trainer: Any, scale: Any) -> None:
    groups = made_groups(trainer.model, groups=3, size=SIZE)
    trainer.scale_rewards = scale
    wanted = scored(trainer, groups)["advantages"]
    found = batch_advantages([[[reward] for reward in g.rewards] for g in groups], scale_rewards=scale)
    flat = [float(values[0]) for group in found for values in group]
    assert flat == pytest.approx(wanted.tolist(), abs=1e-6)


def test_leave_one_out_advantages_are_those_of_trls_rloo_trainer(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = _settings(trl.RLOOConfig, tmp_path_factory.mktemp("rloo"))
    settings.beta = 0.0
    rloo = _trainer(trl.RLOOTrainer, settings, tiny_model())
    groups = made_groups(rloo.model, groups=3, size=SIZE)
    rloo.trajectories = played(groups)
    texts = list(map(str, range(3 * SIZE)))
    rloo._generate = lambda prompts: (rloo.trajectories.prompts, rloo.trajectories.completions, texts)
    wanted = rloo._generate_and_score_completions([{"prompt": "task"}] * (3 * SIZE))["advantages"]
    found = batch_advantages([[[r] for r in g.rewards] for g in groups], estimator="leave_one_out")
    assert [float(v[0]) for group in found for v in group] == pytest.approx(wanted.tolist(), abs=1e-6)


@pytest.mark.parametrize("bounds", [(None, 1.2), (0.8, 1.2), (0.8, None)])
@pytest.mark.parametrize("mode", MODES)
def test_corrections_for_another_sampler_are_trls(
    trainer: Any, mode: Any, bounds: tuple[float | None, float | None]
) -> None:
    groups = made_groups(trainer.model, groups=3, size=SIZE)
    shifted = [with_logprobs(group, gap) for group, gap in zip(groups, (-0.1, 0.03, 0.2), strict=True)]
    trainer.use_vllm, trainer.vllm_importance_sampling_mode = True, mode
    trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max = bounds
    inputs = scored(trainer, shifted)
    mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
    wanted = inputs["importance_sampling_ratio"].expand(mask.shape)[mask]
    found = sampler_correction(
        inputs["old_per_token_logps"][mask],
        inputs["sampling_per_token_logps"][mask],
        mask.nonzero()[:, 0],
        mode=mode,
        clip_min=bounds[0],
        clip_max=bounds[1],
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
    trainer: Any, loss_type: Any, level: Any
) -> None:
    high = 1.1 if loss_type == "cispo" else 0.28
    settings = config(
        loss_type=loss_type,
        importance_sampling_level=level,
        epsilon_high=high,
        entropy_coef=0.01,
        scale_rewards="group",
        max_completion_length=MAX_LENGTH,
        max_grad_norm=0.0,
    )
    groups = made_groups(trainer.model, groups=3, size=SIZE)
    stale = [with_logprobs(group, gap) for group, gap in zip(groups, (-0.3, 0.05, 0.3), strict=True)]
    trainer.loss_type, trainer.importance_sampling_level = loss_type, level
    trainer.epsilon_low, trainer.epsilon_high, trainer.scale_rewards = 0.2, high, "group"
    trainer._entropy_bonus_enabled, trainer.entropy_coef = True, 0.01
    inputs = scored(trainer, stale)
    columns = [torch.tensor(values) for values in trainer.trajectories.logprobs]
    inputs["old_per_token_logps"] = torch.nn.utils.rnn.pad_sequence(columns, batch_first=True)
    wanted, loss = trl_update(trainer, inputs)
    found, metrics = caught_update(tiny_model(), stale, settings)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6)
    assert (found - wanted).norm() <= 1e-5 * wanted.norm()


def shrink(model: torch.nn.Module | None) -> None:
    """Make another policy of a model."""
    assert model is not None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)


def test_so_it_is_with_a_reference_and_a_sampler_of_its_own(trainer: Any) -> None:
    gaps = (-0.1, 0.05, 0.1)
    groups = [with_logprobs(g, gap) for g, gap in zip(made_groups(tiny_model()), gaps, strict=True)]
    reference = tiny_model()
    shrink(reference)
    grpo_trainer.add_fused_lm_head(reference)
    trainer.beta, trainer.ref_model, trainer.use_vllm, trainer.scale_rewards = 0.2, reference, True, "none"
    trainer.vllm_importance_sampling_mode, trainer.vllm_importance_sampling_clip_max = "token_truncate", 1.05
    wanted, loss = trl_update(trainer, scored(trainer, groups))
    settings = config(
        beta=0.2,
        epsilon_high=0.2,
        importance_sampling_correction=True,
        importance_sampling_mode="token_truncate",
        importance_sampling_clip_max=1.05,
        max_grad_norm=0.0,
    )
    found, metrics = caught_update(tiny_model(), groups, settings, lambda learner: shrink(learner.reference))
    assert metrics["kl"] > 0.01
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6)
    assert metrics["sampling/importance_sampling_ratio/max"] == pytest.approx(1.05, abs=1e-6)
    assert (found - wanted).norm() <= 1e-5 * wanted.norm()
