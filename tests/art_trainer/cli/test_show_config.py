"""``art-trainer config``, ``.env`` and ``--log``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from art_trainer.cli.access import read_token
from art_trainer.cli.policies import load_policy
from art_trainer.errors import ConfigError
from art_trainer.tracking.env_vars import ENV_VARS
from art_trainer.tracking.loggers.base import LoggerCallback
from art_trainer.training.run_settings import Layer, merge_settings
from art_trainer.training.run_setup import make_loggers
from tests.art_trainer.toy_envs import Echo


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, and no settings of services in the environment."""
    monkeypatch.chdir(tmp_path)
    for variable in ENV_VARS:
        monkeypatch.delenv(variable.name, raising=False)


def test_config_shows_what_is_in_effect_and_masks_secrets(
    invoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text(
        "WANDB_API_KEY=0123456789secret\nWANDB_ENTTY=x\nMYSQL_PORT=1\nWANDB_BASE_URL=https://me:hush@wandb.example\n"
    )
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    shown = invoke("config").output
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.strip()}
    assert lines["WANDB_API_KEY"][:4] == ["********", ".env", "line", "1"]
    assert lines["WANDB_PROJECT"][:2] == ["mine", "environment"]
    assert lines["ART_SERVER_PORT"][1] == "default"
    assert lines["OPENAI_API_KEY"][:2] == ["not", "set"]
    assert "did you mean `WANDB_ENTITY`?" in shown
    assert lines["WANDB_BASE_URL"][0] == "https://***@wandb.example"
    assert "0123456789secret" not in shown
    assert "MYSQL_PORT" not in shown, "a name of another program"


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


def test_keys_in_the_env_file_reach_the_loggers_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", {"WANDB_ENTITY": "us"})
    (tmp_path / ".env").write_text("WANDB_API_KEY=abc\nWANDB_ENTITY=them\nOPENAI_API_KEY=sk-1\n")
    assert make_loggers(merge_settings([])) == []
    assert os.environ == {"WANDB_ENTITY": "us"}
    pytest.importorskip("tensorboard")
    (callback,) = make_loggers(merge_settings([Layer("flag", {"log": "tensorboard"})]))
    assert isinstance(callback, LoggerCallback)
    known = ("WANDB_API_KEY", "WANDB_ENTITY", "WANDB_PROJECT", "OPENAI_API_KEY")
    assert [os.environ.get(name) for name in known] == ["abc", "us", "art-gym", None]
