"""What the terminal shows: progress, numbers, and episodes that are played."""

import io

import pytest
from rich.console import Console

from art_trainer.cli.console import TrainingProgress
from art_trainer.cli.play import play_by_hand, read_reply, watch
from art_trainer.formatting import duration, short, sparkline, visible
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.types import Ending, Episode, EpisodeSpec
from tests.art_trainer.toy_envs import Echo

METRICS = {"success": 0.5, "kl": 0.001, "entropy": 1.5, "tokens_per_second": 12345.0, "x": 9.0}
EPISODE = Episode("e", "t", 0, "", (), (), Ending.TERMINATED)


def run(steps: int, *, done: int = 0, terminal: bool = False) -> str:
    """What a run shows, by steps of four episodes whose reward grows."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)
    progress = TrainingProgress(console, 4)
    with progress.running(steps, done):
        for step in range(done + 1, steps + 1):
            for _ in range(4):
                progress.on_episode(EPISODE)
            progress.on_step({"step": float(step), **METRICS, "reward": step / 10})
    return console.file.getvalue()


@pytest.mark.parametrize(("steps", "least", "most"), [(100, 20, 30), (3, 3, 3)])
def test_a_pipe_gets_some_plain_lines(steps, least, most):
    lines = run(steps).splitlines()
    assert least <= len(lines) <= most
    assert lines[0].startswith(f"step 1/{steps}, ")
    assert lines[-1].startswith(f"step {steps}/{steps}, 0 s left")
    assert "success 0.5  KL 0.001  entropy 1.5  tokens/s 12.3k" in lines[-1]


def test_a_terminal_gets_a_bar_and_the_rewards_curve():
    shown = run(5, terminal=True)
    for text in ("step 5/5", "left", "▁▃▄▆█", "tokens/s 12.3k"):
        assert text in shown


def test_the_bar_can_be_drawn_before_the_first_step():
    assert "step 4/4" in run(4, done=4, terminal=True)


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


def test_durations():
    shown = [duration(seconds) for seconds in (0, 59.4, 60, 185, 7620)]
    assert shown == ["0 s", "59 s", "1 min 00 s", "3 min 05 s", "2 h 07 min"]


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=100)


def typing(*lines):
    waiting = list(lines)

    def read():
        if not waiting:
            raise EOFError
        return waiting.pop(0)

    return read


def test_a_fence_takes_lines_until_it_is_closed():
    read = typing("```python", "print(1)", "", "```", "next")
    assert read_reply(read) == "```python\nprint(1)\n\n```"
    assert read_reply(read) == "next"


def test_a_fault_is_shown(console):
    spec = EpisodeSpec(0, {"task": "test-1"})
    watch(ScriptedPolicy("scripted"), lambda: Echo(fragile=True), spec, console)
    assert "(env_error): RuntimeError: out of paint" in console.file.getvalue()


def test_what_a_model_says_cannot_drive_the_terminal(console):
    class Rude(Echo):
        def begin(self, task):
            return "\x1b[2J\x1b]0;owned\x07 \u202egnp.exe \ud800 [bold]plain[/bold]"

    with pytest.raises(EOFError):
        play_by_hand(Rude(), EpisodeSpec(0), console, typing())
    shown = console.file.getvalue()
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "␛[2J" in shown
    assert "[bold]plain[/bold]" in shown


def test_visible_keeps_lines_tabs_and_every_script():
    assert visible("a\tb\r\nc 日本 é 🙂") == "a\tb\nc 日本 é 🙂"
    assert visible("\x00\x7f\x9b") == "␀␡�"
