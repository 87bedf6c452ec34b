"""What goes wrong around checkpoints: full disks, torn and damaged files, old ones to keep or go back to."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import art_trainer
from art_trainer.checkpoint import (
    checkpoint_path,
    checkpoint_step,
    checkpoint_to_resume,
    discard_checkpoints_after,
    list_checkpoints,
    prune_checkpoints,
    verify_checkpoint,
)
from art_trainer.commands.models import model_path
from art_trainer.errors import CheckpointError, ConfigError
from tests.art_trainer.test_checkpoint import adapted_model, learner_for, load, save
from tests.art_trainer.tiny_models import tiny_model

FULL_DISK = """
import json, resource, sys
from pathlib import Path
from art_trainer.checkpoint import verify_checkpoint
from art_trainer.errors import CheckpointError
from tests.art_trainer.test_checkpoint import learner_for, save
from tests.art_trainer.tiny_models import tiny_model

_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
for case, (limit, hidden, name) in enumerate(json.loads(sys.argv[2])):
    folder = Path(sys.argv[1]) / str(case)
    save(folder / "step-000001", learner_for(tiny_model(seed=1)))
    learner = learner_for(tiny_model(vocab_size=hidden, hidden=hidden, seed=2))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        save(folder / name, learner)
        words = "it was written"
    except CheckpointError as error:
        words = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    verify_checkpoint(folder / "step-000001")
    print(json.dumps([words, sorted(path.name for path in folder.iterdir())]))
"""
"""No file may grow above so many bytes: as on a full disk, the write fails where the room ends."""


def test_a_write_that_fails_leaves_the_previous_checkpoint_and_no_debris(tmp_path: Path) -> None:
    # Too large is a file of weights (also in place of the checkpoint), the tokenizer, the first small file.
    cases = [
        (100_000, 128, "step-000002"), (100_000, 128, "step-000001"), (7000, 4, "step-000002"),
        (400, 4, "step-000002"),
    ]  # fmt: skip
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path), json.dumps(cases)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=True)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(told) == len(cases)
    for case, ((_, _, name), (words, left)) in enumerate(zip(cases, told, strict=True)):
        before = tmp_path / str(case) / "step-000001"
        assert f"{name} cannot be written:" in words
        assert words.endswith(f"the newest whole one is {before} (step 1)")
        assert left == ["step-000001"]
        # It is the weights of before.
        learner = learner_for(tiny_model(seed=3))
        load(before, learner)
        assert torch.equal(learner.model.lm_head.weight, tiny_model(seed=1).lm_head.weight)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of three steps; that of the last is damaged."""
    for step in (5, 10, 20):
        save(checkpoint_path(tmp_path, step), learner_for(tiny_model(seed=step)))
    file = tmp_path / "step-000020" / "model" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    return tmp_path


def test_a_damaged_file_is_named_and_the_newest_whole_checkpoint_offered(folder: Path) -> None:
    words = (
        r"step-000020/model/model.safetensors is damaged: its size or sha256 is not the manifest's; "
        r"the newest whole one is .*step-000010 \(step 10\)$"
    )
    with pytest.raises(CheckpointError, match=words):
        load(folder / "step-000020", learner_for(tiny_model()))
    (folder / "step-000010" / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"the newest whole one is .*step-000005 \(step 5\)$"):
        verify_checkpoint(folder / "step-000020")
    (folder / "step-000005" / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"not the manifest's$"):
        verify_checkpoint(folder / "step-000020")


def test_a_damaged_model_is_not_evaluated_or_trained_on(folder: Path) -> None:
    whole, damaged = folder / "step-000010", folder / "step-000020"
    assert model_path(str(whole)) == str(whole / "model")
    (whole / "optimizer.safetensors").unlink()  # nobody who plays needs it
    assert model_path(str(whole)) == str(whole / "model")
    with pytest.raises(CheckpointError, match=r"model.safetensors is damaged: .* whole one is .*000005"):
        model_path(str(damaged))
    (damaged / "manifest.json").unlink()
    assert model_path(str(damaged)) == str(damaged / "model")  # a folder that nobody vouches for


def test_a_path_below_runs_is_never_asked_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in ("runs/email", "my/own/model"):
        with pytest.raises(ConfigError, match="there is no such folder"):
            model_path(words)
    assert model_path("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"


def test_a_run_goes_back_to_an_older_checkpoint_only_where_it_is_told_to(folder: Path) -> None:
    assert checkpoint_to_resume(folder) == folder / "step-000020"
    assert checkpoint_to_resume(folder, 10) == folder / "step-000010"
    with pytest.raises(CheckpointError, match="no checkpoint of step 7: there are those of 5, 10, 20"):
        checkpoint_to_resume(folder, 7)
    assert checkpoint_to_resume(folder / "none") is None
    with pytest.raises(CheckpointError, match="no checkpoint of step 7: there is none at all"):
        checkpoint_to_resume(folder / "none", 7)


def test_what_comes_after_the_one_gone_back_to_is_deleted(folder: Path) -> None:
    discard_checkpoints_after(folder, 10)
    assert [path.name for path in folder.iterdir() if path.name > "step-000005"] == ["step-000010"]
    assert checkpoint_to_resume(folder) == folder / "step-000010"


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [
        (1, None, [4]), (1, 2, [2, 4]), (2, 4, [3, 4]), (2, 1, [1, 3, 4]), (1, 9, [4]),
        (None, 1, [1, 2, 3, 4]), (9, 1, [1, 2, 3, 4]),
    ],
)  # fmt: skip
def test_the_last_and_the_best_are_kept(
    keep: int | None, best: int | None, left: list[int], tmp_path: Path
) -> None:
    for step in (1, 2, 3, 4):
        checkpoint_path(tmp_path, step).mkdir()
    prune_checkpoints(tmp_path, keep, best)
    assert [checkpoint_step(path) for path in list_checkpoints(tmp_path)] == left


def test_a_name_says_its_step(tmp_path: Path) -> None:
    assert checkpoint_step(checkpoint_path(tmp_path, 1_234_567)) == 1_234_567
    assert checkpoint_step(tmp_path / ".step-000003.retired") == 3
    with pytest.raises(ValueError, match="mine is not the name of a checkpoint, as in step-000100"):
        checkpoint_step(tmp_path / "mine")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("adapter", [False, True])
def test_a_pickle_that_was_slipped_in_is_never_opened(adapter: bool, tmp_path: Path) -> None:
    learner = learner_for(adapted_model() if adapter else tiny_model())
    path = save(tmp_path / "step-000001", learner)
    for name in ("pytorch_model.bin", "adapter_model.bin", "optimizer.pt"):
        (path / "model" / name).write_bytes(b"cos\nsystem\n(S'touch opened'\ntR.")
    load(path, learner_for(adapted_model() if adapter else tiny_model(seed=1)))
    weights = "adapter_model.safetensors" if adapter else "model.safetensors"
    (path / "model" / weights).unlink()
    with pytest.raises(CheckpointError, match=f"{weights} is missing"):
        load(path, learner)


LOADERS = {
    ("torch", "load"), ("pickle", "load"), ("pickle", "loads"), ("pickle", "Unpickler"), ("dill", "load"),
    ("dill", "loads"), ("joblib", "load"), ("marshal", "loads"), ("marshal", "load"), ("shelve", "open"),
}  # fmt: skip
IN_MEMORY = {"states.py"}
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
