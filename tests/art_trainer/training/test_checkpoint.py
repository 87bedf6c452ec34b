"""Checkpoints: exact resume, full disks, damaged files, old ones to keep or go back to."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

import art_trainer
from art_trainer.config import GRPOConfig
from art_trainer.errors import CheckpointError, CheckpointWriteError, ConfigError
from art_trainer.tracking.run_dir import checkpoint_path, checkpoint_step, list_checkpoints
from art_trainer.training import checkpoint as checkpoint_module
from art_trainer.training.checkpoint import (
    checkpoint_to_resume,
    discard_checkpoints_after,
    prune_checkpoints,
    read_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)
from art_trainer.training.learner import Learner
from art_trainer.training.run_setup import model_path
from tests.art_trainer.made_episodes import made_groups
from tests.art_trainer.tiny_models import byte_tokenizer, lora_model, tiny_model
from tests.art_trainer.tracking.full_disk import full_disk
from tests.art_trainer.updates import untimed


def learner_for(model: torch.nn.Module, **settings: Any) -> Learner:
    return Learner(model, GRPOConfig(learning_rate=1e-3, steps_per_generation=2, **settings))


def save(path: Path, learner: Learner) -> Path:
    return write_checkpoint(path, learner, byte_tokenizer())


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(tmp_path / "step-000000", learner_for(tiny_model()))


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "reference": {"beta": 0.1},
    "reference of low precision": {"beta": 0.1, "reference_dtype": "bfloat16"},
    "adapter": {},
    "adapter with a name": {},
    "critic": {"advantage_estimator": "gae"},
    "critic beside an adapter": {"advantage_estimator": "gae"},
    "qwen3": {},
}


@pytest.mark.parametrize("case", CASES)
def test_a_restored_learner_goes_on_to_the_same_numbers(case: str, tmp_path: Path) -> None:
    def fresh(seed: int) -> Learner:
        family = "qwen3" if case == "qwen3" else "qwen2"
        model: Any = lora_model(seed) if "adapter" in case else tiny_model(family, seed=seed)
        if "name" in case:
            model.add_adapter("mine", model.peft_config["default"])
            model.set_adapter("mine")
            model.delete_adapter("default")
        return learner_for(model, **CASES[case])

    first = fresh(seed=0)
    groups = [made_groups(first.model, groups=4, size=3, seed=n) for n in range(4)]
    for batch in groups[:2]:
        first.update(batch)
    path = save(tmp_path / "saved", first)
    assert (path / "model" / "model.safetensors").exists() == ("adapter" not in case)
    wanted = [untimed(first.update(batch)) for batch in groups[2:]]

    second = fresh(seed=1)
    read_checkpoint(path, second)
    found = [untimed(second.update(batch)) for batch in groups[2:]]
    assert found == wanted
    for (name, a), b in zip(first.model.named_parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b) or not a.requires_grad, name


@pytest.mark.parametrize("name", ["optimizer.safetensors", "state.json", "model/model.safetensors"])
def test_a_damaged_file_is_named_and_nothing_is_loaded(name: str, checkpoint: Path) -> None:
    damage(checkpoint / name)
    learner = learner_for(tiny_model(seed=5))
    with pytest.raises(CheckpointError, match=f"{name} is damaged"):
        read_checkpoint(checkpoint, learner)
    assert torch.equal(learner.model.lm_head.weight, tiny_model(seed=5).lm_head.weight)
    (checkpoint / name).unlink()
    with pytest.raises(CheckpointError, match=f"not a complete checkpoint: {name} is missing"):
        verify_checkpoint(checkpoint)
    for odd in ("[]", "{}"):
        (checkpoint / "manifest.json").write_text(odd)
        with pytest.raises(CheckpointError, match=r"manifest\.json is damaged: it does not list"):
            verify_checkpoint(checkpoint)
    (checkpoint / "manifest.json").unlink()
    for path in (checkpoint, checkpoint / "nowhere"):
        with pytest.raises(CheckpointError, match=f"{path.name} is not a complete checkpoint"):
            verify_checkpoint(path)


def test_a_checkpoint_in_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_module, "FORMAT", 1)
        path = save(tmp_path / "step-000000", learner_for(tiny_model()))
    with pytest.raises(CheckpointError, match=r"start a new run: --model .*step-000000/model"):
        read_checkpoint(path, learner_for(tiny_model()))


def test_a_checkpoint_of_another_model_is_refused(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match=r"shape \(300, 48\), the model's \(300, 32\)"):
        read_checkpoint(checkpoint, learner_for(tiny_model(hidden=32)))
    trained = learner_for(tiny_model("qwen3"))
    trained.update(made_groups(trained.model))
    save(checkpoint, trained)
    with pytest.raises(CheckpointError, match="other trained weights"):
        read_checkpoint(checkpoint, learner_for(tiny_model()))


@pytest.mark.parametrize("saved_with", [True, False])
@pytest.mark.parametrize(("setting", "value"), [("beta", 0.1), ("advantage_estimator", "gae")])
def test_a_checkpoint_of_a_run_with_other_parts_is_refused(
    setting: str, value: Any, saved_with: bool, tmp_path: Path
) -> None:
    with_part = learner_for(tiny_model(), **{setting: value})
    without = learner_for(tiny_model(seed=1))
    saved, other = (with_part, without) if saved_with else (without, with_part)
    before = other.model.lm_head.weight.clone()
    with pytest.raises(CheckpointError, match=f"set {setting} as it was in that run"):
        read_checkpoint(save(tmp_path / "saved", saved), other)
    assert torch.equal(other.model.lm_head.weight, before)


@pytest.mark.parametrize(
    ("room", "size", "name"),
    [
        pytest.param(100_000, 128, "step-000002", id="the weights"),
        pytest.param(100_000, 128, "step-000001", id="the weights, in place of the checkpoint"),
        pytest.param(7000, 4, "step-000002", id="the tokenizer"),
        pytest.param(400, 4, "step-000002", id="the first small file"),
    ],
)
def test_a_write_that_fails_leaves_the_previous_checkpoint_and_no_debris(
    room: int, size: int, name: str, tmp_path: Path
) -> None:
    before = save(tmp_path / "step-000001", learner_for(tiny_model(seed=1)))
    learner = learner_for(tiny_model(vocab_size=size, hidden=size, seed=2))
    words = rf"{name} cannot be written: .*the newest whole one is {before} \(step 1\)$"
    with pytest.raises(CheckpointWriteError, match=words), full_disk(room):
        save(tmp_path / name, learner)
    assert list(tmp_path.iterdir()) == [before]
    learner = learner_for(tiny_model(seed=3))
    read_checkpoint(before, learner)
    assert torch.equal(learner.model.lm_head.weight, tiny_model(seed=1).lm_head.weight)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of three steps; that of the last is damaged."""
    for step in (5, 10, 20):
        save(checkpoint_path(tmp_path, step), learner_for(tiny_model(seed=step)))
    damage(tmp_path / "step-000020" / "model" / "model.safetensors")
    return tmp_path


def test_the_newest_whole_checkpoint_is_offered(folder: Path) -> None:
    for name, offered in (("step-000010/state.json", "000010"), ("step-000005/manifest.json", "000005")):
        with pytest.raises(CheckpointError, match=rf"the newest whole one is .*step-{offered} \(step \d+\)$"):
            verify_checkpoint(folder / "step-000020")
        (folder / name).unlink()
    with pytest.raises(CheckpointError, match=r"not the manifest's$"):
        verify_checkpoint(folder / "step-000020")


def test_a_damaged_model_is_not_evaluated_or_trained_on(folder: Path) -> None:
    whole, damaged = folder / "step-000010", folder / "step-000020"
    (whole / "optimizer.safetensors").unlink()  # nobody who plays needs it
    assert model_path(str(whole)) == str(whole / "model")
    with pytest.raises(CheckpointError, match=r"model.safetensors is damaged: .* whole one is .*000005"):
        model_path(str(damaged))
    (damaged / "manifest.json").unlink()
    assert model_path(str(damaged)) == str(damaged / "model")  # a folder without a manifest to compare with
    assert model_path("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    with pytest.raises(ConfigError, match="there is no such folder"):
        model_path("runs/gone")  # never asked of the Hub


def test_a_run_goes_back_to_an_older_checkpoint_only_if_asked(folder: Path) -> None:
    assert checkpoint_to_resume(folder) == folder / "step-000020"
    assert checkpoint_to_resume(folder, 10) == folder / "step-000010"
    with pytest.raises(CheckpointError, match="no checkpoint of step 7: there are those of 5, 10, 20"):
        checkpoint_to_resume(folder, 7)
    assert checkpoint_to_resume(folder / "none") is None
    discard_checkpoints_after(folder, 10)
    assert sorted(path.name for path in folder.iterdir()) == ["step-000005", "step-000010"]


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [(1, None, [4]), (1, 2, [2, 4]), (2, 4, [3, 4]), (2, 1, [1, 3, 4]), (None, 1, [1, 2, 3, 4])],
)
def test_the_last_and_the_best_are_kept(
    keep: int | None, best: int | None, left: list[int], tmp_path: Path
) -> None:
    for step in (1, 2, 3, 4):
        checkpoint_path(tmp_path, step).mkdir()
    prune_checkpoints(tmp_path, keep, best)
    assert [checkpoint_step(path) for path in list_checkpoints(tmp_path)] == left


@pytest.mark.parametrize("adapter", [False, True])
def test_a_pickle_that_was_slipped_in_is_never_opened(adapter: bool, tmp_path: Path) -> None:
    learner = learner_for(lora_model() if adapter else tiny_model())
    path = save(tmp_path / "step-000001", learner)
    for name in ("pytorch_model.bin", "adapter_model.bin", "optimizer.pt"):
        (path / "model" / name).write_bytes(b"cos\nsystem\n(S'touch opened'\ntR.")
    read_checkpoint(path, learner)
    weights = "adapter_model.safetensors" if adapter else "model.safetensors"
    (path / "model" / weights).unlink()
    with pytest.raises(CheckpointError, match=f"{weights} is missing"):
        read_checkpoint(path, learner)


LOADERS = {
    ("torch", "load"), ("pickle", "load"), ("pickle", "loads"), ("pickle", "Unpickler"), ("dill", "load"),
    ("dill", "loads"), ("joblib", "load"), ("marshal", "loads"), ("marshal", "load"), ("shelve", "open"),
}  # fmt: skip
IN_MEMORY = {"rollout/envs.py"}
"""Takes apart the snapshot that an environment of this very process gave it; nothing from a file."""


def test_nothing_in_the_package_unpickles_a_file() -> None:
    root = Path(art_trainer.__file__).parent
    found = set()
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if (node.value.id, node.attr) in LOADERS:
                    found.add(str(file.relative_to(root)))
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module, alias.name) for alias in node.names}
                assert not names & LOADERS, file
            elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
                found.add(str(file.relative_to(root)))
    assert found <= IN_MEMORY
