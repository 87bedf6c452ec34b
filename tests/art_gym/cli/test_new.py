"""A package that ``art-gym new`` writes installs, keeps the contract, and trains at once."""

import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest

from art_gym.cli.new import EnvName, write_package


def run(folder: Path, *command: object, site: Path | None = None) -> str:
    """What a command prints that must succeed, with the packages in ``site`` installed."""
    paths = [str(site or ""), os.environ.get("PYTHONPATH", "")]
    installed = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    result = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**os.environ, "PATH": installed, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new package, its sources in ``mine-word-ladder`` and installed in ``site``."""
    folder = tmp_path_factory.mktemp("author")
    write_package(EnvName.parse("word-ladder"), folder)
    offline = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    run(folder, sys.executable, "-m", "pip", "install", *offline, "--target", "site", "./mine-word-ladder")
    return folder


@pytest.mark.e2e
def test_its_own_tests_pass(installed: Path) -> None:
    # From the installed copy: the folder of the sources is not where Python looks.
    command = (sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "6 passed" in run(installed / "mine-word-ladder", *command, site=installed / "site")


@pytest.mark.e2e
@pytest.mark.parametrize("package", ["art_gym", "mine_word_ladder"])
def test_it_is_known_if_it_is_installed_and_registered_by_its_own_import(installed, package) -> None:
    code = f"import {package}, gymnasium as gym; print(gym.make('mine/WordLadder-v0').reset(seed=0)[0])"
    assert "Numbers: " in run(installed, sys.executable, "-c", code, site=installed / "site")


@pytest.mark.e2e
def test_its_module_names_it_before_it_is_installed(installed: Path) -> None:
    code = "from art_gym.cli import main; main()"
    command = (sys.executable, "-P", "-c", code, "check", "mine_word_ladder:mine/WordLadder-v0")
    assert "keeps 28 of" in run(installed / "mine-word-ladder", *command)


@pytest.mark.e2e
def test_it_trains_at_once(installed: Path) -> None:
    command = ("-m", "art_trainer", "train", "--env", "mine/WordLadder-v0", "--model", "scratch")
    small = ("--max-steps", 2, "--groups-per-step", 2, "--eval-episodes", 4, "--threads", 1)
    run(installed, sys.executable, *command, *small, "--output-dir", "run", site=installed / "site")
    assert len((installed / "run" / "metrics.jsonl").read_text().splitlines()) >= 2
    assert (installed / "run" / "report.html").exists()


def test_the_environment_is_one_short_file_in_style(tmp_path: Path) -> None:
    write_package(EnvName.parse("word-ladder"), tmp_path)
    package = tmp_path / "mine-word-ladder"
    text = (package / "mine_word_ladder" / "env.py").read_text()
    assert len(text.splitlines()) <= 60
    assert "$" not in text
    style = ("--no-cache", "--isolated", "--line-length", "110")
    run(package, "ruff", "check", *style, "--select", "E,F,W,UP,B,SIM,C4,PT,NPY", ".")
    run(package, "ruff", "format", *style, "--check", ".")


def test_the_command_says_what_to_do_next(tmp_path, command, rejected):
    shown = command("new", "lab/HTTPGuess", "--folder", tmp_path).out
    assert "art-trainer train --env lab_http_guess:lab/HttpGuess-v0 --model scratch" in shown
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    code = {"lab_http_guess/__init__.py", "lab_http_guess/env.py", "tests/test_env.py"}
    assert written == {f"lab-http-guess/{name}" for name in code | {"README.md", "pyproject.toml"}}
    assert "exists already" in rejected("new", "lab/http-guess", "--folder", tmp_path)


@pytest.mark.parametrize(
    ("typed", "env_id", "module", "class_name"),
    [
        ("riddle", "mine/Riddle-v0", "mine_riddle", "RiddleEnv"),
        ("WordLadder", "mine/WordLadder-v0", "mine_word_ladder", "WordLadderEnv"),
        ("Our-Lab/game2048", "our_lab/Game2048-v0", "our_lab_game2048", "Game2048Env"),
    ],
)
def test_names_in_all_their_forms(typed: str, env_id: str, module: str, class_name: str) -> None:
    name = EnvName.parse(typed)
    assert (name.env_id, name.module, name.class_name) == (env_id, module, class_name)


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("", "cannot be the name"),
        ("3d", "begin with a letter"),
        ("word ladder", "letters and digits"),
        ("../up", "cannot be the namespace"),
        ("a/b/c", "cannot be the namespace"),
        ("wörter", "letters and digits"),
        ("riddle-v1", "leave -v1 away"),
        ("RiddleEnv", "leave Env away"),
        ("art/riddle", "this project's own"),
        ("x" * 41, "41 characters"),
    ],
)
def test_bad_names_are_rejected(tmp_path, rejected, typed, reason):
    assert reason in rejected("new", "--folder", tmp_path, "--", typed)
    assert not list(tmp_path.iterdir())


def test_an_id_that_is_taken_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gym.registry, "taken/Riddle-v0", gym.spec("CartPole-v1"))
    with pytest.raises(ValueError, match="already; choose another"):
        write_package(EnvName.parse("taken/riddle"), tmp_path)


def test_a_broken_package_is_named_and_takes_nothing_away(tmp_path: Path) -> None:
    (tmp_path / "broken_envs.py").write_text("raise LookupError('no such table')")
    info = tmp_path / "broken_envs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-envs\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[art_gym.envs]\nbroken = broken_envs\n")
    code = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import art_gym
print([str(one.message) for one in caught if one.category is RuntimeWarning])
import gymnasium
print("art/Email-v0" in gymnasium.registry)
"""
    shown = run(tmp_path, sys.executable, "-c", code, site=tmp_path)
    assert "broken-envs registers environments in `broken_envs`" in shown
    assert "LookupError: no such table" in shown
    assert shown.splitlines()[-1] == "True"
