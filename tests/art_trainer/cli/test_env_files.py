"""Every command takes the one file that defines an environment, and a run finds it again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from art_trainer.cli.run_config import gather_settings
from art_trainer.cli.worker import _module_name, allowed_environments
from art_trainer.distributed.worker.connection import RefusedError
from art_trainer.errors import ConfigError
from art_trainer.tracking.run_dir import RunFolder

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUESS = next(part for part in README.split("```") if "class GuessEnv" in part).removeprefix("python\n")
SHORT = ("--eval-episodes", "2", "--max-steps", "1", "--set", "max_completion_length=2")
SHORT += ("--set", "num_generations=2", "--set", "groups_per_step=1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The README's environment, in a file without a package."""
    path = tmp_path / "guess.py"
    path.write_text(GUESS, encoding="utf-8")
    return path


@pytest.mark.e2e
def test_commands_take_a_file_and_a_run_finds_it_again(file, invoke, model, tmp_path):
    assert "olved: reward" in invoke("play", "--env", "guess.py", "--policy", "random").output
    judged = invoke("judge", "eval", "--judge", "rubric", "--env", "guess.py", "--groups", 2, "--size", 2)
    assert judged.exit_code == 0
    trained = invoke("train", "--env", "guess.py", "--model", model, *SHORT, "--output-dir", "run")
    assert trained.exit_code == 0
    assert RunFolder(tmp_path / "run").settings()["env"] == f"{file}:mine/Guess-v0"
    played = invoke("eval", "--env", "guess:mine/Guess-v0", "--policy", "random", "--episodes", 2)
    assert "mine/Guess-v0" in played.output

    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    assert "mine/Guess-v0" in invoke("eval", "--policy", "../run", "--episodes", 2).output
    assert "A digit is hidden" in invoke("play", "--policy", "../run").output
    assert "Resuming after step 1" in invoke("train", "--resume", "../run", "--max-steps", 2).output


def test_a_file_among_the_arguments_is_kept_with_its_whole_path(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    flags = {
        "env": "art_gym.testing.shuffled_reward:testing/ShuffledReward-v0",
        "env_args": {"env": file.name},
    }
    assert gather_settings(flags, overrides={}).run.env_args == {"env": str(file)}


@pytest.mark.parametrize("command", ["train --resume run", "eval --policy run"])
def test_a_file_that_is_gone_is_named(command, tmp_path, refused):
    RunFolder(tmp_path / "run").write_settings({"env": f"{tmp_path}/gone.py:mine/Guess-v0"})
    assert f"there is no file {tmp_path}/gone.py on this machine" in refused(*command.split())


def test_a_worker_plays_its_own_file_of_that_name_if_it_is_allowed(file):
    name = "/home/trainer/guess.py:mine/Guess-v0"
    for modules in ((), ("other.py",), ("guess.other",)):
        with pytest.raises(RefusedError, match=r"--allow-module /home/trainer/guess.py .* copy it"):
            allowed_environments(modules)(name, {})
    with pytest.raises(ConfigError, match=f"no file {file.parent}/absent/guess.py"):
        allowed_environments([f"{file.parent}/absent/guess.py"])(name, {})
    assert [_module_name(one) for one in ("a.b", "/x/guess.py", "/x/own/__init__.py")] == [
        "a.b",
        "guess",
        "own",
    ]
    with allowed_environments([str(file)])(name, {})() as env:
        assert env.reset(seed=0)[0].endswith("Guess.")


def test_wrong_arguments_are_named_before_pytorch_is_imported(tmp_path):
    script = """if True:
        import sys
        from art_trainer.cli.main import main
        judge = "judge eval --judge rubric"
        for command in ("train", "serve", "self-play", "eval --policy a", "play --policy a", judge):
            try:
                main([*command.split(), "--env-args", "max_turn=1"])
            except SystemExit as ended:
                assert ended.code == 2
        assert "torch" not in sys.modules
    """
    options = {
        "env": {**os.environ, "PYTHONPATH": str(ROOT)},
        "cwd": tmp_path,
        "timeout": 1000,
        "check": True,
    }
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, **options)
    assert done.stderr.count("no argument `max_turn`") == 6
    assert done.stderr.count("did you mean `max_turns`") == 5


@pytest.mark.e2e
@pytest.mark.parametrize("backend", ["worker", "ray"])
def test_other_processes_play_the_file(file, model, tmp_path, backend):
    if backend == "ray":
        pytest.importorskip("ray")
    run = "import sys; from art_trainer.cli.main import main; main(sys.argv[1:])"
    words = [sys.executable, "-c", run]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    options = {"env": {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}}
    options |= {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    own = ["--env", "guess.py", "--model", model, *SHORT, "--output-dir", "run"]
    if backend == "ray":
        train = [*words, "train", *own, "--backend", "ray", "--ray-actors", "1"]
        done = subprocess.run(train, cwd=tmp_path, timeout=1000, check=False, **options)
        assert done.returncode == 0, done.stdout
        return
    with subprocess.Popen([*words, "serve", *own, "--port", "0"], cwd=tmp_path, **options) as server:
        line = next(line for line in server.stdout if line.startswith("Worker: "))
        assert f"--allow-module {file}" in line
        work = [*words, *line.split()[2:], "--cache", str(tmp_path / "cache")]
        worker = subprocess.run(work, cwd=elsewhere, timeout=1000, check=False, **options)
        rest = server.stdout.read()
    assert (worker.returncode, server.returncode) == (0, 0), worker.stdout + rest
