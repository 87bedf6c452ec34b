"""A run's model as a Hugging Face folder: the same numbers, and a card with the run's results."""

import errno
import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from art_trainer.cli.main import app
from art_trainer.errors import CheckpointError
from art_trainer.tracking.run_dir import list_checkpoints
from art_trainer.training.export import ExportError, cell, export_model
from tests.art_trainer.tiny_models import CHATML, tiny_model

ENV = "tests.art_trainer.toy_envs:toy/Echo-v0"
TRAIN = ["--env", ENV, "--max-steps", "2", "--groups-per-step", "2", "--num-generations", "2"]
TRAIN += ["--eval-episodes", "6", "--set", "max_completion_length=4", "--threads", "1", "--lora", "4"]
TRAIN += ["--learning-rate", "0.01", "--env-args", "words=2"]
# A random model never answers right; the entropy moves its weights all the same.
TRAIN += ["--set", "drop_zero_variance_groups=false", "--set", "entropy_coef=1"]


def invoke(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def adapter(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trained an adapter."""
    folder = tmp_path_factory.mktemp("runs") / "adapter"
    invoke("train", *TRAIN, "--model", model, "--output-dir", folder)
    return folder


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(3, 20)[None]).logits


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_the_folder_gives_the_trained_models_logits(
    adapter: Path, model: str, trained_run: Path, tmp_path: Path
) -> None:
    full = list_checkpoints(trained_run / "checkpoints")[-1] / "model"
    adapted = list_checkpoints(adapter / "checkpoints")[-1] / "model"
    for run, wanted, before in (
        (trained_run, AutoModelForCausalLM.from_pretrained(full), trained_run.parent / "model"),
        (adapter, PeftModel.from_pretrained(tiny_model(), adapted), model),
    ):
        target = tmp_path / run.name
        assert f"Model: {target}" in invoke("export", run, target)
        found = AutoModelForCausalLM.from_pretrained(target)
        assert not hasattr(found, "peft_config")
        assert (logits(found) - logits(wanted)).abs().max() < 1e-5
        assert (logits(found) - logits(AutoModelForCausalLM.from_pretrained(before))).abs().max() > 1e-4
        names = {path.name for path in target.iterdir()}
        assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= names
        assert not any(name.startswith("adapter") for name in names)
    assert AutoTokenizer.from_pretrained(tmp_path / "adapter").chat_template == CHATML
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "run"]


def test_the_card_has_environment_settings_curve_and_evaluations(adapter: Path, tmp_path: Path) -> None:
    export_model(adapter, tmp_path / "out", name="me/echo")
    card = (tmp_path / "out" / "README.md").read_text()
    head, body = card.removeprefix("---\n").split("---\n", 1)
    assert "library_name: transformers" in head
    assert body.lstrip().startswith("# echo\n")
    for text in (
        'the arguments {"words": 2}, seed 42.',
        "| learning\\_rate | 0.01 |",
        "| baseline scripted | 100% (61 to 100) |",
        "| step | reward | success | entropy |",
        'AutoModelForCausalLM.from_pretrained("me/echo")',
        f"art-trainer eval --env {ENV} --policy me/echo",
    ):
        assert text in card
    rows = [line for line in card.splitlines() if line.startswith(("| before |", "| after |"))]
    assert [row.endswith("| 6 |") for row in rows] == [True, True]
    assert "output\\_dir" not in card
    # Every table has as many cells in each row as its heading has.
    for table in card.split("\n\n"):
        rows = [line.replace("\\|", "") for line in table.splitlines() if line.startswith("|")]
        assert len({row.count("|") for row in rows}) <= 1


def test_the_example_of_the_card_runs(
    adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()  # an empty folder may be there already
    export_model(adapter, tmp_path / "out")
    code = (tmp_path / "out" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(code.replace("max_new_tokens=4", "max_new_tokens=2, pad_token_id=0"), {})
    assert capsys.readouterr().out


def test_what_cannot_be_exported_is_named_and_nothing_is_written(
    adapter: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(adapter, tmp_path / "run")
    saved = list_checkpoints(tmp_path / "run" / "checkpoints")[-1] / "model"

    def refused(source: Path, error: type[Exception], message: str, target: str = "out") -> None:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(error, match=message):
            export_model(source, tmp_path / target)
        assert sorted(tmp_path.rglob("*")) == before

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        refused(adapter, OSError, "No space left")
    refused(tmp_path / "gone", ExportError, "there is no such folder")
    refused(Path(model), ExportError, "holds no checkpoint")
    refused(adapter, ExportError, "not empty", target="run")
    described, manifest = saved / "adapter_config.json", saved.parent / "manifest.json"
    described.write_text(described.read_text().replace(model, str(tmp_path / "moved")))
    listed = json.loads(manifest.read_text())
    del listed["model/adapter_config.json"]
    manifest.write_text(json.dumps(listed))
    refused(tmp_path / "run", ExportError, r"is an adapter on .*moved', which cannot be loaded")
    weights = saved / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    refused(tmp_path / "run", CheckpointError, r"safetensors is damaged")


def test_foreign_text_cannot_break_a_table_or_the_page() -> None:
    assert cell("a|b\nc `x` <b> *y* \x1b") == "a\\|b c \\`x\\` \\<b\\> \\*y\\* ␛"
