"""``art-trainer sync``, ``art-trainer config`` and ``--log``."""

from __future__ import annotations

from pathlib import Path

import pytest

from art_trainer.cli import main
from art_trainer.commands.monitoring import make_monitor
from art_trainer.commands.policies import load_policy
from art_trainer.commands.serving import ServeRequest
from art_trainer.commands.settings import Layer, merge_settings
from art_trainer.commands.tokens import read_token
from art_trainer.commands.working import WorkerRequest
from art_trainer.errors import ConfigError
from art_trainer.monitoring.settings import load_settings
from art_trainer.monitoring.sync import describe_run
from tests.art_trainer.monitoring.sink_runs import MadeRun
from tests.art_trainer.toy_envs import Echo


def _exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("WANDB_API_KEY", "LANGFUSE_HOST"):
        monkeypatch.delenv(name, raising=False)


def test_config_shows_what_is_in_force_and_masks_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".env").write_text(
        "WANDB_API_KEY=0123456789secret\nLANGFUSE_HOTS=x\nMLFLOW_TRACKING_URI=https://me:hush@mlflow.example\n"
    )
    monkeypatch.setenv("LANGFUSE_HOST", "http://localhost:3000")
    assert _exit_code("config") == 0
    shown = capsys.readouterr().out
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.strip()}
    assert lines["WANDB_API_KEY"][:4] == ["********", ".env", "line", "1"]
    assert lines["LANGFUSE_HOST"][:2] == ["http://localhost:3000", "environment"]
    assert lines["ART_SERVER_PORT"][1] == "default"
    assert lines["OPENAI_API_KEY"][:2] == ["not", "set"]
    assert "did you mean `LANGFUSE_HOST`?" in shown
    assert lines["MLFLOW_TRACKING_URI"][0] == "https://***@mlflow.example"
    assert "0123456789secret" not in shown


def test_sync_sends_a_run_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    run = MadeRun(tmp_path / "run")
    run.begin()
    run.play()
    assert _exit_code("sync", "run", "--to", "tensorboard") == 0
    assert "tensorboard: sent 14 events of a run that finished" in capsys.readouterr().out
    assert _exit_code("sync", "run", "--to", "tensorboard") == 0
    assert "tensorboard: sent 0 events" in capsys.readouterr().out


def test_sync_that_does_not_get_through_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    run = MadeRun(tmp_path / "run")
    run.begin()
    run.play()
    (run.folder / "tensorboard").write_text("a file where the folder should be")
    assert _exit_code("sync", "run", "--to", "tensorboard", "--timeout", "5") == 1
    assert "not everything" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sync", "run", "--to", "wanbd"), "did you mean `wandb`?"),
        (("sync", "run", "--to", ","), "--to names no sink"),
        (("sync", "run", "--to", "tensorboard"), "holds no run"),
        (("train", "--log", "tensorbord"), "did you mean `tensorboard`?"),
        (("train", "--set", "log=3"), "log is 3"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "run").mkdir()
    assert _exit_code(*arguments) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("command", ["sync run --to", "train --env toy/Echo-v0 --model scratch --log"])
def test_all_keys_that_are_missing_are_told_at_once(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY", "OPENPIPE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "run").mkdir()
    assert _exit_code(*command.split(), "langfuse,openpipe,otel") == 2
    told = capsys.readouterr().err
    assert "langfuse needs LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY, in the environment or in .env" in told
    assert "openpipe needs OPENPIPE_API_KEY" in told
    assert not (tmp_path / "runs").exists()


def test_settings_of_the_file_are_in_force_where_config_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"OPENAI_API_KEY": "sk-file", "ART_SERVER_PORT": "1234", "ART_CLIENT_WORKERS": "3"}
    names["ART_SERVER_TOKEN"] = "of the file"
    for name in names:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".env").write_text("".join(f"{name}='{value}'\n" for name, value in names.items()))
    served: list[ServeRequest] = []
    working: list[WorkerRequest] = []
    monkeypatch.setattr(
        "art_trainer.commands.serving.run_serve", lambda request, console: served.append(request)
    )
    monkeypatch.setattr(
        "art_trainer.commands.working.run_worker", lambda request, console: working.append(request) or 0
    )
    for port, flags in ((1234, []), (0, ["--port", "0"])):
        assert _exit_code("serve", *flags) == 0
        assert served[-1].port == port
    for workers, flags in ((3, []), (2, ["--workers", "2"])):
        assert _exit_code("worker", "--server", "http://127.0.0.1:1", *flags) == 0
        assert working[-1].workers == workers
    assert read_token(None) == "of the file"
    pytest.importorskip("openai")
    policy = load_policy("openai:m@http://127.0.0.1:1/v1", Echo, temperature=0, max_tokens=1)
    assert "sk-file" in str(vars(policy._client)["api_key"])  # type: ignore[attr-defined]
    monkeypatch.setenv("ART_SERVER_PORT", "70000")
    assert _exit_code("serve") == 2


def test_without_a_file_the_settings_are_the_commands_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ART_SERVER_PORT", "ART_CLIENT_WORKERS"):
        monkeypatch.delenv(name, raising=False)
    services = load_settings()
    assert (services.integer("ART_SERVER_PORT"), services.integer("ART_CLIENT_WORKERS")) == (8270, 1)


def test_log_is_a_setting_like_others() -> None:
    by_words = merge_settings([Layer("flag", {"log": "tensorboard,wandb"})])
    by_list = merge_settings([Layer("run.yaml", {"log": ["tensorboard", "wandb"]})])
    assert by_words.run.log == by_list.run.log == ["tensorboard", "wandb"]
    assert merge_settings([Layer("again", by_words.to_mapping())]).run == by_words.run
    with pytest.raises(ConfigError, match=r"log from run\.yaml"):
        merge_settings([Layer("run.yaml", {"log": ["tensorboad"]})])


def test_a_monitor_is_made_of_the_named_sinks_alone(tmp_path: Path) -> None:
    from rich.console import Console

    pytest.importorskip("tensorboard")
    without = merge_settings([])
    assert make_monitor(without, tmp_path / "run", Echo, Console()) is None
    settings = merge_settings([Layer("flag", {"log": "tensorboard", "output_dir": str(tmp_path / "run")})])
    monitor = make_monitor(settings, tmp_path / "run", Echo, Console())
    assert monitor is not None
    monitor.on_begin(0)
    monitor.on_end("finished")
    assert [(status.name, status.complete) for status in monitor.statuses] == [("tensorboard", True)]
    assert '"max_turns": 2' in (tmp_path / "run" / "sinks" / "run.json").read_text()


def test_secrets_among_the_settings_are_not_told(tmp_path: Path) -> None:
    settings = {"judge_args": {"api_key": "sk-1234567890", "temperature": 0}, "env": "e", "model": "a/b"}
    run = describe_run(tmp_path / "run", settings)
    assert run.config["judge_args"] == {"temperature": 0}
    assert run.tags == ("ART", "GRPO", "b")
