"""The tutorial's file and commands work in an empty folder, and the model learns what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from art_trainer.tracking.run_dir import AFTER, RunFolder
from tests.test_documentation import ROOT, SHELLS, blocks_of, split_commands

PAGE = ROOT / "docs" / "tutorial.md"
NOTEBOOK = ROOT / "docs" / "notebooks" / "first_steps.ipynb"
BLOCKS = blocks_of(PAGE)
SOURCE = next(block.code for block in BLOCKS if block.language == "python")
SHOWN = [block.code for block in BLOCKS if block.language == "text"]
PLAYED = next(text for text in SHOWN if "axe" in text)
OURS = {"art-gym": "art_gym.cli", "art-trainer": "art_trainer.cli.main"}
COMMANDS = [words for block in BLOCKS if block.language in SHELLS for words in split_commands(block.code)]
HERE = [words for words in COMMANDS if words[0] in OURS and not any("Qwen" in word for word in words)]
"""Those that need no network: all but the installation and the pretrained model."""


def run(words: list[str], folder: Path, typed: str = "", status: int = 0) -> str:
    """What a command of ours prints in a folder."""
    name, *rest = words
    code = f"import sys; from {OURS[name]} import main; sys.argv[0] = {name!r}; main()"
    settings = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "COLUMNS": "110"}
    done = subprocess.run(
        [sys.executable, "-c", code, *rest], cwd=folder, env={**os.environ, **settings}, input=typed,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1000, check=False,
    )  # fmt: skip
    assert done.returncode == status, f"{' '.join(words)}:\n{done.stdout}"
    return done.stdout


@pytest.mark.e2e
def test_from_an_empty_folder_to_a_trained_agent(tmp_path: Path) -> None:
    (tmp_path / "workshop.py").write_text(SOURCE, encoding="utf-8")
    printed = {}
    for words in HERE:
        # Other tests use the other cores.
        more = ["--threads", "1"] if words[1] == "train" else []
        typed = "\n".join(re.findall("^› (.*)$", PLAYED, re.MULTILINE)) + "\n"
        printed[" ".join(words)] = run([*words, *more], tmp_path, typed)
    assert len(printed) == len(HERE) == 10

    assert printed["art-gym play workshop.py"].strip() == PLAYED.strip()
    for command, first in (("check workshop.py", "ok "), ("info workshop.py --play 200", "Scripted")):
        shown = next(text for text in SHOWN if text.startswith(first))
        assert shown.strip().split("\n")[-1] in printed[f"art-gym {command}"]
    run_folder = RunFolder(tmp_path / "runs" / "shelves")
    after, random = run_folder.evaluation(AFTER), run_folder.baselines()["random"]
    assert after is not None
    assert after.success is not None
    assert random.success is not None
    assert after.success.low > random.success.high
    assert (tmp_path / "model" / "model.safetensors").exists()


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("if item not in ITEMS", "if False", "raised KeyError: ''"),
        (
            "    @tool(examples",
            "    def begin(self, task):\n        self.find = lambda item: 1\n        return task.prompt\n\n"
            "    @tool(examples",
            "Can't pickle local object 'WorkshopEnv.begin.<locals>.<lambda>'",
        ),
    ],
)
def test_mistakes_look_as_the_page_says(right: str, wrong: str, message: str, tmp_path: Path) -> None:
    assert right in SOURCE
    (tmp_path / "workshop.py").write_text(SOURCE.replace(right, wrong), encoding="utf-8")
    assert message in "".join(SHOWN)
    assert message in " ".join(run(["art-gym", "check", "workshop.py"], tmp_path, status=1).split())


def test_the_notebook_shows_the_tutorials_environment_and_its_own_results() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert f"%%writefile workshop.py\n{SOURCE}".rstrip() in [cell.source for cell in cells]
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert not any(output.output_type == "error" for output in outputs)
    assert outputs[-1].text.endswith("Right.\n")


@pytest.mark.e2e
def test_the_notebook_runs_in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(output.get("text", "") for output in notebook.cells[-2].outputs)
    assert "answer(" in printed
