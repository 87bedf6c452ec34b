"""Weights to a file and back, bit for bit; and every way in which a file can be wrong."""

from __future__ import annotations

import errno

import pytest
import torch
from safetensors.torch import load_file, save_file

from art_trainer.distributed import weights as module
from art_trainer.distributed.weights import (
    WeightError,
    WeightStore,
    adapter_shape,
    apply_weights,
    file_entry,
    match_dtypes,
)
from art_trainer.distributed.worker.model import load_tokenizer, make_model
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models.loading import add_lora_adapter
from tests.art_trainer.distributed.fake_server import described
from tests.art_trainer.guess import guess_policy
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning"),
]
CPU = torch.device("cpu")


def policy_of(model):
    return TransformersPolicy(model, byte_tokenizer())


def trained(model, seed=1):
    """The model with other weights in all that training changes."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=rng).to(parameter.dtype))
    return model


def logits(model):
    with torch.inference_mode():
        return model.eval()(input_ids=torch.arange(12)[None]).logits


@pytest.mark.parametrize(
    ("family", "lora", "dtype"),
    [
        ("qwen2", False, "float32"),
        ("llama", True, "bfloat16"),
        ("deepseek-v3", False, "bfloat16"),
        ("deepseek-v3", True, "float32"),
    ],
)
def test_a_model_made_from_the_store_computes_the_same_bits(tmp_path, family, lora, dtype):
    model = tiny_model(family).to(getattr(torch, dtype))
    policy = policy_of(trained(add_lora_adapter(model, 2) if lora else model))
    store = WeightStore(tmp_path, policy)
    store.publish(0)
    run = described(policy).model_copy(update={"dtype": dtype})
    other = make_model(tmp_path / "model", run, CPU)
    if not lora:
        match_dtypes(other, store.path(0))
    for version in (0, 1):
        trained(policy.model, seed=version)
        manifest = store.publish(version)
        assert manifest.kind == ("adapter" if lora else "full")
        apply_weights(other, store.path(version), manifest)
        assert torch.equal(logits(policy.model), logits(other))
    assert load_tokenizer(tmp_path / "model").chat_template == policy.tokenizer.chat_template


@pytest.mark.parametrize("kind", ["rounded buffers", "tied weights"])
def test_models_that_are_stored_in_another_way_compute_the_same_bits(tmp_path, kind):
    """``apply_model_options`` rounds computed buffers of a model that was made, not loaded: its rotation is
    bfloat16 too. Tied weights are stored once."""
    model = tiny_model()
    if kind == "tied weights":
        model.config.tie_word_embeddings = True
        model.lm_head.weight = model.model.embed_tokens.weight
    else:
        model.to(torch.bfloat16).model.rotary_emb.inv_freq.mul_(1.01)
    policy = policy_of(model)
    store = WeightStore(tmp_path, policy)
    manifest = store.publish(0)
    run = described(policy).model_copy(update={"dtype": str(model.dtype).removeprefix("torch.")})
    other = make_model(tmp_path / "model", run, CPU)
    match_dtypes(other, store.path(0))
    apply_weights(other, store.path(0), manifest)
    assert torch.equal(logits(model), logits(other))
    if kind == "tied weights":
        assert "lm_head.weight" not in load_file(store.path(0))
        assert other.lm_head.weight is other.model.embed_tokens.weight


def test_an_adapter_is_all_that_travels_of_a_lora_model(tmp_path):
    policy = policy_of(add_lora_adapter(tiny_model(), 2))
    store = WeightStore(tmp_path, policy)
    manifest = store.publish(0)
    sizes = {entry.name: entry.size for entry in store.model().files}
    assert manifest.file.size < sizes["model.safetensors"] / 5
    assert all("lora_" in name for name in load_file(store.path(0)))
    assert not any("lora_" in name for name in load_file(tmp_path / "model" / "model.safetensors"))
    full = WeightStore(tmp_path / "full", policy_of(tiny_model()))
    assert "model.safetensors" not in {entry.name for entry in full.model().files}


@pytest.fixture
def published(tmp_path):
    policy = guess_policy(hidden=16)
    store = WeightStore(tmp_path, policy)
    manifest = store.publish(4)
    other = make_model(tmp_path / "model", described(policy), CPU)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    return policy, store, manifest, other


def flip(data):
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


def wider(tensors):
    name = "model.embed_tokens.weight"
    return {**tensors, name: torch.cat([tensors[name], tensors[name]])}


def refused(model, file, manifest, words):
    """A file changes nothing in a model, and the error names it."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(WeightError, match=rf"{file.name} .*{words}"):
        apply_weights(model, file, manifest)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip, "sha256"),
        (lambda data: data[:9], "torn"),
        (lambda data: data + b"more", "torn"),
        (None, "read"),
    ],
    ids=["bit flipped", "truncated", "too long", "missing"],
)
def test_a_damaged_file_changes_nothing(published, damage, words):
    _, store, manifest, other = published
    file = store.path(4)
    file.unlink() if damage is None else file.write_bytes(damage(file.read_bytes()))
    refused(other, file, manifest, words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (wider, r"model.embed_tokens.weight is torch.float32 \(46, 16\)"),
        (lambda t: {name: value.double() for name, value in t.items()}, "is torch.float64"),
        (lambda t: dict(list(t.items())[1:]), "it lacks lm_head.weight"),
        (lambda t: {**t, "more": torch.zeros(1)}, "it has more"),
        (None, "is no safetensors file"),
    ],
    ids=["wider", "other type", "one missing", "one more", "a pickle"],
)
def test_another_models_weights_change_nothing(published, tmp_path, change, words):
    _, store, manifest, other = published
    file = tmp_path / "other.safetensors"
    if change is None:
        file.write_bytes(b"\x80\x04pickle" * 100)
    else:
        save_file(change(load_file(store.path(4))), file)
    refused(other, file, manifest.model_copy(update={"file": file_entry(file)}), words)


def test_an_adapter_is_no_full_model(published):
    _, store, manifest, other = published
    adapter = manifest.model_copy(update={"kind": "adapter"})
    refused(other, store.path(4), adapter, "holds an adapter's weights, the model here takes all weights")


def test_the_newest_versions_stay_and_the_others_go(published):
    _, store, _, _ = published
    first = store.path(4)
    store.publish(5)
    store.publish(6)
    assert (store.manifest(4), store.path(4), first.exists()) == (None, None, False)
    assert [store.manifest(version).policy_version for version in (5, 6)] == [5, 6]
    store.publish(2)  # a run that went back
    assert store.manifest(2).policy_version == 2
    assert store.path(5) is None


def test_what_an_earlier_process_left_is_removed(published, tmp_path):
    policy, store, _, _ = published
    left = [store.path(4), tmp_path / ".weights-000005.safetensors.partial"]
    left[1].write_bytes(b"torn")
    again = WeightStore(tmp_path, policy)
    assert not any(file.exists() for file in left)
    assert again.manifest(4) is None


def test_a_full_disk_leaves_the_version_before(published, monkeypatch):
    _, store, manifest, _ = published

    def full(tensors, file):
        file.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(WeightError, match=r"weights-000005.safetensors cannot be written: .*No space left"):
        store.publish(5)
    assert store.manifest(4) == manifest
    assert store.manifest(5) is None
    assert file_entry(store.path(4)) == manifest.file
    assert list(store.path(4).parent.glob(".*")) == []


def test_only_names_of_the_manifest_have_a_path(published):
    _, store, _, _ = published
    names = [entry.name for entry in store.model().files]
    assert all(store.model_path(name).is_file() for name in names)
    for name in ("../journal", "weights-000004.safetensors", "", ".", "config.json/"):
        assert store.model_path(name) is None


def test_the_manifest_says_no_paths_of_the_server(tmp_path):
    policy = guess_policy(hidden=16)
    policy.tokenizer.init_kwargs["special_tokens_map_file"] = str(tmp_path / "map.json")
    store = WeightStore(tmp_path, policy)
    load_tokenizer(tmp_path / "model")
    for entry in store.model().files:
        assert str(tmp_path) not in store.model_path(entry.name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"peft_type": "IA3"}, "of the kind IA3"),
        ({"peft_type": "LORA", "r": 4, "arrow_config": {"a": 1}}, "with arrow_config"),
    ],
)
def test_an_adapter_that_no_worker_makes_is_refused(settings, words):
    with pytest.raises(WeightError, match=words):
        adapter_shape(settings)
