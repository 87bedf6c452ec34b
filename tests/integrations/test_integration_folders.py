"""Each folder of integrations/ pins its packages and names tests that exist."""

import re
from pathlib import Path

import pytest

from integrations.run import HERE, choose, read_library, try_library


def test_every_folder_can_be_run():
    folders = sorted(path.parent.name for path in HERE.glob("*/requirements.txt"))
    assert [library.folder for library in choose([])] == folders
    with pytest.raises(ValueError, match="did you mean `sb3`"):
        choose(["sb4"])


def test_the_newest_versions_are_asked_for_without_pins(tmp_path, monkeypatch):
    """But for the packages whose comment says why they stay."""
    assert [one.folder for one in choose([]) if one.pinned] == ["oldest", "trl_oldest", "vllm_cpu"]
    asked = []

    def run(command, env, seconds):
        if "pip" in command:
            asked.append(("--upgrade" in command, Path(command[-1]).read_text()))
        return 1, ""

    monkeypatch.setattr("integrations.run.run_command", run)
    monkeypatch.setattr("integrations.run.make_environment", lambda folder: Path("python"))
    monkeypatch.setattr("integrations.run._packages", lambda folder: folder)
    (library,) = choose(["gymnasium"])
    for newest in (False, True):
        try_library(library, tmp_path, 1.0, newest=newest, verbose=False)
    pins = asked[0][1]
    assert "==" in pins
    assert asked == [(False, pins), (True, re.sub(r"==[\d.]+", "", pins))]


@pytest.mark.parametrize("text", ["torch\n", "torch==2\n\nnumpy\n", "# tests: tests/gone.py\ntorch==2\n"])
def test_open_versions_and_missing_tests_are_refused(tmp_path, text):
    (tmp_path / "requirements.txt").write_text(text)
    with pytest.raises(ValueError, match=r"leaves the version open|no test"):
        read_library(tmp_path)
