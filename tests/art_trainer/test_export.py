"""A run's model as a Hugging Face folder: the same numbers, and a card that tells where they came from."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from art_trainer.checkpoint import list_checkpoints
from art_trainer.cli import app, main
from art_trainer.errors import CheckpointError
from art_trainer.export import ExportError, cell, curve_rows, export_model, push_model
from tests.art_trainer.tiny_models import CHATML, byte_tokenizer, tiny_model

ENV = "tests.art_trainer.toy_envs:toy/Echo-v0"
TRAIN = ["--env", ENV, "--max-steps", "2", "--groups-per-step", "2", "--num-generations", "2"]
TRAIN += ["--eval-episodes", "6", "--set", "max_completion_length=4", "--threads", "1"]
TRAIN += ["--learning-rate", "0.01", "--env-args", "words=2"]
# A random model never answers right; the entropy moves its weights all the same.
TRAIN += ["--set", "drop_zero_variance_groups=false", "--set", "entropy_coef=1"]
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")


def invoke(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(map(str, arguments)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and two runs from it: all weights, and an adapter with weights that move."""
    folder = tmp_path_factory.mktemp("runs")
    tiny_model("qwen2").save_pretrained(folder / "tiny")
    byte_tokenizer().save_pretrained(folder / "tiny")
    model = ["--model", folder / "tiny"]
    invoke("train", *TRAIN, *model, "--output-dir", folder / "full", "--set", "save_steps=1")
    invoke("train", *TRAIN, *model, "--output-dir", folder / "adapter", "--lora", "4")
    return folder


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(3, 40)[None]).logits


@pytest.mark.parametrize("run", ["full", "adapter"])
def test_the_folder_gives_the_trained_models_logits(run: str, runs: Path, tmp_path: Path) -> None:
    output = invoke("export", runs / run, tmp_path / "out")
    assert f"Model: {tmp_path / 'out'}" in output
    checkpoint = list_checkpoints(runs / run / "checkpoints")[-1] / "model"
    if run == "full":
        wanted = AutoModelForCausalLM.from_pretrained(checkpoint)
    else:
        wanted = PeftModel.from_pretrained(tiny_model("qwen2"), checkpoint)
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert not hasattr(found, "peft_config")
    assert (logits(found) - logits(wanted)).abs().max() < 1e-5
    assert (logits(found) - logits(tiny_model("qwen2"))).abs().max() > 1e-4
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == CHATML
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not any(name.startswith("adapter") for name in names)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_older_checkpoint_can_be_exported_by_its_folder(runs: Path, tmp_path: Path) -> None:
    first = list_checkpoints(runs / "full" / "checkpoints")[0]
    assert first.name == "step-000001"
    export_model(first, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "those after step 1" in card
    assert "\n| 1 |" in card
    assert "\n| 2 |" not in card
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(logits(found), logits(AutoModelForCausalLM.from_pretrained(first / "model")))


def test_the_card_tells_environment_settings_curve_and_evaluations(runs: Path, tmp_path: Path) -> None:
    export_model(runs / "adapter", tmp_path / "out", name="me/echo")
    card = (tmp_path / "out" / "README.md").read_text()
    head, body = card.removeprefix("---\n").split("---\n", 1)
    assert "library_name: transformers" in head
    assert body.lstrip().startswith("# echo\n")
    for words in (
        "tests.art\\_trainer.toy\\_envs:toy/Echo-v0",
        'the arguments {"words": 2}, seed 42.',
        "| learning\\_rate | 0.01 |",
        "| lora | 4 |",
        "| policy | success (95% interval) | mean reward (95% interval) | episodes |",
        "| baseline scripted | 100% (61 to 100) |",
        "## Training",
        "| step | reward | success | entropy |",
        'AutoModelForCausalLM.from_pretrained("me/echo")',
        f"art-trainer eval --env {ENV} --policy me/echo",
        "Success went from",
    ):
        assert words in card
    for label in ("before", "after"):
        (row,) = [line for line in card.splitlines() if line.startswith(f"| {label} |")]
        assert row.endswith("| 6 |")
    assert "output_dir" not in card
    assert "output\\_dir" not in card
    # Every table has as many cells in each row as its heading has.
    blocks = [block.splitlines() for block in card.split("\n\n")]
    tables = [lines for lines in blocks if len(lines) > 1 and lines[1].startswith("|---")]
    assert len(tables) == 3
    for lines in tables:
        assert {line.replace("\\|", "").count("|") for line in lines} == {lines[0].count("|")}


def test_the_example_of_the_card_runs(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    export_model(runs / "full", tmp_path / "out")
    code = (tmp_path / "out" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(code.replace("max_new_tokens=4", "max_new_tokens=2, pad_token_id=0"), {})
    assert capsys.readouterr().out


def test_a_folder_with_something_in_it_is_left_alone(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    with pytest.raises(ExportError, match="is there already and not empty: give another folder"):
        export_model(runs / "full", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    export_model(runs / "full", tmp_path / "empty")
    assert (tmp_path / "empty" / "config.json").exists()


def test_what_is_no_run_or_damaged_is_said(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"no run or checkpoint at .*gone: there is no such folder"):
        export_model(tmp_path / "gone", tmp_path / "out")
    with pytest.raises(ExportError, match="holds no checkpoint: give a run's folder"):
        export_model(runs / "tiny", tmp_path / "out")
    shutil.copytree(runs / "full", tmp_path / "run")
    weights = list_checkpoints(tmp_path / "run" / "checkpoints")[-1] / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        export_model(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_adapter_whose_base_is_gone_says_where_it_was(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "adapter", tmp_path / "run")
    checkpoint = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    described = checkpoint / "model" / "adapter_config.json"
    text = described.read_text().replace(str(runs / "tiny"), str(tmp_path / "moved"))
    described.write_text(text)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["model/adapter_config.json"]
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ExportError, match=r"is an adapter on .*moved', which cannot be loaded"):
        export_model(tmp_path / "run", tmp_path / "out")


def test_a_checkpoint_without_its_run_has_a_card_of_what_is_known(runs: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(
        list_checkpoints(runs / "full" / "checkpoints")[-1], tmp_path / "a" / "b" / "step-000002"
    )
    export_model(alone, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Nothing was evaluated yet." in card
    assert "| policy |" not in card
    assert "those after step 2" in card


class Hub:
    """Remembers what it was asked for."""

    calls: list[tuple[str, dict[str, Any]]]

    def __init__(self) -> None:
        Hub.calls = []

    def create_repo(self, name: str, **options: Any) -> str:
        Hub.calls.append((name, options))
        return f"https://hub.example/{name}"

    def upload_folder(self, **options: Any) -> None:
        Hub.calls.append(("upload", options))


def test_pushing_makes_a_repository_and_uploads_the_folder(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "token")
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    output = invoke("export", runs / "full", tmp_path / "out", "--push-to-hub", "me/echo")
    assert "On the hub: https://hub.example/me/echo" in output
    (name, created), (_, uploaded) = Hub.calls
    assert (name, created) == ("me/echo", {"repo_type": "model", "exist_ok": True})
    assert uploaded["repo_id"] == "me/echo"
    assert (Path(uploaded["folder_path"]) / "model.safetensors").exists()


def test_who_is_not_logged_in_is_told_how(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(SystemExit) as exit_:
        main(["export", str(runs / "full"), str(tmp_path / "out"), "--push-to-hub", "me/echo"])
    assert exit_.value.code == 2
    said = capsys.readouterr().err
    assert "nobody is logged in to the Hugging Face hub; run `hf auth login`" in said
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_what_the_hub_refuses_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Hub):
        def create_repo(self, name: str, **options: Any) -> str:
            raise OSError("403: not yours\nand more")

    monkeypatch.setattr("huggingface_hub.get_token", lambda: "token")
    monkeypatch.setattr("huggingface_hub.HfApi", Refusing)
    with pytest.raises(ExportError, match=r"cannot push to you/echo: 403: not yours \(the model lies in"):
        push_model(tmp_path, "you/echo")


def test_the_curve_has_at_most_ten_steps_with_the_first_and_the_last() -> None:
    records = [{"step": float(n), "reward": n / 7, "unknown": 1.0} for n in range(1, 101)]
    records[50]["eval_reward"] = 0.5
    names, rows = curve_rows(records, 90)
    assert names == ("step", "reward", "eval_reward")
    assert len(rows) == 10
    assert (rows[0][0], rows[-1][0]) == ("1", "90")
    assert rows[0][2] == "–"
    assert curve_rows([], 5) == ((), [])


def test_foreign_text_cannot_break_a_table_or_the_page() -> None:
    assert cell("a|b\nc `x` <b> *y* \x1b") == "a\\|b c \\`x\\` \\<b\\> \\*y\\* ␛"
