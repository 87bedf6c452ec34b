import json
from pathlib import Path

from art_trainer.records import iter_steps, recorded_settings
from art_trainer.run_log import RunLog
from tests.art_trainer.records.test_record_reader import made_group

CONFIG = {"seed": 1, "output_dir": "here"}


def log_of(folder: Path, steps: range) -> RunLog:
    log = RunLog(folder)
    log.begin(CONFIG, steps.start - 1, "digest" if steps.start == 1 else None)
    for step in steps:
        log.write_metrics({"step": float(step), "loss": 0.1})
        log.write_episodes(step, [made_group(step)], None, [made_group(50 + step)])
    log.sync()
    return log


def lines(folder: Path) -> list[float]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_resumed_run_forgets_the_metrics_and_the_episodes_of_what_it_does_again(tmp_path: Path) -> None:
    log_of(tmp_path / "run", range(1, 5))
    with (tmp_path / "run" / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 5, "lo')
    log_of(tmp_path / "run", range(3, 4))
    assert lines(tmp_path / "run") == [1, 2, 3]
    assert [record.step for record in iter_steps(tmp_path / "run")] == [1, 2, 3]
    (settings,) = recorded_settings(tmp_path / "run")
    assert (settings.after, settings.weights, settings.config) == (0, "digest", {"seed": 1})


def test_groups_that_were_replaced_are_kept_apart(tmp_path: Path) -> None:
    log_of(tmp_path / "run", range(1, 2))
    (record,) = iter_steps(tmp_path / "run")
    assert [group.task_id for group in record.groups] == ["task-1"]
    assert [group.task_id for group in record.replaced] == ["task-51"]


def test_settings_can_be_read_as_they_were_given(tmp_path: Path) -> None:
    log_of(tmp_path / "run", range(1, 1))
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == CONFIG
