"""``art-trainer replay`` and ``art-trainer export-data`` on a run of ``art-trainer train``."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from art_trainer import cli
from art_trainer.records import recorded_steps
from art_trainer.records.weights import weights_digest
from art_trainer.records.writer import FILE
from art_trainer.run_log import RunLog
from art_trainer.trainer import GRPOTrainer
from tests.art_trainer import toy_envs  # noqa: F401 (registers the environment)
from tests.art_trainer.records.recorded_runs import rewrite


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run of a model from scratch that imitated the scripted player first."""
    from rich.console import Console

    from art_trainer.commands.policies import env_maker
    from art_trainer.commands.preparing import env_texts, prepare_policy, warm_up
    from art_trainer.commands.settings import Layer, merge_settings

    folder = tmp_path_factory.mktemp("runs") / "run"
    values = {
        "env": "toy/Echo-v0", "model": "scratch", "scratch": {"layers": 1, "hidden_size": 16, "heads": 2},
        "warm_start": "scripted", "warm_start_episodes": 6, "warm_start_epochs": 1, "max_steps": 2,
        "groups_per_step": 2, "num_generations": 3, "max_completion_length": 4, "learning_rate": 1e-3,
        "drop_zero_variance_groups": False, "entropy_coef": 0.1, "threads": 1, "output_dir": str(folder),
    }  # fmt: skip
    settings = merge_settings([Layer("test", values)])
    make_env = env_maker("toy/Echo-v0", {})
    policy = prepare_policy(settings, lambda: env_texts(settings, make_env), checkpoint=None)
    warm_up(policy, settings, make_env, Console(quiet=True))
    trainer = GRPOTrainer(policy, make_env, settings.config)
    log = RunLog(folder)
    log.begin(settings.config.to_mapping(), 0, weights_digest(policy.model))
    (folder / "run.yaml").write_text(yaml.safe_dump(settings.to_mapping()))
    for _ in range(2):
        groups = trainer.collect_episodes()
        log.write_metrics(trainer.update_policy(groups))
        log.write_episodes(trainer.step, groups)
    trainer.close()
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    for file in finished.iterdir():
        (tmp_path / "run" / file.name).write_bytes(file.read_bytes())
    return tmp_path / "run"


@pytest.fixture
def art_trainer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ending:
            cli.main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return int(ending.value.code or 0), said.out + said.err

    return call


def test_a_run_is_replayed_from_its_start_warm_start_and_all(run: Path, art_trainer: Any) -> None:
    code, said = art_trainer("replay", run, "--step", 2)
    assert code == 0, said
    assert "step 1: equal" in said
    assert "From the start of the run:" in said
    assert " 0 differ." in said
    assert "grad_norm" in said


def test_a_forged_record_is_exit_code_1_and_its_step_is_named(run: Path, art_trainer: Any) -> None:
    def forge(line: dict[str, Any]) -> None:
        span = next(span for span in line["histories"][0] if span["turn"] is not None)
        span["tokens"][0] ^= 1

    rewrite(run / FILE, 1, forge)
    code, said = art_trainer("replay", run, "--step", 2)
    assert code == 1
    assert "Not the run that was logged, from step 1 on." in said
    assert "loss" in said


def test_what_cannot_be_replayed_is_one_line_and_exit_code_2(run: Path, art_trainer: Any) -> None:
    code, said = art_trainer("replay", run, "--step", 9)
    assert code == 2
    assert "no line of step 9 to compare with" in said
    values = yaml.safe_load((run / "run.yaml").read_text())
    (run / "run.yaml").write_text(yaml.safe_dump({**values, "seed": 5}))
    code, said = art_trainer("replay", run, "--step", 1)
    assert code == 2
    assert "cannot be made again: its weights are others now" in said


def test_episodes_are_exported_with_the_environments_instructions_apart(
    run: Path, tmp_path: Path, art_trainer: Any
) -> None:
    assert recorded_steps(run) == [1, 2]
    code, said = art_trainer("export-data", run, tmp_path / "sft.jsonl", "--duplicates")
    assert code == 0, said
    assert f"{tmp_path / 'sft.jsonl'}: 12 rows" in said
    row = json.loads((tmp_path / "sft.jsonl").read_text().splitlines()[0])
    assert row["messages"][0]["role"] == "system"
    assert "Say the word you are asked for." in row["messages"][0]["content"]
    assert row["messages"][1]["content"].startswith("Say ")
    code, said = art_trainer("export-data", run, tmp_path / "last.jsonl", "--from-step", 2, "--duplicates")
    assert "6 rows" in said
    code, said = art_trainer("export-data", run, tmp_path / "none.jsonl", "--min-reward", 99)
    assert (tmp_path / "none.jsonl").read_text() == ""


def test_a_slip_of_the_pen_is_named(run: Path, tmp_path: Path, art_trainer: Any) -> None:
    code, said = art_trainer("export-data", run, tmp_path / "a.jsonl", "--format", "openpip")
    assert code == 2
    assert "no format 'openpip'; did you mean `openpipe`?: there are sft, dpo, openpipe" in said
    assert not (tmp_path / "a.jsonl").exists()
