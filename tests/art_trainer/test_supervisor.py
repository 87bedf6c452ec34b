"""A run that is begun again when it dies: when, how often, with which flags; and nothing is left behind."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from art_trainer import cli
from art_trainer.cli_serve import add_serve_command
from art_trainer.cli_supervise import add_supervise_command
from art_trainer.commands.supervising import TrainingCommand
from art_trainer.errors import ConfigError
from art_trainer.supervisor import RESTARTS_FILE, Progress, Supervisor, progress_of

PRETENDER = Path(__file__).with_name("pretend_trainer.py")


class Stage:
    """A pretended run and what it does at each start."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.folder = place / "run"
        self.said: list[str] = []

    def plan(self, *starts: dict[str, Any]) -> None:
        (self.place / "plan.json").write_text(json.dumps(starts))

    def supervisor(self, **options: Any) -> Supervisor:
        command = [sys.executable, "-S", str(PRETENDER), str(self.folder)]
        return Supervisor(self.folder, lambda: command, self.said.append, **{"first_pause": 0.001, **options})

    def lines(self, name: str) -> list[Any]:
        file = self.place / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def starts(self) -> int:
        return len(self.lines("starts.jsonl"))

    def restarts(self) -> list[dict[str, Any]]:
        return self.lines(f"run/{RESTARTS_FILE}")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it does not come to that"
        time.sleep(0.02)


@contextmanager
def meanwhile(act: Callable[[], None]) -> Iterator[None]:
    """Do something in another thread; its faults are the test's."""
    faults: list[BaseException] = []

    def safely() -> None:
        try:
            act()
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=safely)
    thread.start()
    yield
    thread.join(60)
    assert not faults


def alive(process: int) -> bool:
    """Whether a process runs; one that is dead and not yet buried does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_whatever_it_dies_of_it_is_begun_again_and_that_is_written_down(stage: Stage) -> None:
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
    assert [one["why"] for one in stage.restarts()] == [
        "was killed by signal 9 (SIGKILL)", "ended with code 1", "was killed by signal 11 (SIGSEGV)",
    ]  # fmt: skip
    assert [one["pause"] for one in stage.restarts()] == [0.001, 0.001, 0.002]
    assert len(stage.said) == 3
    assert "after step 4. It goes on after the checkpoint of step 2" in stage.said[1]


def test_a_death_that_always_comes_at_the_same_step_ends_it(stage: Stage) -> None:
    # From the second start on a step is done again, which is nothing new.
    stage.plan({"steps": 3, "end": 7}, *[{"steps": 3, "end": 7}, {"steps": 2, "end": 7}] * 3)
    assert stage.supervisor(max_restarts=3).run() == 7
    assert stage.starts == 1 + 3
    assert [one["in_a_row"] for one in stage.restarts()] == [1, 2, 3]
    assert "no new step in 3 restarts" in stage.said[-1]


@pytest.mark.parametrize("what", ["steps", "saved"])
def test_as_long_as_it_gets_further_it_goes_on(stage: Stage, what: str) -> None:
    stage.plan(*({"steps": 9, what: count, "end": -signal.SIGKILL} for count in range(1, 6)), {})
    assert stage.supervisor(max_restarts=1).run() == 0
    assert stage.starts == 6


def test_without_restarts_the_first_death_is_the_last(stage: Stage) -> None:
    stage.plan({"end": -signal.SIGKILL})
    assert stage.supervisor(max_restarts=0).run() == 128 + signal.SIGKILL
    assert stage.restarts() == []
    assert "before its first step" in stage.said[-1]
    assert "--max-restarts is 0" in stage.said[-1]


@pytest.mark.parametrize(("end", "code"), [(0, 0), (2, 2), (130, 130), (143, 143), (-signal.SIGTERM, 143)])
def test_who_was_done_or_refused_or_asked_to_end_is_not_begun_again(
    stage: Stage, end: int, code: int
) -> None:
    stage.plan({"end": end})
    assert stage.supervisor().run() == code
    assert (stage.starts, stage.restarts(), stage.said) == (1, [], [])


def test_one_that_hangs_is_killed_and_begun_again(stage: Stage) -> None:
    stage.plan({"steps": 1, "until": "killed"}, {})
    seconds = itertools.count(1000, step=1000)

    def clock() -> float:
        """Runs fast once the first start is at its end, and not any more when that was killed."""
        return float(next(seconds)) if stage.starts == 1 and not stage.said else 0.0

    assert stage.supervisor(hang_seconds=1500, clock=clock).run() == 0
    assert [(one["code"], one["step"]) for one in stage.restarts()] == [(-9, 1)]
    assert stage.restarts()[0]["why"].startswith("hung (nothing in its folder changed for 1500 s)")


def test_one_whose_files_grow_does_not_hang(stage: Stage) -> None:
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
def test_a_wish_to_end_is_handed_on_once_and_waited_for(stage: Stage, number: int) -> None:
    stage.plan({"steps": 1, "until": "asked", "end": 1})

    def ask() -> None:
        until(lambda: stage.starts == 1)
        os.kill(os.getpid(), number)

    with meanwhile(ask):
        assert stage.supervisor().run() == 1
    assert stage.lines("heard.jsonl") == [[signal.SIGTERM if number == signal.SIGHUP else number]]
    assert (stage.starts, stage.restarts()) == (1, [])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_kills(stage: Stage) -> None:
    stage.plan({"steps": 1, "until": "killed", "orphan": True})

    def ask_twice() -> None:
        until(lambda: stage.starts == 1)
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: len(stage.said) == 1)
        os.kill(os.getpid(), signal.SIGINT)

    with meanwhile(ask_twice):
        assert stage.supervisor().run() == 128 + signal.SIGKILL
    assert (stage.starts, stage.restarts()) == (1, [])
    assert not alive(stage.lines("orphans.jsonl")[0])


def test_it_can_be_ended_between_two_starts(stage: Stage) -> None:
    stage.plan({"end": 1})

    def ask() -> None:
        until(lambda: len(stage.said) == 1)
        os.kill(os.getpid(), signal.SIGTERM)

    with meanwhile(ask):
        assert stage.supervisor(first_pause=50.0).run() == 128 + signal.SIGTERM
    assert stage.starts == 1


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="descendants are found by /proc")
def test_no_process_outlives_a_start_even_in_a_session_of_its_own(stage: Stage) -> None:
    stage.plan({"orphan": True, "end": -signal.SIGKILL}, {"orphan": True, "end": 3})
    assert stage.supervisor(max_restarts=1).run() == 3
    orphans = stage.lines("orphans.jsonl")
    assert len(orphans) == 2
    assert not any(alive(one) for one in orphans)


def test_a_restart_that_cannot_be_written_down_is_one_all_the_same(stage: Stage) -> None:
    stage.plan({"steps": 1, "end": 1}, {})
    (stage.folder / RESTARTS_FILE).mkdir(parents=True)
    assert stage.supervisor().run() == 0
    assert stage.starts == 2
    assert "cannot be written: Is a directory" in stage.said[-1]


def test_progress_is_read_from_what_a_kill_has_left(tmp_path: Path) -> None:
    assert progress_of(tmp_path) == Progress(0, None)
    for name in ("step-000004", "step-000010", ".step-000012.partial"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert progress_of(tmp_path) == Progress(10, 10)
    (tmp_path / "metrics.jsonl").write_text('{"step": 11.0}\n{"step": 12.0}\n{"st')
    assert progress_of(tmp_path) == Progress(12, 10)


# Which flags a restart has


def commands() -> Any:
    """The app with what is supervised, and what supervises."""
    app = typer.Typer()
    app.command()(cli.train)
    add_serve_command(app)
    add_supervise_command(app)
    return app


COMMANDS: Any = typer.main.get_command(commands())


def command(*words: str) -> TrainingCommand:
    return TrainingCommand(words, COMMANDS.commands)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begin(folder: str) -> None:
    Path(folder).mkdir(parents=True)
    Path(folder, "run.yaml").write_text("max_steps: 7\n")


def save(folder: str, step: int) -> None:
    Path(folder, "checkpoints", f"step-{step:06d}").mkdir(parents=True)


def test_a_run_without_a_folder_is_given_the_one_that_train_would_choose(here: Path) -> None:
    begin("runs/Email-v0-art-tiny-1")
    found = command("art-trainer", "train", "--max-steps", "9")
    assert found.folder == Path("runs/Email-v0-art-tiny-2")
    assert found() == ["art-trainer", "train", "--max-steps", "9", "--output-dir", "runs/Email-v0-art-tiny-2"]
    begin("runs/Email-v0-art-tiny-2")
    assert found() == ["art-trainer", "train", "--resume", "runs/Email-v0-art-tiny-2"]


@pytest.mark.parametrize(
    "flags",
    [["--output-dir", "mine"], ["--output-dir=mine"], ["--set", "output_dir=mine"], ["--config", "a.yaml"]],
)
def test_a_run_that_names_its_folder_keeps_it(here: Path, flags: list[str]) -> None:
    Path("a.yaml").write_text("output_dir: mine\nseed: 4\n")
    found = command("python", "-m", "art_trainer", "train", *flags, "--env-args", "difficulty=1", "--lora=4")
    assert found.folder == Path("mine")
    assert found() == [*found()[:4], *flags, "--env-args", "difficulty=1", "--lora=4"]
    begin("mine")
    assert found() == ["python", "-m", "art_trainer", "train", "--resume", "mine"]


def test_launchers_and_what_is_no_setting_of_the_run_stay(here: Path) -> None:
    torchrun = ["torchrun", "--nproc-per-node", "2", "-m", "art_trainer", "serve"]
    kept = [
        "--host",
        "0.0.0.0",
        "--token-file=token",
        "--allowed-host",
        "a",
        "--allowed-host",
        "b",
        "--no-api",
    ]
    found = command(
        *torchrun, "--max-steps", "9", *kept, "--set", "beta=0.1", "--output-dir", "r", "--seed=3"
    )
    begin("r")
    assert found() == [*torchrun, *kept, "--resume", "r"]


def test_a_run_that_is_gone_on_with_is_so_as_it_was_asked_until_it_has_saved(here: Path) -> None:
    begin("r")
    save("r", 5)
    words = [
        "art-trainer",
        "serve",
        "--resume",
        "r",
        "--resume-step",
        "5",
        "--max-steps",
        "90",
        "--port",
        "80",
    ]
    found = command(*words)
    assert found() == words
    save("r", 6)
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
def test_what_would_be_refused_is_not_even_begun(
    here: Path, words: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    begin("old")
    with pytest.raises(ConfigError, match=message):
        commands()(["supervise", "--", *words], standalone_mode=False)
    assert sorted(path.name for path in here.iterdir()) == ["old"]


def test_the_command_begins_a_run_again_with_its_folder(here: Path) -> None:
    program = here / "art-trainer"
    program.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} -S {PRETENDER} {here}/r "$@"\n')
    program.chmod(0o755)
    stage = Stage(here)
    stage.folder = here / "r"
    stage.plan({"steps": 1, "end": -signal.SIGKILL}, {"steps": 1, "end": 5})
    flags = ["train", "--max-steps", "9", "--output-dir", f"{here}/r"]
    done = CliRunner().invoke(commands(), ["supervise", "--max-restarts", "1", "--", str(program), *flags])
    assert done.exit_code == 5, done.output
    assert stage.lines("starts.jsonl") == [flags[1:], ["--resume", f"{here}/r"]]
    assert "restart 1 of at most 1" in done.output
