"""``art-trainer serve`` from its start to its end: what it prints, who may use it, and how it is stopped."""

import contextlib
import io
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner

from art_trainer.cli.main import app
from art_trainer.cli.options import show_logs
from art_trainer.cli.run_config import gather_settings
from art_trainer.cli.serve import DEFAULTS, serve
from art_trainer.distributed.worker.connection import UnreachableError
from art_trainer.distributed.worker.worker import Worker
from art_trainer.errors import CheckpointError, ConfigError, StalledError
from art_trainer.rollout.envs import env_maker
from art_trainer.serving.dashboard.router import page
from art_trainer.signals import StopRequest
from art_trainer.tracking.run_dir import RunFolder, list_checkpoints
from art_trainer.training.run_settings import Settings
from art_trainer.training.trainer import GRPOTrainer
from tests.art_trainer import toy_envs
from tests.art_trainer.distributed.server_helpers import TOKEN
from tests.art_trainer.waiting import interrupted, until

SETTINGS: Mapping[str, Any] = {
    "env": "toy/Echo-v0",
    "model": "scratch",
    "scratch": {"layers": 1, "hidden_size": 16, "heads": 2},
    "warm_start": None,
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

    @property
    def url(self) -> str:
        found = re.search(r"^Server: (\S+)$", self.words.getvalue(), re.MULTILINE)
        return found[1] if found else ""

    def ask(self, path: str, token: str | None = TOKEN, method: str = "GET") -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.request(method, self.url + path, headers=headers, trust_env=False, timeout=300)

    def starved(self) -> bool:
        """Whether there are leases, but no worker."""
        return self.url != "" and self.ask("/status").json()["state"] == "starved"

    def work(self, patience: float = 60) -> None:
        # Not while this process loads a checkpoint: Transformers makes one model at a time.
        until(self.starved)
        options: dict[str, Any] = {"token": TOKEN, "capacity": 4, "device": "cpu", "patience": patience}
        Worker(self.url, env_maker, self.folder / "cache", **options).run()

    def run(self, meanwhile: Callable[[], None], *, resume: bool = False, **options: Any) -> RunFolder:
        """Serve; meanwhile do something in another thread, once the server is up."""
        self.words.truncate(0)

        def follow() -> None:
            try:
                until(lambda: self.url != "")
                meanwhile()
            except BaseException:
                os.kill(os.getpid(), signal.SIGINT)
                raise

        run = self.folder / "run"
        which = {"resume": run if resume else None, "resume_step": options.pop("step", None)}
        flags = {**SETTINGS, "output_dir": str(run)}
        settings = gather_settings(flags, overrides={}, defaults=DEFAULTS, **which)
        with ThreadPoolExecutor(1) as thread:
            following = thread.submit(follow)
            try:
                show_logs()
                with contextlib.redirect_stdout(self.words):
                    serve(settings, port=0, drain_seconds=3, **options)
                return settings.folder
            finally:
                following.result(60)


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serving:
    return Serving(tmp_path, monkeypatch)


def test_it_trains_with_workers_and_answers_everything_else_meanwhile(serving: Serving) -> None:
    seen: dict[str, httpx.Response] = {}

    def look_and_work() -> None:
        until(serving.starved)
        seen.update({path: serving.ask(path) for path in ("/v1/models", "/", "/api/runs")})
        seen.update({f"closed {path}": serving.ask(path, None) for path in ("/status", "/v1/models", "/")})
        serving.work()

    folder = serving.run(look_and_work)
    assert seen["/v1/models"].json()["data"][1]["id"].endswith("@0")
    assert [answer.status_code for answer in seen.values()] == [200] * 3 + [401] * 3
    assert seen["closed /"].content == page().body
    assert len(folder.metrics().records) == 2
    assert folder.evaluation("after") is not None
    assert folder.settings()["save_steps"] == DEFAULTS["save_steps"] == 10
    words = serving.words.getvalue()
    assert f"Worker: art-trainer worker --server {serving.url}\n" in words
    assert "the token in $ART_SERVER_TOKEN" in words
    texts = [file.read_text(errors="replace") for file in folder.path.rglob("*") if file.is_file()]
    assert not any(TOKEN in text for text in [words, *texts])


def test_sigterm_and_a_request_save_a_checkpoint_and_exit_with_0(serving: Serving) -> None:
    def request() -> None:
        until(serving.starved)
        assert serving.ask("/shutdown", method="POST").status_code == 202

    def stopped(meanwhile: Callable[[], None], resume: bool) -> None:
        with pytest.raises(typer.Exit) as ended:
            serving.run(meanwhile, resume=resume, no_api=True, no_dashboard=True)
        assert ended.value.exit_code == 0
        assert len(list_checkpoints(serving.folder / "run" / "checkpoints")) == 1
        assert "art-trainer serve --resume" in serving.words.getvalue()

    with interrupted(serving.starved, signal.SIGTERM):
        stopped(lambda: None, resume=False)
    stopped(request, resume=True)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    folder = serving.run(serving.work, resume=True)
    assert len(folder.metrics().records) == 2


def test_ctrl_c_exits_with_130(serving: Serving) -> None:
    file = serving.folder / "token"
    file.write_text(f"{TOKEN}\n")
    with pytest.raises(typer.Exit) as ended, interrupted(serving.starved):
        serving.run(lambda: None, no_api=True, token_file=file, host="127.0.0.1")
    assert ended.value.exit_code == 130
    words = serving.words.getvalue()
    assert f"--server {serving.url} --token-file {file}\n" in words
    assert "OpenAI" not in words
    assert len(list_checkpoints(serving.folder / "run" / "checkpoints")) == 1


@pytest.mark.e2e
def test_workers_wait_for_a_server_that_broke_down(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(trainer: GRPOTrainer, groups: Any) -> dict[str, float]:
        raise CheckpointError("the disk is full")

    def work() -> None:
        with pytest.raises(UnreachableError, match="gave up"):
            serving.work(patience=1)

    monkeypatch.setattr(GRPOTrainer, "update_policy", break_down)
    with pytest.raises(CheckpointError, match="the disk is full"):
        serving.run(work, no_api=True, no_dashboard=True)


def test_workers_of_a_run_that_cannot_learn_are_dismissed(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stall(trainer: GRPOTrainer, groups: Any) -> dict[str, float]:
        raise StalledError("no gradient")

    monkeypatch.setattr(GRPOTrainer, "update_policy", stall)
    with pytest.raises(StalledError, match=r"no gradient\. The checkpoint is"):
        serving.run(serving.work, no_api=True, no_dashboard=True)


def test_results_after_the_step_to_resume_at_are_dropped(serving: Serving) -> None:
    run = serving.run(serving.work)
    left = run.path / "journal" / "results.sqlite-left"
    left.write_bytes(b"")
    step = int(list_checkpoints(run.path / "checkpoints")[-1].name.rpartition("-")[2])
    serving.run(lambda: None, resume=True, step=step, no_api=True)
    assert not left.exists()


def test_wrong_options_are_refused_before_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ART_SERVER_TOKEN", raising=False)
    settings = gather_settings({**SETTINGS, "output_dir": str(tmp_path / "run")}, overrides={})
    (tmp_path / "short").write_text("abc\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refusals: list[tuple[dict[str, Any], str]] = [
            ({"host": "0.0.0.0"}, "there is no token"),
            ({"allowed_host": ("localhost", "a.example")}, "'a.example' is an allowed host name"),
            ({"token_file": tmp_path / "none"}, "cannot be read"),
            ({"token_file": tmp_path / "short"}, "3 characters"),
            ({"tls_cert": tmp_path / "short"}, "give both"),
            ({"tls_cert": tmp_path / "short", "tls_key": tmp_path / "short"}, "cannot be used"),
            ({"tls_cert": tmp_path / "short", "tls_key": tmp_path / "none"}, "cannot be used"),
            ({"port": port, "no_api": True}, f"127.0.0.1:{port} cannot be listened on"),
        ]
        for options, words in refusals:
            with pytest.raises(ConfigError, match=words):
                serve(settings, **{"port": 0, **options})
    assert not (tmp_path / "run").exists()


def test_its_flags_are_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[tuple[Settings, Any, dict[str, Any]]] = []

    def run_training(settings: Settings, console: object, make_setup: Any) -> None:
        with make_setup(None):
            pass

    @contextlib.contextmanager
    def server_setup(
        settings: Settings, policy: object, stop: object, options: Any, drain_seconds: float, **parts: Any
    ) -> Any:
        asked.append((settings, options, parts))
        yield None, "http://x"

    monkeypatch.setenv("ART_SERVER_TOKEN", TOKEN)
    monkeypatch.setattr("art_trainer.cli.training_run.run_training", run_training)
    monkeypatch.setattr("art_trainer.cli.serve.server_setup", server_setup)
    monkeypatch.setattr("art_trainer.serving.http.server.listen", lambda *address: io.BytesIO())
    words = "serve --env toy/Echo-v0 --env-args words=2 --max-staleness 1 --no-api --host 10.0.0.5"
    words += " --set groups_per_step=3 --set importance_sampling_correction=true --lease-seconds 5"
    words += " --allowed-host a.example --allowed-host b.example"
    result = CliRunner().invoke(app, words.split(), env={"ART_SERVER_PORT": "1234"})
    assert result.exit_code == 0, result.output
    [(settings, options, parts)] = asked
    assert (settings.run.env, settings.run.env_args) == ("toy/Echo-v0", {"words": 2})
    assert (settings.config.max_staleness, settings.config.groups_per_step) == (1, 3)
    assert (settings.config.save_steps, settings.run.process_timeout) == (10, 86400.0)
    assert (options.host, options.port, options.leases.lease_seconds) == ("10.0.0.5", 1234, 5)
    assert options.allowed_hosts == ("a.example", "b.example")
    assert parts == {"api": False, "dashboard": True}


def test_several_requests_to_end_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr("_thread.interrupt_main", lambda: done.append("interrupted"))
    stop = StopRequest()
    stop.then = lambda: done.append("drained")
    with stop.listening():
        requests = [threading.Thread(target=stop.request) for _ in range(4)]
        for request in requests:
            request.start()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        for request in requests:
            request.join(20)
        until(lambda: stop.requested)
    assert sorted(done) == ["drained", "interrupted"]
