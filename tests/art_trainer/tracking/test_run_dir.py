"""The run folder as a training run writes it."""

import json
from pathlib import Path

from art_trainer.tracking.episode_store import iter_steps, recorded_settings
from art_trainer.tracking.health import RunWarning
from art_trainer.tracking.run_dir import RunFolder
from tests.art_trainer.tracking.test_episode_store import made_group

CONFIG = {"seed": 1, "output_dir": "here"}


def written(folder: Path, steps: range) -> RunFolder:
    run = RunFolder(folder)
    run.begin(CONFIG, steps.start - 1, "digest" if steps.start == 1 else None)
    for step in steps:
        run.write_metrics({"step": float(step), "loss": 0.1})
        run.write_warning(RunWarning(step, "kl", 0.5, 0.1, f"step {step}: so weit – zu weit"))
        run.write_episodes(step, [made_group(step)], None, [made_group(50 + step)])
    run.sync()
    return run


def test_a_resumed_run_drops_what_it_repeats(tmp_path: Path) -> None:
    run = written(tmp_path / "run", range(1, 5))
    for file in (run.metrics_file, run.warnings_file):
        with file.open("a") as stream:
            stream.write('{"step": 2, "lo')  # a killed run's last line
    written(tmp_path / "run", range(3, 4))
    for file in (run.metrics_file, run.warnings_file):
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        assert [line["step"] for line in lines] == [1, 2, 3]
    assert (lines[0]["kind"], lines[0]["message"]) == ("warning", "step 1: so weit – zu weit")
    assert [record.step for record in iter_steps(run.path)] == [1, 2, 3]
    (settings,) = recorded_settings(run.path)
    assert (settings.after, settings.weights, settings.config) == (0, "digest", {"seed": 1})


def test_settings_can_be_read_as_they_were_given(tmp_path: Path) -> None:
    run = written(tmp_path / "run", range(1, 1))
    assert run.settings() == CONFIG
    run.write_settings({**CONFIG, "env": "toy/Echo-v0"})
    written(run.path, range(1, 1))
    assert run.settings() == {**CONFIG, "env": "toy/Echo-v0"}, "a command's settings stay"
