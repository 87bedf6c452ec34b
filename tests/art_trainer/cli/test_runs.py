"""``art-trainer runs``: a line for each run in a folder."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from art_trainer.tracking.run_dir import AFTER, BEFORE
from tests.art_trainer.serving.dashboard.run_folders import DashRun


def test_each_run_has_a_line(
    invoke: Callable[..., Result], refused: Callable[..., str], tmp_path: Path
) -> None:
    assert "no folder at runs" in refused("runs")
    (tmp_path / "runs" / "notes").mkdir(parents=True)
    assert "no run in runs" in refused("runs")
    done = DashRun(tmp_path / "runs" / "done", max_steps=2)
    for step in (1, 2):
        done.step(step)
    with done.log.metrics_file.open("a") as stream:
        stream.write('{"reward": "damaged"}\n')
    done.evaluate(BEFORE, 5)
    assert "running" in invoke("runs").output, "the last evaluation is still to come"
    done.evaluate(AFTER, 15)
    for name, evaluation in (("early", AFTER), ("begun", BEFORE)):
        run = DashRun(tmp_path / "runs" / name)
        run.evaluate(evaluation, 10)
        run.log.report_file.touch()
        os.utime(run.log.report_file, (2**31, 2**31))
    (tmp_path / "runs/begun/evaluations/before.json").write_text("{")
    asked = refused("eval", "--env", "art/2048-v0", "--policy", "runs/begun")
    assert "the run runs/begun has no checkpoint yet" in asked
    found = invoke("runs")
    rows = [re.split(r" *│ *", row)[1:8] for row in found.output.splitlines() if row.startswith("│")]
    assert rows[0] == ["done", "art-tiny", "finished", "▁█", "2/2", "25%", "75%"]
    assert rows[1] == ["early", "art-tiny", "finished", "", "0/10", "–", "50%"]
    assert rows[2] == ["begun", "art-tiny", "stopped", "", "0/10", "damaged", "–"]
    done.log.begin({"max_steps": 3}, 2)
    assert done.log.evaluation(AFTER) is None


@pytest.mark.parametrize(("columns", "curve"), [(80, "▁▂▄▅▇█"), (60, "")])
def test_a_narrow_terminal_shows_whole_results(
    invoke: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int, curve: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    run = DashRun(tmp_path / "runs" / "Email-v0-art-tiny-1", max_steps=60)
    for step in range(1, 61):
        run.step(step)
    run.evaluate(BEFORE, 5)
    run.evaluate(AFTER, 15)
    lines = invoke("runs").output.splitlines()
    assert max(map(len, lines)) <= columns
    (row,) = (line for line in lines if "75%" in line)
    assert [word for word in ("25%", "60/60", curve) if word not in row] == []
    assert (columns == 80) == ("Email-v0-art-tiny-1" in row)
