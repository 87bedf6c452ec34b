"""The view of a run: while it trains, and from its folder."""

import io
import os

import pytest
from rich.cells import cell_len
from rich.console import Console

from art_trainer.cli.live_view import RunView, run_view
from art_trainer.cli.top import ViewReader
from art_trainer.tracking.run_dir import RunFolder, checkpoint_step, list_checkpoints
from art_trainer.types import Ending
from tests.art_trainer.cli.test_cli import QUICK, TRAIN
from tests.art_trainer.pseudo_terminal import PseudoTerminal
from tests.art_trainer.serving.dashboard.run_folders import DashRun, episode

HOSTILE = "\x1b[2J\x1b]0;mine\x07[red]no[/red] [/nothing]\x9b31m\u202e\ud800\r\n\tx\x00" + "長e\u0301" * 9000


def frame(view: RunView, width: int = 80, height: int = 24) -> list[str]:
    out = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    out.print(run_view(view, out))
    return [row.rstrip() for row in out.file.getvalue().splitlines()]


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (40, 24), (80, 8), (20, 10), (7, 24), (3, 3), (1, 1)])
def test_every_frame_fits_and_obeys_nothing_in_a_text(size):
    made = episode(1, 1.0, words=HOSTILE, ending=Ending.ENV_ERROR, error=HOSTILE)
    rows = frame(RunView(3, 10, 0.5, 90.0, HOSTILE[:60], {"reward": [0.1, 0.9]}, made, [HOSTILE] * 5), *size)
    assert (len(rows) <= size[1], max(map(cell_len, rows)) <= size[0]) == (True, True)
    assert not [sign for row in rows for sign in row if sign < " " or sign in "\x7f\x9b\u202e\ud800"]


def test_a_frame_shows_progress_curves_the_newest_warnings_and_the_end_of_the_episode():
    made = episode(7, 1.0, observation="\n".join(f"line {number}" for number in range(50)))
    messages = ["oldest", "older", "[old]", "newer", "newest"]
    rows = frame(RunView(5, 10, 0.0, 65.0, "", {"reward": [0.0, 0.5, 1.0]}, made, messages))
    assert rows[0] == "━" * 15 + "─" * 15 + "  step 5/10, 1 min 05 s left"
    assert rows[1:6] == ["reward 1", "reward  ▁▅█  0 → 1", "! newest", "! newer", "! [old]"]
    assert rows[6].startswith("╭─ last episode, task task-7, reward +1.000 ─")
    shown = [row.strip("│ ") for row in rows[7:-1]]
    assert shown[:10] == [*(f"line {number}" for number in range(41, 50)), '› search("tea")']
    assert (shown[-1], len(rows)) == ("Solved: reward 1.000 in 2 turns (found +0.25)", 24)
    assert frame(RunView()) == ["step 0/?"]


def test_a_folder_is_followed_from_its_start_to_its_end(tmp_path, refused):
    assert "no run in" in refused("top", tmp_path)
    run = DashRun(tmp_path / "mine", max_steps=3)
    reader = ViewReader(run.folder)
    reader.read()
    assert (reader.view.title, reader.view.step, reader.view.steps) == ("mine: starting", 0, 3)
    for step, left in ((1, 6.0), (2, 3.0)):
        run.step(step)
        run.warn(step)
        reader.read()
        view = reader.view
        assert (view.title, view.series["reward"][-1]) == ("mine: running", step / 10)
        assert (view.episode.task_id, view.seconds_left) == (f"task-{2 * step + 1}", left)
        assert view.warnings[-1].startswith(f"step {step}: the entropy fell")
    run.log.report_file.write_text("")
    os.utime(run.log.report_file, (2**31, 2**31))  # whatever ends a run, the report is written last
    reader.read()
    assert (view.title, view.seconds_left, reader.ended) == ("mine: stopped", None, True)
    run.log.report_file.unlink()
    run.log.begin({"max_steps": 3}, 1)  # a resumed run writes its files anew
    reader.read()
    assert (view.title, view.step, view.series["reward"], reader.ended) == ("mine: running", 1, [0.1], False)
    (run.folder / "episodes.jsonl.zst").write_bytes(b"damage" * 9)
    run.log.write_metrics({"step": 3.0})
    reader.read()
    assert (view.title, view.episode.task_id) == ("mine: finished", "task-3")
    assert "is damaged at byte" in view.warnings[-1]


def test_top_prints_one_frame_where_there_is_no_terminal(tmp_path, invoke):
    DashRun(tmp_path / "mine").step(1)
    shown = invoke("top", "mine", "--once").output
    assert shown == invoke("top", "mine").output
    assert shown.startswith("mine: running\n━━━───────")


@pytest.mark.e2e
def test_top_in_a_terminal_ends_with_the_run_or_with_ctrl_c(tmp_path):
    run = DashRun(tmp_path / "mine", max_steps=2)
    run.step(1)
    for end in (False, True):
        terminal = PseudoTerminal(tmp_path, "top", "mine")
        terminal.wait_for("mine: running", "step 1/2", "last episode, task task-3")
        run.step(2) if end else terminal.press("\x03")
        assert terminal.end() == 0
        assert terminal.output.rpartition("\x1b[?1049l")[2].count("mine: ") == 1


@pytest.mark.e2e
def test_training_in_a_terminal_is_one_view_between_evaluations_and_ctrl_c_leaves_it_clean(tmp_path):
    small = ["--set", "scratch={layers: 1, hidden_size: 16, heads: 2, vocabulary_size: 400}"]
    small += ["--warm-start", "scripted", "--set", "warm_start_episodes=6", "--history-window", "1"]
    terminal = PseudoTerminal(tmp_path, *TRAIN, *QUICK, *small, "--output-dir", "out")
    assert terminal.end() == 0, terminal.output
    for text in ("warm start, imitating scripted", "step 2/2, 0 s left", "success ▁", "Report: "):
        assert text in terminal.text(), text
    terminal = PseudoTerminal(tmp_path, *"train --resume out --max-steps 100000 --keep-going".split())
    terminal.wait_for("/100000, ", "last episode, task", "› ")
    terminal.press("\x03")
    assert terminal.end() == 130
    assert "art-trainer train --resume out" in terminal.output
    run = RunFolder(tmp_path / "out")
    assert checkpoint_step(list_checkpoints(run.checkpoints)[-1]) == run.metrics().records[-1]["step"]
    assert run.report_file.stat().st_mtime > run.metrics_file.stat().st_mtime


def test_a_quiet_run_prints_warnings_and_the_table(invoke, refused, model):
    arguments = [*TRAIN, "--model", model, *QUICK, "--max-steps", "3", "--keep-going", "--output-dir", "out"]
    assert "--verbose and --quiet are both set" in refused(*arguments, "--quiet", "--verbose")
    lines = invoke(*arguments, "--quiet").output.splitlines()
    table = next(number for number, text in enumerate(lines) if text.startswith("toy/Echo-v0, test split"))
    assert table
    assert all(text.startswith("warning: step 3: ") for text in lines[:table])
    assert [text for text in lines[table:] if "│ after " in text]
    assert lines[-1].startswith("└")
