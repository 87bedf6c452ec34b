"""A run's model as a Hugging Face folder: the same numbers, and a card with the run's results."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from art_trainer.cli.main import app
from art_trainer.errors import CheckpointError
from art_trainer.tracking.run_dir import list_checkpoints
from art_trainer.training.export import ExportError, cell, export_model, push_model
from tests.art_trainer.tiny_models import CHATML, byte_tokenizer, tiny_model

ENV = "tests.art_trainer.toy_envs:toy/Echo-v0"
TRAIN = ["--env", ENV, "--max-steps", "2", "--groups-per-step", "2", "--num-generations", "2"]
TRAIN += ["--eval-episodes", "6", "--set", "max_completion_length=4", "--threads", "1", "--lora", "4"]
TRAIN += ["--learning-rate", "0.01", "--env-args", "words=2"]
# A random model never answers right; the entropy moves its weights all the same.
TRAIN += ["--set", "drop_zero_variance_groups=false", "--set", "entropy_coef=1"]
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")


def invoke(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trained an adapter on a model that lies beside it, in ``tiny``."""
    folder = tmp_path_factory.mktemp("runs")
    tiny_model().save_pretrained(folder / "tiny")
    byte_tokenizer().save_pretrained(folder / "tiny")
    invoke("train", *TRAIN, "--model", folder / "tiny", "--output-dir", folder / "adapter")
    return folder / "adapter"


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(3, 20)[None]).logits


def test_the_folder_gives_the_trained_models_logits(adapter: Path, trained_run: Path, tmp_path: Path) -> None:
    full = list_checkpoints(trained_run / "checkpoints")[-1] / "model"
    adapted = list_checkpoints(adapter / "checkpoints")[-1] / "model"
    for run, wanted, before in (
        (trained_run, AutoModelForCausalLM.from_pretrained(full), trained_run.parent / "model"),
        (adapter, PeftModel.from_pretrained(tiny_model(), adapted), adapter.parent / "tiny"),
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
    for label in ("before", "after"):
        (row,) = [line for line in card.splitlines() if line.startswith(f"| {label} |")]
        assert row.endswith("| 6 |")
    assert "output\\_dir" not in card
    # Every table has as many cells in each row as its heading has.
    blocks = [block.splitlines() for block in card.split("\n\n")]
    tables = [lines for lines in blocks if len(lines) > 1 and lines[1].startswith("|---")]
    assert len(tables) == 3
    for lines in tables:
        assert {line.replace("\\|", "").count("|") for line in lines} == {lines[0].count("|")}


def test_the_example_of_the_card_runs(
    adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export_model(adapter, tmp_path / "out")
    code = (tmp_path / "out" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(code.replace("max_new_tokens=4", "max_new_tokens=2, pad_token_id=0"), {})
    assert capsys.readouterr().out


def test_only_an_empty_folder_is_written_to(adapter: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    export_model(adapter, tmp_path / "empty")
    before = sorted((tmp_path / "empty").iterdir())
    with pytest.raises(ExportError, match="not empty"):
        export_model(adapter, tmp_path / "empty")
    assert sorted((tmp_path / "empty").iterdir()) == before


def test_what_is_no_run_or_damaged_is_refused(adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="there is no such folder"):
        export_model(tmp_path / "gone", tmp_path / "out")
    with pytest.raises(ExportError, match="holds no checkpoint"):
        export_model(adapter.parent / "tiny", tmp_path / "out")
    shutil.copytree(adapter, tmp_path / "run")
    checkpoint = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    weights = checkpoint / "model" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"safetensors is damaged"):
        export_model(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_adapter_without_its_base_names_where_it_was(adapter: Path, tmp_path: Path) -> None:
    shutil.copytree(adapter, tmp_path / "run")
    checkpoint = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    described = checkpoint / "model" / "adapter_config.json"
    described.write_text(described.read_text().replace(str(adapter.parent / "tiny"), str(tmp_path / "moved")))
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["model/adapter_config.json"]
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ExportError, match=r"is an adapter on .*moved', which cannot be loaded"):
        export_model(tmp_path / "run", tmp_path / "out")


class Hub:
    """Records what it is asked for."""

    calls: list[tuple[str, dict[str, Any]]]

    def __init__(self) -> None:
        Hub.calls = []

    def create_repo(self, name: str, **options: Any) -> str:
        Hub.calls.append((name, options))
        return f"https://hub.example/{name}"

    def upload_folder(self, **options: Any) -> None:
        Hub.calls.append(("upload", options))


def test_pushing_makes_a_repository_and_uploads_the_folder(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(ExportError, match="hf auth login"):
        push_model(tmp_path / "out", "me/guess")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "token")
    output = invoke("export", trained_run, tmp_path / "out", "--push-to-hub", "me/guess")
    assert "On the Hub: https://hub.example/me/guess" in output
    (name, created), (_, uploaded) = Hub.calls
    assert (name, created) == ("me/guess", {"repo_type": "model", "exist_ok": True})
    assert uploaded["repo_id"] == "me/guess"
    assert (Path(uploaded["folder_path"]) / "model.safetensors").exists()


def test_foreign_text_cannot_break_a_table_or_the_page() -> None:
    assert cell("a|b\nc `x` <b> *y* \x1b") == "a\\|b c \\`x\\` \\<b\\> \\*y\\* ␛"
