import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from art_trainer.checkpoint import (
    checkpoint_path,
    list_checkpoints,
    prune_checkpoints,
    read_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)
from art_trainer.config import GRPOConfig
from art_trainer.errors import CheckpointError
from art_trainer.learner import Learner
from tests.art_trainer.made_episodes import made_groups
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_model

peft = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def learner_for(model: torch.nn.Module, **settings: Any) -> Learner:
    return Learner(model, GRPOConfig(learning_rate=1e-3, steps_per_generation=2, **settings))


def save(path: Path, learner: Learner) -> Path:
    return write_checkpoint(
        path,
        model=learner.model,
        tokenizer=byte_tokenizer(),
        optimizer=learner.optimizer,
        reference=learner.reference,
        state={"learner": learner.state()},
    )


def load(path: Path, learner: Learner) -> None:
    state = read_checkpoint(
        path, model=learner.model, optimizer=learner.optimizer, reference=learner.reference
    )
    learner.restore(state["learner"])


def adapted_model() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    return model


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(tmp_path / "step-000000", learner_for(tiny_model()))


@peft
@pytest.mark.parametrize("case", ["plain", "reference", "adapter", "qwen3"])
def test_a_restored_learner_goes_on_to_the_same_numbers(case: str, tmp_path: Path) -> None:
    def fresh(seed: int) -> Learner:
        if case == "adapter":
            return learner_for(adapted_model())
        family = "qwen3" if case == "qwen3" else "qwen2"
        return learner_for(tiny_model(family, seed=seed), beta=0.1 if case == "reference" else 0.0)

    first = fresh(seed=0)
    groups = [made_groups(first.model, groups=4, size=3, seed=n) for n in range(4)]
    for batch in groups[:2]:
        first.update(batch)
    save(tmp_path / "saved", first)
    wanted = [{**first.update(batch), "time/update": 0.0} for batch in groups[2:]]

    second = fresh(seed=1)
    load(tmp_path / "saved", second)
    found = [{**second.update(batch), "time/update": 0.0} for batch in groups[2:]]
    assert found == wanted
    for (name, a), b in zip(first.model.named_parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_the_model_folder_loads_as_any_hugging_face_model(checkpoint: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(checkpoint / "model")
    assert torch.equal(model.lm_head.weight, tiny_model().lm_head.weight)
    assert AutoTokenizer.from_pretrained(checkpoint / "model").chat_template == byte_tokenizer().chat_template


@peft
def test_only_the_adapter_is_saved(tmp_path: Path) -> None:
    path = save(tmp_path / "saved", learner_for(adapted_model()))
    assert (path / "model" / "adapter_model.safetensors").exists()
    assert not (path / "model" / "model.safetensors").exists()


def test_nothing_in_it_is_a_pickle(checkpoint: Path) -> None:
    kinds = {file.suffix for file in checkpoint.rglob("*") if file.is_file()}
    assert kinds <= {".json", ".safetensors", ".jinja"}


@pytest.mark.parametrize("name", ["optimizer.safetensors", "state.json", "model/model.safetensors"])
def test_a_damaged_file_is_named_and_nothing_is_loaded(name: str, checkpoint: Path) -> None:
    file = checkpoint / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    learner = learner_for(tiny_model(seed=5))
    with pytest.raises(CheckpointError, match=f"{name} is damaged"):
        load(checkpoint, learner)
    assert torch.equal(learner.model.lm_head.weight, tiny_model(seed=5).lm_head.weight)


@pytest.mark.parametrize("name", ["optimizer.safetensors", "model/config.json", "manifest.json"])
def test_a_missing_file_is_named(name: str, checkpoint: Path) -> None:
    (checkpoint / name).unlink()
    with pytest.raises(CheckpointError, match=f"not a complete checkpoint: {name} is missing"):
        verify_checkpoint(checkpoint)


def test_a_checkpoint_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere is not a complete checkpoint: no such folder"):
        verify_checkpoint(tmp_path / "nowhere")


def test_a_checkpoint_of_another_size_or_architecture_is_refused(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match=r"shape \(300, 48\), the model's \(300, 32\)"):
        load(checkpoint, learner_for(tiny_model(hidden=32)))
    save(checkpoint, trained := learner_for(tiny_model("qwen3")))
    trained.update(made_groups(trained.model))
    save(checkpoint, trained)
    with pytest.raises(CheckpointError, match="other trained weights"):
        load(checkpoint, learner_for(tiny_model("qwen2")))


def test_a_checkpoint_without_the_reference_a_run_needs_is_refused(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="written without a reference model: set beta"):
        load(checkpoint, learner_for(tiny_model(), beta=0.1))


def test_a_crash_while_writing_leaves_the_old_checkpoint(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = json.loads((checkpoint / "manifest.json").read_text())

    def crash(*call: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("art_trainer.checkpoint.save_file", crash)
    with pytest.raises(CheckpointError, match="step-000000 cannot be written: no space left on device"):
        save(checkpoint, learner_for(tiny_model(seed=3)))
    assert [path.name for path in checkpoint.parent.iterdir()] == [checkpoint.name]
    verify_checkpoint(checkpoint)
    assert json.loads((checkpoint / "manifest.json").read_text()) == before
    monkeypatch.undo()
    save(checkpoint, learner_for(tiny_model(seed=3)))
    assert json.loads((checkpoint / "manifest.json").read_text()) != before


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (5, 100, 20, 1_000_000):
        checkpoint_path(tmp_path, step).mkdir()
    (tmp_path / "mine").mkdir()
    prune_checkpoints(tmp_path, None)
    assert len(list_checkpoints(tmp_path)) == 4
    prune_checkpoints(tmp_path, 2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-000100", "step-1000000"]
    assert (tmp_path / "mine").exists()
