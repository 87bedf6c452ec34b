"""``art-trainer serve`` from its start to its end: what it prints, who may use it, and how it is stopped."""

import io
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import httpx
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from art_trainer.checkpoint import list_checkpoints
from art_trainer.cli_serve import add_serve_command
from art_trainer.commands.certificates import certificate_of
from art_trainer.commands.gathering import TrainRequest
from art_trainer.commands.serving import DEFAULTS, ServeRequest, run_serve
from art_trainer.dashboard import page
from art_trainer.errors import CheckpointError, ConfigError
from art_trainer.remote.worker import Worker
from art_trainer.remote.worker_errors import UnreachableError
from art_trainer.run_folder import RunFolder
from art_trainer.trainer import GRPOTrainer
from tests.art_trainer import toy_envs
from tests.art_trainer.remote.server_helpers import TOKEN, until

SETTINGS: Mapping[str, Any] = {
    "env": "toy/Echo-v0",
    "model": "scratch",
    "scratch": {"layers": 1, "hidden_size": 16, "heads": 2},
    "max_steps": 2,
    "groups_per_step": 2,
    "num_generations": 2,
    "eval_episodes": 4,
    "threads": 1,
    "baselines": [],
}


class Serving:
    """A server in this thread, and somebody who waits for it in another."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert toy_envs.Echo  # registers it
        monkeypatch.setenv("ART_SERVER_TOKEN", TOKEN)
        self.folder = folder
        self.words = io.StringIO()
        self.seen: dict[str, Any] = {}

    @property
    def url(self) -> str:
        found = re.search(r"^Server: (\S+)$", self.words.getvalue(), re.MULTILINE)
        return found[1] if found else ""

    def get(self, path: str, token: str | None = TOKEN) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.get(self.url + path, headers=headers, trust_env=False, timeout=30)

    def state(self) -> str:
        return str(self.get("/status").json()["state"])

    def work(self, patience: float = 60) -> None:
        # Not while this process loads a checkpoint: Transformers makes one model at a time.
        until(lambda: self.state() == "starved")
        worker = Worker(
            self.url,
            lambda env, args: lambda: gym.make(env, **args),
            self.folder / "cache",
            token=TOKEN,
            capacity=4,
            device="cpu",
            patience=patience,
            say=lambda line: None,
        )
        worker.run()

    def run(self, meanwhile: Callable[[], None], *, resume: bool = False, **options: Any) -> RunFolder:
        """Serve; meanwhile do something in another thread, once the server is up."""
        faults: list[BaseException] = []
        self.words.truncate(0)

        def follow() -> None:
            try:
                until(lambda: self.url != "")
                meanwhile()
            except BaseException as fault:
                faults.append(fault)
                os.kill(os.getpid(), signal.SIGINT)

        run = self.folder / "run"
        flags = {**SETTINGS, "output_dir": str(run)}
        training = TrainRequest(
            flags, {}, None, run if resume else None, options.pop("step", None), defaults=DEFAULTS
        )

        def give_up() -> None:
            faults.append(AssertionError(f"it hangs: {self.get('/status').text}"))
            os.kill(os.getpid(), signal.SIGINT)

        thread, watchdog = threading.Thread(target=follow), threading.Timer(300, give_up)
        thread.start()
        watchdog.start()
        try:
            console = Console(file=self.words, width=200)
            return run_serve(ServeRequest(training, drain_seconds=3, **options), console)
        finally:
            watchdog.cancel()
            thread.join(60)
            if faults:
                raise faults[0]


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serving:
    return Serving(tmp_path, monkeypatch)


def test_it_trains_with_workers_and_answers_everything_else_meanwhile(serving: Serving) -> None:
    def look_and_work() -> None:
        until(lambda: serving.state() == "starved")
        serving.seen["models"] = serving.get("/v1/models").json()["data"][1]["id"]
        serving.seen["page"] = serving.get("/").status_code
        serving.seen["login"] = serving.get("/", None)
        serving.seen["closed"] = [serving.get(path, None).status_code for path in ("/status", "/v1/models")]
        serving.seen["runs"] = serving.get("/api/runs").json()
        serving.work()

    folder = serving.run(look_and_work)
    assert serving.seen["models"].endswith("@0")
    assert serving.seen["page"] == 200
    assert (serving.seen["login"].status_code, serving.seen["login"].content) == (401, page())
    assert serving.seen["closed"] == [401, 401]
    assert len(folder.metrics().records) == 2
    assert folder.evaluation("after") is not None
    assert folder.settings()["save_steps"] == DEFAULTS["save_steps"] == 10
    words = serving.words.getvalue()
    assert f"Worker: art-trainer worker --server {serving.url}\n" in words
    assert "the token that ART_SERVER_TOKEN holds" in words
    assert TOKEN not in words
    texts = (file.read_text(errors="replace") for file in folder.path.rglob("*") if file.is_file())
    assert not any(TOKEN in text for text in texts)


def test_sigterm_and_a_request_save_a_checkpoint_and_exit_with_0(serving: Serving) -> None:
    def terminate() -> None:
        until(lambda: serving.state() == "starved")
        os.kill(os.getpid(), signal.SIGTERM)

    def ask() -> None:
        until(lambda: serving.state() == "starved")
        headers = {"authorization": f"Bearer {TOKEN}"}
        assert (
            httpx.post(f"{serving.url}/shutdown", headers=headers, trust_env=False, timeout=30).status_code
            == 202
        )

    for meanwhile, resume in ((terminate, False), (ask, True)):
        with pytest.raises(typer.Exit) as ended:
            serving.run(meanwhile, resume=resume, api=False, dashboard=False)
        assert ended.value.exit_code == 0
        assert len(list_checkpoints(serving.folder / "run" / "checkpoints")) == 1
        assert "art-trainer serve --resume" in serving.words.getvalue()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    folder = serving.run(serving.work, resume=True)
    assert len(folder.metrics().records) == 2


def test_ctrl_c_exits_with_130(serving: Serving) -> None:
    def interrupt() -> None:
        until(lambda: serving.state() == "starved")
        os.kill(os.getpid(), signal.SIGINT)

    file = serving.folder / "token"
    file.write_text(f"{TOKEN}\n")
    with pytest.raises(typer.Exit) as ended:
        serving.run(interrupt, api=False, token_file=file, host="127.0.0.1")
    assert ended.value.exit_code == 130
    words = serving.words.getvalue()
    assert f"--server {serving.url} --token-file {file}\n" in words
    assert "OpenAI" not in words
    assert len(list_checkpoints(serving.folder / "run" / "checkpoints")) == 1


def test_a_server_that_breaks_down_does_not_send_its_workers_away(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(trainer: GRPOTrainer, groups: Any) -> dict[str, float]:
        raise CheckpointError("the disk is full")

    def work() -> None:
        with pytest.raises(UnreachableError, match="given up"):
            serving.work(patience=1)

    monkeypatch.setattr(GRPOTrainer, "update_policy", break_down)
    with pytest.raises(CheckpointError, match="the disk is full"):
        serving.run(work, api=False, dashboard=False)


def test_what_was_played_after_a_step_that_is_gone_back_to_is_given_up(serving: Serving) -> None:
    left = serving.folder / "run" / "journal"
    serving.run(serving.work)
    left.mkdir(exist_ok=True)
    (left / "batch-000007.jsonl").write_text("not a line of a journal\n" * 2)
    run = serving.folder / "run"
    step = int(list_checkpoints(run / "checkpoints")[-1].name.rpartition("-")[2])
    serving.run(lambda: None, resume=True, step=step, api=False)
    assert not (left / "batch-000007.jsonl").exists()


def test_what_cannot_be_served_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ART_SERVER_TOKEN", raising=False)
    training = TrainRequest({**SETTINGS, "output_dir": str(tmp_path / "run")}, {}, None, None)

    def refused(**options: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            run_serve(ServeRequest(training, **options), Console(quiet=True))
        return str(caught.value)

    assert "there is no token" in refused(host="0.0.0.0")
    assert "'a.example' is allowed as a name" in refused(allowed_hosts=("localhost", "a.example"))
    assert "cannot be read" in refused(token_file=tmp_path / "none")
    (tmp_path / "short").write_text("abc\n")
    assert "3 characters" in refused(token_file=tmp_path / "short")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="give both"):
        certificate_of(tmp_path / "short", None)
    with pytest.raises(ConfigError, match="of no use"):
        certificate_of(tmp_path / "short", tmp_path / "short")
    with pytest.raises(ConfigError, match="of no use"):
        certificate_of(tmp_path / "short", tmp_path / "none")
    assert certificate_of(None, None) is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port} cannot be listened on" in refused(port=port, api=False)
    assert not (tmp_path / "run").exists()


def test_its_flags_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ServeRequest] = []
    monkeypatch.setattr(
        "art_trainer.commands.serving.run_serve", lambda request, console: asked.append(request)
    )
    app = typer.Typer()
    app.callback()(lambda: None)
    add_serve_command(app)
    words = "serve --env toy/Echo-v0 --env-args words=2 --max-staleness 1 --set groups_per_step=3 --no-api "
    words += "--host 10.0.0.5 --allowed-host a.example --allowed-host b.example --lease-seconds 5"
    result = CliRunner().invoke(app, words.split(), env={"ART_SERVER_PORT": "1234"})
    assert result.exit_code == 0, result.output
    (request,) = asked
    assert request.training.flags == {"env": "toy/Echo-v0", "env_args": {"words": 2}, "max_staleness": 1}
    assert request.training.overrides == {"groups_per_step": 3}
    assert (request.host, request.port, request.lease_seconds) == ("10.0.0.5", 1234, 5)
    assert request.allowed_hosts == ("a.example", "b.example")
    assert (request.api, request.dashboard) == (False, True)
    assert request.training.defaults == {"save_steps": 10, "process_timeout": 86400.0}
