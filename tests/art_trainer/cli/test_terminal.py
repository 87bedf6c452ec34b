"""What the terminal shows: progress, numbers, and episodes that are played."""

import io
import math
from types import SimpleNamespace

import pytest
import typer
from rich.console import Console

from art_trainer.cli import console as module
from art_trainer.cli.live_view import TrainingProgress
from art_trainer.cli.play import watch
from art_trainer.formatting import duration, percent, short, sparkline
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.types import Ending, Episode, EpisodeSpec, Interval
from tests.art_trainer.toy_envs import Echo

METRICS = {"success": 0.5, "kl": 0.001, "entropy": 1.5, "tokens_per_second": 12345.0, "x": 9.0}
EPISODE = Episode("e", "t", 0, "", (), (), Ending.TERMINATED)


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def run(steps: int, *, done: int = 0, terminal: bool = False) -> str:
    """What a run shows, by steps of four episodes whose reward grows."""
    # As if FORCE_COLOR were set: a notebook's pipe is no terminal for that.
    out = Console(file=Terminal() if terminal else io.StringIO(), force_terminal=True, width=100)
    progress = TrainingProgress(out, 4)
    with progress.running(steps, done):
        for step in range(done + 1, steps + 1):
            for _ in range(4):
                progress.on_episode(EPISODE)
            progress.on_step({"step": float(step), **METRICS, "reward": step / 10})
    return out.file.getvalue()


@pytest.mark.parametrize(("steps", "least", "most"), [(100, 20, 30), (3, 3, 3)])
def test_a_pipe_gets_some_plain_lines(steps, least, most):
    lines = run(steps).splitlines()
    assert least <= len(lines) <= most
    assert lines[0].startswith(f"step 1/{steps}, ")
    assert lines[-1].startswith(f"step {steps}/{steps}, 0 s left")
    assert "success 0.5  KL 0.001  entropy 1.5  tokens/s 12.3k" in lines[-1]


@pytest.mark.parametrize("steps", [False, True])
def test_a_pipe_gets_a_line_a_minute_of_a_long_evaluation_or_warm_start(monkeypatch, steps):
    clock = iter(range(0, 10**6, 20))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    out = Console(file=io.StringIO(), width=100)
    with module.episode_bar(out, "tiny", None if steps else 8) as advance:
        for step in range(1, 9):
            advance({"step": step, "steps": 8} if steps else EPISODE)
        if steps:
            for step in range(1, 5):
                advance({"step": step, "steps": 8})
    expected = ["tiny: 3/8, 1 min 40 s left", "tiny: 6/8, 40 s left"]
    expected += ["tiny, round 2: 2/8, 2 min 00 s left"] * steps
    assert out.file.getvalue().splitlines() == expected


def test_a_terminal_gets_a_bar_and_the_rewards_curve():
    shown = run(5, terminal=True)
    for text in ("step 5/5", "left", "▁▃▄▆█", "tokens/s 12.3k"):
        assert text in shown
    assert "step 4/4" in run(4, done=4, terminal=True), "before the first step"


def test_sparklines():
    assert sparkline([]) == ""
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([float("nan"), 0.0, 1.0]) == "▁█"
    assert len(sparkline(range(1000), width=24)) == 24
    assert sparkline(range(1000), width=8) == "▁▂▃▄▅▆▇█"


def test_short_numbers():
    values = (0, 0.5, 12345, 123.4, 0.00034, 0.0000012)
    assert [short(value) for value in values] == ["0", "0.5", "12.3k", "123", "0.0003", "1e-6"]


def test_a_rate_of_several_attempts_at_one_start_has_no_interval():
    assert percent(Interval(0.75, math.nan, math.nan, 4)) == "75% (unknown)"


def test_durations():
    shown = [duration(seconds) for seconds in (0, 59.4, 60, 185, 7620)]
    assert shown == ["0 s", "59 s", "1 min 00 s", "3 min 05 s", "2 h 07 min"]


def test_a_fault_is_shown():
    console, spec = Console(file=io.StringIO(), width=100), EpisodeSpec(0, {"task": "test-1"})
    with pytest.raises(typer.Exit) as ended:
        watch(ScriptedPolicy("scripted"), lambda: Echo(fragile=True), spec, console)
    assert ended.value.exit_code == 1
    assert "(env_error): RuntimeError: out of paint" in console.file.getvalue()
