"""``art-trainer sync``, ``art-trainer config`` and ``--log``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from art_trainer.cli.access import read_token
from art_trainer.cli.policies import load_policy
from art_trainer.errors import ConfigError
from art_trainer.tracking.env_vars import ENV_VARS
from art_trainer.training.run_settings import Layer, merge_settings
from art_trainer.training.run_setup import make_dispatcher
from tests.art_trainer.toy_envs import Echo
from tests.art_trainer.tracking.sinks.sink_runs import MadeRun


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, and no settings of services in the environment."""
    monkeypatch.chdir(tmp_path)
    for variable in ENV_VARS:
        monkeypatch.delenv(variable.name, raising=False)


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    """A run that has ended."""
    pytest.importorskip("tensorboard")
    return MadeRun(tmp_path / "run").played()


def test_config_shows_what_is_in_effect_and_masks_secrets(
    invoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text(
        "WANDB_API_KEY=0123456789secret\nLANGFUSE_HOTS=x\nOTEL_EXPORTER_OTLP_ENDPOINT=https://me:hush@otel.example\n"
    )
    monkeypatch.setenv("LANGFUSE_HOST", "http://localhost:3000")
    shown = invoke("config").output
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.strip()}
    assert lines["WANDB_API_KEY"][:4] == ["********", ".env", "line", "1"]
    assert lines["LANGFUSE_HOST"][:2] == ["http://localhost:3000", "environment"]
    assert lines["ART_SERVER_PORT"][1] == "default"
    assert lines["OPENAI_API_KEY"][:2] == ["not", "set"]
    assert "did you mean `LANGFUSE_HOST`?" in shown
    assert lines["OTEL_EXPORTER_OTLP_ENDPOINT"][0] == "https://***@otel.example"
    assert "0123456789secret" not in shown


def test_sync_sends_a_run_once(invoke: Any, run: MadeRun) -> None:
    sent = "tensorboard: sent 14 events of a run that finished"
    assert sent in invoke("sync", "run", "--to", "tensorboard").output
    assert "tensorboard: sent 0 events" in invoke("sync", "run", "--to", "tensorboard").output


def test_sync_that_does_not_get_through_is_exit_code_1(invoke: Any, run: MadeRun) -> None:
    (run.folder / "tensorboard").write_text("a file where the folder should be")
    result = invoke("sync", "run", "--to", "tensorboard", "--timeout", "5")
    assert (result.exit_code, "not everything" in result.output) == (1, True)


@pytest.mark.parametrize("command", ["sync . --to", "train --env toy/Echo-v0 --model scratch --log"])
def test_all_keys_that_are_missing_are_named(refused: Any, tmp_path: Path, command: str) -> None:
    error = refused(*command.split(), "langfuse,otel")
    assert "LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY" in error
    assert not (tmp_path / "runs").exists()


def test_settings_of_the_env_file_are_in_effect(
    invoke: Any, refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text(
        "OPENAI_API_KEY='sk-file'\nART_SERVER_PORT=1234\nART_CLIENT_WORKERS=3\n"
        "ART_SERVER_TOKEN='TheTokenOfTheFile1234'\n"
    )
    ports: list[int] = []

    def listen(host: str, port: int) -> None:
        ports.append(port)
        raise ConfigError("enough")

    monkeypatch.setattr("art_trainer.serving.http.server.listen", listen)
    workers: list[int] = []
    monkeypatch.setattr(
        "art_trainer.cli.worker.run_workers", lambda c, e, count, n: workers.append(count) or 0
    )
    for flags in ([], ["--port", "0"]):
        assert "enough" in refused("serve", *flags)
    for flags in ([], ["--workers", "2"]):
        assert invoke("worker", "--server", "http://127.0.0.1:1", *flags).exit_code == 0
    assert (ports, workers) == ([1234, 0], [3, 2])
    assert read_token(None) == "TheTokenOfTheFile1234"
    pytest.importorskip("openai")
    policy = load_policy("openai:m@http://127.0.0.1:1/v1", Echo, temperature=0, max_tokens=1)
    assert "sk-file" in str(vars(policy._client)["api_key"])  # type: ignore[attr-defined]
    monkeypatch.setenv("ART_SERVER_PORT", "70000")
    assert "ART_SERVER_PORT" in refused("serve")


def test_log_is_a_setting_like_others() -> None:
    by_words = merge_settings([Layer("flag", {"log": "tensorboard,wandb"})])
    by_list = merge_settings([Layer("run.yaml", {"log": ["tensorboard", "wandb"]})])
    assert by_words.run.log == by_list.run.log == ("tensorboard", "wandb")
    assert merge_settings([Layer("again", by_words.to_mapping())]).run == by_words.run
    with pytest.raises(ConfigError, match=r"log from run\.yaml"):
        merge_settings([Layer("run.yaml", {"log": ["tensorboad"]})])


def test_a_monitor_is_made_of_the_named_sinks_alone(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    without = merge_settings([])
    assert make_dispatcher(without, tmp_path / "run", Echo) is None
    settings = merge_settings([Layer("flag", {"log": "tensorboard", "output_dir": str(tmp_path / "run")})])
    monitor = make_dispatcher(settings, tmp_path / "run", Echo)
    assert monitor is not None
    monitor.on_begin(0)
    monitor.on_end("finished")
    assert [(status.name, status.complete) for status in monitor.statuses] == [("tensorboard", True)]
    assert '"max_turns": 2' in (tmp_path / "run" / "sinks" / "run.json").read_text()
