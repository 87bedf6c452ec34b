"""What saves memory must not change the numbers: recomputed layers, lower precision, 8-bit moments."""

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from art_trainer.checkpoint import read_checkpoint, write_checkpoint
from art_trainer.commands.models import local_policy
from art_trainer.commands.preparing import prepare_policy
from art_trainer.commands.settings import Layer, merge_settings
from art_trainer.errors import ConfigError, UnsupportedModelError
from art_trainer.learner import Learner
from art_trainer.loading import ModelOptions, equip, load_model
from art_trainer.optimization import make_optimizer
from art_trainer.packing import pack
from art_trainer.recomputation import recompute_layers
from art_trainer.sampler import SamplingParams
from art_trainer.scoring import Scorer
from tests.art_trainer.made_episodes import made_groups
from tests.art_trainer.test_policies import make_policy, played
from tests.art_trainer.test_scoring import rows_of, score_rows
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_model
from tests.art_trainer.updates import config

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")


def adapted(model: torch.nn.Module) -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return get_peft_model(
            model, LoraConfig(r=2, target_modules=["q_proj", "o_proj"], init_lora_weights=False)
        )


def kept_bytes(model: torch.nn.Module, share: bool) -> int:
    """What autograd keeps of a batch between forward and backward."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    batch = next(pack(rows_of(made_groups(model)), 10_000, share=share, device=torch.device("cpu")))
    scorer = Scorer(model)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = scorer.score(batch)
    assert result[0].requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "deepseek-v3"])
def test_recomputed_layers_give_the_same_logprobs_and_gradients(family: str, share: bool, lora: bool) -> None:
    model = tiny_model(family)
    model = adapted(model) if lora and family != "deepseek-v3" else model
    rows = rows_of(made_groups(model))
    plain, plain_gradient = score_rows(model, rows, share=share)
    assert recompute_layers(model) == 1
    found, gradient = score_rows(model, rows, share=share)
    for row in rows:
        assert torch.equal(found[id(row)], plain[id(row)])
    assert (gradient - plain_gradient).norm() <= 1e-6 * plain_gradient.norm()


@pytest.mark.parametrize("share", [False, True])
def test_recomputed_layers_keep_less(share: bool) -> None:
    model = tiny_model()
    before = kept_bytes(model, share)
    recompute_layers(model)
    after = kept_bytes(model, share)
    # Of two layers one is recomputed, and the other, which is pruned, is the smaller part.
    assert after < 0.75 * before


def test_sampling_is_untouched_and_asking_twice_changes_nothing() -> None:
    policy, other = make_policy(), make_policy()
    recompute_layers(other.model)
    recompute_layers(other.model)
    assert played(policy, 2, 2) == played(other, 2, 2)


def test_a_copy_recomputes_its_own_layers() -> None:
    model = tiny_model()
    recompute_layers(model)
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
    model = tiny_model()
    model.model.layers[0].forward = model.model.layers[0].forward
    with pytest.raises(UnsupportedModelError, match="whose forward a library has replaced"):
        recompute_layers(model)
    model = tiny_model()
    del model.model.layers[1].self_attn
    with pytest.raises(UnsupportedModelError, match=r"layers are attention .* switch it off"):
        recompute_layers(model)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "bfloat61"}, r"dtype is 'bfloat61': set one of auto, bfloat16, float32 \(did you mean"),
        ({"load_in_4bit": True}, "4-bit weights cannot be trained: set lora too"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ModelOptions(**options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model().save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return str(path)


def test_weights_come_in_the_dtype_that_was_asked_for(folder: str) -> None:
    def kinds(**options: Any) -> dict[str, set[torch.dtype]]:
        model = load_model(folder, ModelOptions(device="cpu", **options))
        named = list(model.named_parameters())
        return {
            "adapter": {p.dtype for name, p in named if "lora_" in name},
            "own": {p.dtype for name, p in named if "lora_" not in name},
        }

    assert kinds()["own"] == {torch.float32}
    assert kinds(dtype="bfloat16") == {"own": {torch.bfloat16}, "adapter": set()}
    # A sum of small steps needs the precision; the frozen weights do not.
    assert kinds(dtype="bfloat16", lora=2) == {"own": {torch.bfloat16}, "adapter": {torch.float32}}
    made = equip(tiny_model(), ModelOptions(device="cpu", dtype="bfloat16"))
    assert next(made.parameters()).dtype == torch.bfloat16
    assert next(equip(made, ModelOptions(device="cpu")).parameters()).dtype == torch.bfloat16


def test_a_bfloat16_model_with_recomputed_layers_plays_and_scores(folder: str) -> None:
    policy = local_policy(
        folder,
        sampling=SamplingParams(max_new_tokens=4),
        device="cpu",
        lora=2,
        dtype="bfloat16",
        gradient_checkpointing=True,
    )
    episodes = played(policy, 2, 2)
    rows = rows_of([type("Group", (), {"episodes": episodes})])
    found, gradient = score_rows(policy.model, rows, share=False)
    sampled = torch.cat([torch.from_numpy(row.old_logprobs) for row in rows])
    assert torch.cat([found[id(row)] for row in rows]) == pytest.approx(sampled, abs=0.1)
    assert gradient.isfinite().all()
    assert gradient.norm() > 0


def test_4_bit_weights_need_a_package_and_a_gpu(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ModelOptions(lora=2, load_in_4bit=True, device="cpu")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="load_in_4bit needs the package bitsandbytes: pip install"):
        load_model(folder, options)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    with pytest.raises(ConfigError, match="needs a CUDA GPU, but the model's device is cpu"):
        load_model(folder, options)


def test_8_bit_moments_need_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="optim='adamw_8bit' needs the package bitsandbytes"):
        make_optimizer(tiny_model(), learning_rate=1e-3, optim="adamw_8bit")


def test_the_settings_of_a_run_reach_its_model(folder: str) -> None:
    values = {
        "model": folder,
        "device": "cpu",
        "lora": 2,
        "dtype": "bfloat16",
        "gradient_checkpointing": True,
    }
    settings = merge_settings([Layer("flag", values)])
    model = prepare_policy(settings, list, checkpoint=None).model
    own = {p.dtype for name, p in model.named_parameters() if "lora_" not in name}
    assert own == {torch.bfloat16}
    layers = model.get_base_model().model.layers
    assert ["forward" in vars(layer) for layer in layers] == [True, False]
    with pytest.raises(ConfigError, match="gradient_checkpointing is 1; set a value of type bool"):
        merge_settings([Layer("flag", {"gradient_checkpointing": 1})])
    with pytest.raises(ConfigError, match="dtype is 'half'"):
        prepare_policy(merge_settings([Layer("flag", {"dtype": "half"})]), list, checkpoint=None)


def test_a_model_from_nothing_has_no_weights_to_freeze() -> None:
    settings = merge_settings([Layer("flag", {"model": "scratch", "lora": 2})])
    with pytest.raises(ConfigError, match="a scratch model's weights are random and not worth freezing"):
        prepare_policy(settings, list, checkpoint=None)


def test_a_reference_in_low_precision_is_half_as_large_and_nearly_as_good(tmp_path: Path) -> None:
    def kl(dtype: str) -> tuple[float, Learner]:
        learner = Learner(tiny_model(), config(beta=0.1, reference_dtype=dtype))
        groups = made_groups(learner.model)
        learner.update(groups)
        return learner.update(groups)["kl"], learner

    exact, learner = kl("model")
    rounded, half = kl("bfloat16")
    assert rounded == pytest.approx(exact, rel=0.5)
    assert {p.dtype for p in half.reference.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}
    path = tmp_path / "step-000001"
    write_checkpoint(
        path, model=half.model, tokenizer=byte_tokenizer(), optimizer=half.optimizer,
        reference=half.reference, state={},
    )  # fmt: skip
    other = kl("bfloat16")[1]
    with torch.no_grad():
        other.reference.lm_head.weight.zero_()
    read_checkpoint(path, model=other.model, optimizer=other.optimizer, reference=other.reference)
    assert torch.equal(other.reference.lm_head.weight, half.reference.lm_head.weight)
    assert learner.reference.lm_head.weight.dtype == torch.float32


def test_the_learner_uses_the_optimizer_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="optim='adamw_8bit' needs the package"):
        Learner(tiny_model(), config(optim="adamw_8bit"))


STAND_IN = '''
import torch

class AdamW8bit(torch.optim.Optimizer):
    """Keeps what bitsandbytes keeps: a plain int of steps, and states of other types than the weights'."""

    def __init__(self, groups, lr, betas, eps):
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps})

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                state["state1"] = torch.full(p.shape, state["step"], dtype=torch.uint8)
                p.data.sub_(group["lr"] * state["step"])
'''


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "bitsandbytes").mkdir()
    (tmp_path / "bitsandbytes" / "__init__.py").touch()
    (tmp_path / "bitsandbytes" / "optim.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("bitsandbytes", "bitsandbytes.optim"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("stand_in")
def test_8_bit_moments_are_made_stepped_saved_and_loaded(tmp_path: Path) -> None:
    def made(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = tiny_model(seed=seed)
        return model, make_optimizer(
            model, learning_rate=1e-3, weight_decay=0.1, epsilon=1e-7, optim="adamw_8bit"
        )

    model, optimizer = made(0)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert optimizer.defaults == {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-7}
    optimizer.step()
    write_checkpoint(
        tmp_path / "step-000001", model=model, tokenizer=byte_tokenizer(), optimizer=optimizer, state={}
    )
    optimizer.step()
    other, resumed = made(1)
    read_checkpoint(tmp_path / "step-000001", model=other, optimizer=resumed)
    first = resumed.state[other.lm_head.weight]
    assert type(first["step"]) is int
    assert first["state1"].dtype == torch.uint8
    resumed.step()
    assert torch.equal(model.lm_head.weight, other.lm_head.weight)
