"""Restarts of a run that dies: when, how often, with which flags; no process is left behind."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from art_trainer.cli.main import app
from art_trainer.cli.supervise import TrainingCommand
from art_trainer.errors import ConfigError
from art_trainer.training.supervisor import RESTARTS_FILE, Progress, Supervisor, TrainingJob, progress_of
from tests.art_trainer.waiting import interrupted

PRETENDER = Path(__file__).with_name("pretend_trainer.py")


class Stage:
    """A pretended run and what it does at each start."""

    def __init__(self, place: Path, log: pytest.LogCaptureFixture) -> None:
        self.place, self.folder, self.log = place, place / "run", log

    @property
    def said(self) -> list[str]:
        return [record.getMessage() for record in self.log.records]

    def plan(self, *starts: dict[str, Any]) -> None:
        (self.place / "plan.json").write_text(json.dumps(starts))

    def supervisor(self, **options: Any) -> Supervisor:
        command = [sys.executable, "-S", str(PRETENDER), str(self.folder)]
        job = TrainingJob(self.folder, lambda: command, **{"first_pause": 0.001, **options})
        return Supervisor([job])

    def lines(self, name: str) -> list[Any]:
        file = self.place / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def starts(self) -> int:
        return len(self.lines("starts.jsonl"))

    def restarts(self) -> list[dict[str, Any]]:
        return self.lines(f"run/{RESTARTS_FILE}")


@pytest.fixture
def stage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Stage:
    caplog.set_level("INFO", "art_trainer.training.supervisor")
    return Stage(tmp_path, caplog)


def alive(process: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_run_that_dies_is_restarted_and_that_is_recorded(stage: Stage) -> None:
    stage.plan(
        {"steps": 2, "saved": 2, "end": -signal.SIGKILL},
        {"steps": 4, "saved": 2, "end": 1},
        {"steps": 4, "end": -signal.SIGSEGV},
        {"steps": 6, "saved": 6},
    )
    assert stage.supervisor().run() == 0
    assert stage.starts == 4
    written = [(one["code"], one["step"], one["checkpoint"], one["in_a_row"]) for one in stage.restarts()]
    assert written == [(-9, 2, 2, 1), (1, 4, 2, 1), (-11, 4, 2, 2)]
    whys = [one["why"] for one in stage.restarts()]
    assert all(word in why for word, why in zip(("SIGKILL", "code 1", "SIGSEGV"), whys, strict=True))
    assert [one["pause"] for one in stage.restarts()] == [0.001, 0.001, 0.002]
    assert len(stage.said) == 3
    assert "after step 4; restarting from the checkpoint of step 2" in stage.said[1]


def test_a_run_that_always_dies_at_the_same_step_is_given_up(stage: Stage) -> None:
    # From the second start on a step is done again, which is nothing new.
    stage.plan({"steps": 3, "end": 7}, *[{"steps": 3, "end": 7}, {"steps": 2, "end": 7}] * 3)
    assert stage.supervisor(max_restarts=3).run() == 7
    assert stage.starts == 1 + 3
    assert [one["in_a_row"] for one in stage.restarts()] == [1, 2, 3]
    assert "no new step in 3 restarts" in stage.said[-1]


@pytest.mark.parametrize("what", ["steps", "saved"])
def test_a_run_with_progress_is_restarted_again_and_again(stage: Stage, what: str) -> None:
    stage.plan(*({"steps": 9, what: count, "end": -signal.SIGKILL} for count in range(1, 6)), {})
    assert stage.supervisor(max_restarts=1).run() == 0
    assert stage.starts == 6


def test_with_max_restarts_0_it_is_not_restarted(stage: Stage) -> None:
    stage.plan({"end": -signal.SIGKILL})
    assert stage.supervisor(max_restarts=0).run() == 128 + signal.SIGKILL
    assert stage.restarts() == []
    assert "--max-restarts is 0" in stage.said[-1]


@pytest.mark.parametrize(("end", "code"), [(0, 0), (2, 2), (130, 130), (143, 143), (-signal.SIGTERM, 143)])
def test_a_run_that_finished_was_refused_or_was_asked_to_end_is_not_restarted(
    stage: Stage, end: int, code: int
) -> None:
    stage.plan({"end": end})
    assert stage.supervisor().run() == code
    assert (stage.starts, stage.restarts(), stage.said) == (1, [], [])


def test_a_run_that_hangs_is_killed_and_restarted(stage: Stage) -> None:
    stage.plan({"steps": 1, "until": "killed"}, {})
    seconds = itertools.count(1000, step=1000)

    def clock() -> float:
        """Runs fast once the first start is at its end, and not any more when that was killed."""
        return float(next(seconds)) if stage.starts == 1 and not stage.said else 0.0

    assert stage.supervisor(hang_seconds=1500, clock=clock).run() == 0
    assert [(one["code"], one["step"]) for one in stage.restarts()] == [(-9, 1)]
    assert stage.restarts()[0]["why"].startswith("hung (nothing in its folder changed for 1500 s)")


def test_a_run_whose_files_grow_does_not_hang(stage: Stage) -> None:
    stage.plan({"until": "asked"})
    looks = itertools.count()

    def clock() -> float:
        """Runs fast, but something grows whenever it is looked at."""
        look = next(looks)
        stage.folder.mkdir(exist_ok=True)
        (stage.folder / "journal").write_text("x" * look)
        if look == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return 1000.0 * look

    assert stage.supervisor(hang_seconds=1500, clock=clock).run() in (0, 128 + signal.SIGTERM)
    assert stage.restarts() == []
    assert next(looks) > 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on_once_and_waited_for(stage: Stage, number: int) -> None:
    stage.plan({"steps": 1, "until": "asked", "end": 1})
    with interrupted(lambda: stage.starts == 1, number):
        assert stage.supervisor().run() == 1
    assert stage.lines("heard.jsonl") == [[signal.SIGTERM if number == signal.SIGHUP else number]]
    assert (stage.starts, stage.restarts()) == (1, [])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_signal_kills(stage: Stage) -> None:
    stage.plan({"steps": 1, "until": "killed", "orphan": True})
    with interrupted(lambda: stage.starts == 1), interrupted(lambda: len(stage.said) == 1):
        assert stage.supervisor().run() == 128 + signal.SIGKILL
    assert (stage.starts, stage.restarts()) == (1, [])
    assert not alive(stage.lines("orphans.jsonl")[0])


def test_a_signal_between_two_starts_ends_it(stage: Stage) -> None:
    stage.plan({"end": 1})
    with interrupted(lambda: len(stage.said) == 1, signal.SIGTERM):
        assert stage.supervisor(first_pause=50.0).run() == 128 + signal.SIGTERM
    assert stage.starts == 1


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="descendants are found by /proc")
def test_descendants_in_sessions_of_their_own_are_killed_too(stage: Stage) -> None:
    stage.plan({"orphan": True, "end": -signal.SIGKILL}, {"orphan": True, "end": 4})
    assert stage.supervisor(max_restarts=1).run() == 4
    orphans = stage.lines("orphans.jsonl")
    assert len(orphans) == 2
    assert not any(alive(one) for one in orphans)


def test_a_restart_that_cannot_be_recorded_happens_all_the_same(stage: Stage) -> None:
    stage.plan({"steps": 1, "end": 1}, {})
    (stage.folder / RESTARTS_FILE).mkdir(parents=True)
    assert stage.supervisor().run() == 0
    assert stage.starts == 2
    assert "cannot be written: Is a directory" in stage.said[-1]


def test_progress_is_read_from_what_a_killed_run_left(tmp_path: Path) -> None:
    assert progress_of(tmp_path) == Progress(0, 0)
    for name in ("step-000004", "step-000010", ".step-000012.partial"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert progress_of(tmp_path) == Progress(10, 10)
    (tmp_path / "metrics.jsonl").write_text('{"step": 11.0}\n{"step": 12.0}\n{"st')
    assert progress_of(tmp_path) == Progress(12, 10)


# Which flags a restart has


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begin(folder: str) -> None:
    Path(folder).mkdir(parents=True)
    Path(folder, "run.yaml").write_text("env: toy/Echo-v0\nmax_steps: 7\n")


def test_a_run_without_a_folder_gets_the_one_that_train_would_choose(here: Path) -> None:
    begin("runs/Email-v0-art-tiny-1")
    words = ["art-trainer", "train", "--max-steps", "9"]
    found = TrainingCommand(words)
    assert found.folder == Path("runs/Email-v0-art-tiny-2")
    assert found() == [*words, "--output-dir", "runs/Email-v0-art-tiny-2"]
    begin("runs/Email-v0-art-tiny-2")
    assert found() == ["art-trainer", "train", "--resume", "runs/Email-v0-art-tiny-2"]


@pytest.mark.parametrize(
    "flags",
    [["--output-dir", "mine"], ["--output-dir=mine"], ["--set", "output_dir=mine"], ["--config", "a.yaml"]],
)
def test_a_run_that_names_its_folder_keeps_it(here: Path, flags: list[str]) -> None:
    Path("a.yaml").write_text("output_dir: mine\nseed: 4\n")
    words = ["python", "-m", "art_trainer", "train", *flags, "--env-args", "difficulty=1", "--lora=4"]
    found = TrainingCommand(words)
    assert found.folder == Path("mine")
    assert found() == words
    begin("mine")
    assert found() == ["python", "-m", "art_trainer", "train", "--resume", "mine"]


def test_launchers_and_flags_that_are_no_settings_stay(here: Path) -> None:
    torchrun = ["torchrun", "--nproc-per-node", "2", "-m", "art_trainer", "serve"]
    kept = "--host 0.0.0.0 --token-file=token --allowed-host a --allowed-host b --no-api".split()
    saved = "--set beta=0.1 --output-dir r --seed=3".split()
    found = TrainingCommand([*torchrun, "--max-steps", "9", *kept, *saved])
    begin("r")
    assert found() == [*torchrun, *kept, "--resume", "r"]


def test_a_resumed_run_is_restarted_unchanged_until_it_has_saved(here: Path) -> None:
    begin("r")
    Path("r/checkpoints/step-000005").mkdir(parents=True)
    words = "art-trainer serve --resume r --resume-step 5 --max-steps 90 --port 80".split()
    found = TrainingCommand(words)
    assert found() == words
    Path("r/checkpoints/step-000006").mkdir()
    assert found() == ["art-trainer", "serve", "--port", "80", "--resume", "r"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ls", "train"], "no art-trainer train or serve in `ls train`"),
        (["art-trainer", "self-play"], "no art-trainer train or serve"),
        (["torchrun", "-m", "art_trainer", "train", "--set", "max_setps=3"], "did you mean `max_steps`"),
        (["art-trainer", "train", "--output-dir", "old"], "already holds a run"),
        (["/no/such/art-trainer", "train"], "cannot be started: No such file"),
    ],
)
def test_a_wrong_command_is_not_started(
    here: Path, words: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    begin("old")
    with pytest.raises(ConfigError, match=message):
        app(["supervise", "--", *words], standalone_mode=False)
    assert sorted(path.name for path in here.iterdir()) == ["old"]


def test_the_command_restarts_a_run_with_its_folder(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = here / "art-trainer"
    program.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} -S {PRETENDER} {here}/r "$@"\n')
    program.chmod(0o755)
    stage = Stage(here, caplog)
    stage.plan({"steps": 1, "end": -signal.SIGKILL}, {"steps": 1, "end": 5})
    flags = ["train", "--max-steps", "9", "--output-dir", f"{here}/r"]
    done = CliRunner().invoke(app, ["supervise", "--max-restarts", "1", "--", str(program), *flags])
    assert done.exit_code == 5, done.output
    assert stage.lines("starts.jsonl") == [flags[1:], ["--resume", f"{here}/r"]]
    assert "restart 1 of at most 1" in caplog.text
