"""``art-trainer runs``: a line for each run in a folder."""

from collections.abc import Callable
from pathlib import Path

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
    done.evaluate(AFTER, 15)
    DashRun(tmp_path / "runs" / "begun").evaluate(BEFORE, 10)
    (tmp_path / "runs/begun/evaluations/after.json").write_text("{")
    found = invoke("runs")
    rows = {row.split("│")[1].strip(): row for row in found.output.splitlines() if row.startswith("│")}
    assert list(rows) == ["done", "begun"]
    assert [cell.strip() for cell in rows["done"].split("│")[2:8]] == [
        "art-tiny", "finished", "▁█", "2/2", "25%", "75%",
    ]  # fmt: skip
    assert [cell.strip() for cell in rows["begun"].split("│")[3:8]] == [
        "starting",
        "",
        "0/10",
        "50%",
        "damaged",
    ]
