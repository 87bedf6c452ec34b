import io

import pytest
from rich.console import Console

from art_trainer.display import duration, sparkline
from art_trainer.episodes import Ending, Episode
from art_trainer.progress import LiveProgress, Pace, PlainProgress, training_progress

METRICS = {
    "reward": 0.25,
    "success": 0.5,
    "kl": 0.001,
    "entropy": 1.5,
    "tokens_per_second": 12345.0,
    "x": 9.0,
}
EPISODE = Episode("e", "t", 0, "", (), (), Ending.TERMINATED)


def test_time_left_follows_the_pace_of_this_session():
    now = [0.0]
    pace = Pace(total=100, done=40, clock=lambda: now[0])
    assert pace.remaining is None
    assert str(pace) == "step 40/100"
    now[0] = 20.0
    pace.advance(50)
    assert pace.remaining == pytest.approx(100.0)
    assert str(pace) == "step 50/100, 1 min 40 s left"


def test_a_pipe_gets_plain_lines_and_not_one_a_step():
    console = Console(file=io.StringIO(), width=40)
    with training_progress(console, 100) as progress:
        assert isinstance(progress, PlainProgress)
        for step in range(1, 101):
            progress.on_episode(EPISODE)
            progress.on_step({"step": float(step), **METRICS})
    lines = console.file.getvalue().splitlines()
    assert 20 <= len(lines) <= 30
    assert lines[0].startswith("step 1/100")
    assert lines[-1].startswith("step 100/100, 0 s left")
    assert "reward 0.25  success 0.5  KL 0.001  entropy 1.5  tokens/s 12.3k" in lines[-1]


def test_a_short_run_says_every_step():
    console = Console(file=io.StringIO(), width=80)
    with training_progress(console, 3) as progress:
        for step in (1, 2, 3):
            progress.on_step({"step": step, "reward": 1.0})
    assert len(console.file.getvalue().splitlines()) == 3


def test_a_terminal_gets_a_panel_that_moves():
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    with training_progress(console, 10, episodes_per_step=4) as progress:
        assert isinstance(progress, LiveProgress)
        for step in range(1, 6):
            for _ in range(4):
                progress.on_episode(EPISODE)
            progress.on_step({"step": step, **METRICS, "reward": step / 10})
    told = console.file.getvalue()
    assert "step 5/10" in told
    assert "left" in told
    assert "▁▃▄▆█" in told
    assert "tokens/s 12.3k" in told


def test_the_panel_can_be_drawn_before_the_first_step():
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    with training_progress(console, 10, episodes_per_step=4):
        pass
    assert "step 0/10" in console.file.getvalue()


def test_sparklines():
    assert sparkline([]) == ""
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([float("nan"), 0.0, 1.0]) == "▁█"
    assert len(sparkline(range(1000), width=24)) == 24
    assert sparkline(range(1000), width=8) == "▁▂▃▄▅▆▇█"


def test_durations():
    assert [duration(s) for s in (0, 59.4, 60, 185, 7620)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "3 min 05 s",
        "2 h 07 min",
    ]
