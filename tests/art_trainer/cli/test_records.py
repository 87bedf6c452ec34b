"""``art-trainer replay`` and ``art-trainer export-data`` on a run of ``art-trainer train``."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from art_trainer.models.weights_io import weights_digest
from art_trainer.tracking.episode_store import FILE, recorded_steps
from art_trainer.tracking.run_dir import RunFolder
from art_trainer.training.trainer import GRPOTrainer
from tests.art_trainer import toy_envs  # noqa: F401 (registers the environment)
from tests.art_trainer.tracking.recorded_runs import rewrite


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run of a model from scratch that imitated the scripted player first."""

    from art_trainer.rollout.envs import env_maker
    from art_trainer.training.run_settings import Layer, merge_settings
    from art_trainer.training.run_setup import env_texts, prepare_policy, warm_up

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
    warm_up(policy, settings, make_env)
    trainer = GRPOTrainer(policy, make_env, settings.config)
    log = RunFolder(folder)
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


def test_a_run_is_replayed_from_its_start_warm_start_and_all(run: Path, invoke: Any) -> None:
    result = invoke("replay", run, "--step", 2)
    assert result.exit_code == 0
    for text in ("step 1: equal", "From the start of the run:", " 0 differ.", "grad_norm"):
        assert text in result.output


def test_a_forged_record_is_exit_code_1_and_its_step_is_named(run: Path, invoke: Any) -> None:
    def forge(line: dict[str, Any]) -> None:
        span = next(span for span in line["histories"][0] if span["turn"] is not None)
        span["tokens"][0] ^= 1

    rewrite(run / FILE, 1, forge)
    result = invoke("replay", run, "--step", 2)
    assert result.exit_code == 1
    assert "Differs from the logged run from step 1 on." in result.output


def test_what_cannot_be_replayed_is_refused(run: Path, refused: Any) -> None:
    assert "no line of step 9 to compare with" in refused("replay", run, "--step", 9)
    values = yaml.safe_load((run / "run.yaml").read_text())
    (run / "run.yaml").write_text(yaml.safe_dump({**values, "seed": 5}))
    assert "cannot be made again: its weights are others now" in refused("replay", run, "--step", 1)


def test_episodes_are_exported_with_the_environments_instructions_apart(
    run: Path, tmp_path: Path, invoke: Any
) -> None:
    assert recorded_steps(run) == [1, 2]
    assert "sft.jsonl: 12 rows" in invoke("export-data", run, "sft.jsonl", "--duplicates").output
    row = json.loads((tmp_path / "sft.jsonl").read_text().splitlines()[0])
    assert row["messages"][0]["role"] == "system"
    assert "Say the word you are asked for." in row["messages"][0]["content"]
    assert row["messages"][1]["content"].startswith("Say ")
    assert "6 rows" in invoke("export-data", run, "last.jsonl", "--from-step", 2, "--duplicates").output
    invoke("export-data", run, "none.jsonl", "--min-reward", 99)
    assert (tmp_path / "none.jsonl").read_text() == ""


def test_an_unknown_format_is_refused(run: Path, tmp_path: Path, refused: Any) -> None:
    error = refused("export-data", run, "a.jsonl", "--format", "openpip")
    assert "no format 'openpip'; did you mean `openpipe`?: there are sft, dpo, openpipe" in error
    assert not (tmp_path / "a.jsonl").exists()
