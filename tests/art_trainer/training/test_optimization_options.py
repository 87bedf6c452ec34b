"""What saves memory must not change the numbers: recomputed layers, lower precision, 8-bit moments."""

import copy
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from art_trainer.errors import ConfigError, UnsupportedModelError
from art_trainer.inference.sampling import SamplingParams
from art_trainer.models.gradient_checkpointing import enable_gradient_checkpointing
from art_trainer.models.loading import ModelOptions, apply_model_options, load_model
from art_trainer.models.logprobs import Scorer
from art_trainer.models.optim import make_optimizer
from art_trainer.models.packing import pack
from art_trainer.training.checkpoint import read_checkpoint, write_checkpoint
from art_trainer.training.learner import Learner
from art_trainer.training.run_settings import Layer, merge_settings
from art_trainer.training.run_setup import local_policy, model_options
from tests.art_trainer.inference.test_transformers_policy import played
from tests.art_trainer.made_episodes import made_groups
from tests.art_trainer.models.test_logprobs import rows_of
from tests.art_trainer.models.test_prefix_tree import numbers_of
from tests.art_trainer.tiny_models import byte_tokenizer, lora_model, tiny_model
from tests.art_trainer.updates import config, saved_bytes


def kept_bytes(model: torch.nn.Module, share: bool) -> int:
    """What autograd keeps of a batch between forward and backward."""
    batch = next(pack(rows_of(made_groups(model)), 10_000, share=share, device=torch.device("cpu")))
    scorer = Scorer(model)
    with saved_bytes(model) as kept:
        assert scorer.score(batch)[0].requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("family", ["qwen2", "qwen2 lora", "qwen3", "llama", "deepseek-v3"])
def test_recomputed_layers_give_the_same_logprobs_and_gradients_and_keep_less(
    family: str, share: bool
) -> None:
    model = lora_model(scale=0.1) if family == "qwen2 lora" else tiny_model(family)
    rows = rows_of(made_groups(model))
    before = kept_bytes(model, share)
    plain, plain_gradient = numbers_of(model, rows, share=share)
    assert enable_gradient_checkpointing(model) == 1
    found, gradient = numbers_of(model, rows, share=share)
    assert torch.equal(found, plain)
    assert (gradient - plain_gradient).norm() <= 1e-6 * plain_gradient.norm()
    # Of two layers one is recomputed, and the other, which is pruned, is the smaller part.
    assert kept_bytes(model, share) < (0.75 if family == "qwen2" else 1) * before


def test_a_copy_recomputes_its_own_layers() -> None:
    model = tiny_model()
    enable_gradient_checkpointing(model)
    reference = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    ids = torch.arange(9)[None]
    assert torch.equal(reference(input_ids=ids).logits, tiny_model()(input_ids=ids).logits)
    reference(input_ids=ids).logits.sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert reference.model.layers[0].mlp.up_proj.weight.grad.norm() > 0


def test_layers_that_are_not_attention_or_were_replaced_are_refused() -> None:
    replaced, without = tiny_model(), tiny_model()
    replaced.model.layers[0].forward = replaced.model.layers[0].forward
    del without.model.layers[1].self_attn
    for model in (replaced, without):
        with pytest.raises(UnsupportedModelError, match=r"switch it off|replaced"):
            enable_gradient_checkpointing(model)


def test_weights_come_in_the_dtype_that_was_asked_for(model: str) -> None:
    def dtypes(model: torch.nn.Module, adapter: bool = False) -> set[torch.dtype]:
        return {p.dtype for name, p in model.named_parameters() if ("lora_" in name) == adapter}

    def loaded(**options: Any) -> torch.nn.Module:
        return load_model(model, ModelOptions(device="cpu", **options))

    assert dtypes(loaded()) == {torch.float32}
    # The optimizer keeps what needs the precision; an adapter of float32 would cast each of its inputs.
    both = loaded(dtype="bfloat16", lora=2)
    assert (dtypes(both), dtypes(both, adapter=True)) == ({torch.bfloat16}, {torch.bfloat16})
    made = apply_model_options(tiny_model(), ModelOptions(device="cpu", dtype="bfloat16"))
    assert dtypes(made) == {torch.bfloat16}


def test_a_bfloat16_model_with_recomputed_layers_plays_and_scores(model: str) -> None:
    policy = local_policy(
        model,
        ModelOptions("bfloat16", 2, gradient_checkpointing=True, device="cpu"),
        sampling=SamplingParams(max_new_tokens=4),
    )
    assert ["forward" in vars(x) for x in policy.model.get_base_model().model.layers] == [True, False]
    episodes = played(policy, 2, 2)
    rows = rows_of([type("Group", (), {"episodes": episodes})])
    found, gradient = numbers_of(policy.model, rows, share=False)
    sampled = torch.cat([torch.from_numpy(row.old_logprobs) for row in rows])
    assert found[:, 0] == pytest.approx(sampled, abs=0.1)
    assert gradient.isfinite().all()
    assert gradient.norm() > 0


def test_the_settings_of_a_run_are_the_models_options() -> None:
    values = {"device": "cpu", "lora": 2, "dtype": "bfloat16", "gradient_checkpointing": True}
    found = model_options(merge_settings([Layer("flag", {"model": "tiny", **values})]).run)
    assert found == ModelOptions(**values)


def test_what_makes_no_sense_or_is_not_there_is_named(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        ModelOptions(dtype="bfloat61")
    with pytest.raises(ConfigError, match="set lora too"):
        ModelOptions(load_in_4bit=True)
    options = ModelOptions(lora=2, load_in_4bit=True, device="cpu")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="load_in_4bit needs the package bitsandbytes"):
        load_model(model, options)
    with pytest.raises(ConfigError, match="optim='adamw_8bit' needs the package bitsandbytes"):
        make_optimizer(tiny_model(), learning_rate=1e-3, optim="adamw_8bit")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    with pytest.raises(ConfigError, match="needs a CUDA GPU"):
        load_model(model, options)


def test_a_reference_in_low_precision_is_nearly_as_good() -> None:
    def kl(dtype: str) -> tuple[float, Learner]:
        learner = Learner(tiny_model(), config(beta=0.1, reference_dtype=dtype))
        groups = made_groups(learner.model)
        learner.update(groups)
        return learner.update(groups)["kl"], learner

    exact, _ = kl("model")
    rounded, half = kl("bfloat16")
    assert rounded == pytest.approx(exact, rel=0.5)
    assert {p.dtype for p in half.reference.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}


class AdamW8bit(torch.optim.Optimizer):
    """Keeps what bitsandbytes keeps: a plain int of steps, and states of other types than the weights'."""

    def __init__(self, groups: Any, lr: float, betas: Any, eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps})

    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                state["state1"] = torch.full(p.shape, state["step"], dtype=torch.uint8)
                p.data.sub_(group["lr"] * state["step"])


def test_8_bit_moments_are_made_stepped_saved_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bitsandbytes", "bitsandbytes.optim"):
        module = module_from_spec(ModuleSpec(name, None))
        monkeypatch.setitem(sys.modules, name, module)
    module.AdamW8bit = AdamW8bit
    settings = config(optim="adamw_8bit", weight_decay=0.1, adam_epsilon=1e-7)
    first, second = Learner(tiny_model(), settings), Learner(tiny_model(seed=1), settings)
    assert [group["weight_decay"] for group in first.optimizer.param_groups] == [0.1, 0.0]
    assert first.optimizer.defaults == {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-7}
    groups = made_groups(tiny_model())
    first.update(groups)
    write_checkpoint(tmp_path / "step-000001", first, byte_tokenizer())
    read_checkpoint(tmp_path / "step-000001", second)
    moments = second.optimizer.state[second.model.lm_head.weight]
    assert type(moments["step"]) is int
    assert moments["state1"].dtype == torch.uint8
    for learner in (first, second):
        learner.update(groups)
    assert torch.equal(first.model.lm_head.weight, second.model.lm_head.weight)
