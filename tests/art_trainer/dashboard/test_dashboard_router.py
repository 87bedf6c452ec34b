"""The dashboard's routes, without a browser."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import typer
from fastapi import FastAPI
from rich.console import Console

from art_trainer.cli_dash import add_dash_command
from art_trainer.commands.dashboard import DashRequest, run_dash, serving
from art_trainer.dashboard import PAGE_HEADERS, RunsSource, dashboard_router, page
from art_trainer.dashboard import router as router_module
from art_trainer.errors import ConfigError
from art_trainer.remote.status import QueueStatus, ServerStatus
from tests.art_trainer.dashboard.dash_runs import MARKUP, REPLY, DashRun, group, judged

TOKEN = "a-token-of-some-length"


def server_status(**fields: Any) -> ServerStatus:
    """What a training server without workers tells."""
    known: dict[str, Any] = {
        "state": "starved", "run": "first", "env": "toy/Mail-v0", "step": 2, "max_steps": 10,
        "policy_version": 2, "uptime_seconds": 5.0, "seconds_left": None, "clients": [],
        "queue": QueueStatus(waiting=8, leased=0, finished=0, groups_waiting=2), "leases": [], "results": {},
    }  # fmt: skip
    return ServerStatus(**known | fields)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    first = DashRun(root / "first")
    first.step(1)
    first.step(2, [group(7, (1.0, float("nan")))], kl=float("inf"))
    first.step(3, [type(group(8, (1.0,)))((judged(8),))])
    first.warn(2)
    first.evaluate("before", 3)
    first.evaluate("after", 17)
    first.evaluate("baseline-random", 0)
    first.save_tokenizer()
    DashRun(root / "second")
    (root / "notes").mkdir()
    return root


class Client:
    """Asks an application as a browser would, in this process."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def get(self, path: str, **params: Any) -> Any:
        return asyncio.run(self._get(path, params))

    async def _get(self, path: str, params: dict[str, Any]) -> httpx2.Response:
        transport = httpx2.ASGITransport(self._app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get(path, params=params)


@pytest.fixture
def client(runs: Path) -> Client:
    app = FastAPI()
    app.include_router(dashboard_router(RunsSource([runs], server_status)))
    return Client(app)


def test_runs_are_found_below_a_folder_and_told_in_short(client):
    first, second = client.get("/api/runs").json()
    assert (first["id"], first["name"], first["env"], first["model"]) == (
        0,
        "first",
        "toy/Mail-v0",
        "art-tiny",
    )
    assert (first["step"], first["max_steps"], first["state"]) == (3, 10, "running")
    assert first["seconds_left"] == pytest.approx(3.0 * 7)
    assert (first["episodes"], first["warnings"]) == (7, 1)
    assert first["latest"]["reward"] == 0.3
    assert first["latest"]["kl"] == pytest.approx(0.01 / 3)
    assert (second["name"], second["state"], second["step"], second["episodes"]) == (
        "second",
        "starting",
        0,
        0,
    )


def test_a_run_that_begins_later_is_found_and_numbers_stay(tmp_path):
    source = RunsSource([tmp_path])
    assert source.runs() == []
    DashRun(tmp_path / "b", max_steps=1).step(1)
    source._summaries = (float("-inf"), [])
    assert [(run.name, run.state) for run in source.runs()] == [("b", "finished")]
    DashRun(tmp_path / "a")
    source._summaries = (float("-inf"), [])
    assert [(run.id, run.name) for run in source.runs()] == [(0, "b"), (1, "a")]


def test_runs_of_one_name_are_told_apart(tmp_path):
    for parent in ("x", "y"):
        DashRun(tmp_path / parent / "run")
    assert [run.name for run in RunsSource([tmp_path / "x", tmp_path / "y"]).runs()] == ["x/run", "y/run"]


def test_metrics_come_once(client):
    found = client.get("/api/runs/0/metrics").json()
    assert found["columns"]["reward"] == [0.1, 0.2, 0.3]
    assert found["columns"]["kl"][1] is None
    again = client.get("/api/runs/0/metrics", after=found["cursor"]).json()
    assert (again["rows"], again["reset"]) == (0, False)
    assert client.get("/api/runs/1/metrics").json()["columns"] == {}


def test_events_and_evaluations(client):
    (event,) = client.get("/api/runs/0/events").json()
    assert (event["step"], event["name"]) == (2, "entropy")
    evaluations = client.get("/api/runs/0/evaluations").json()
    assert [(one["name"], one["baseline"]) for one in evaluations] == [
        ("before", False), ("after", False), ("random", True),
    ]  # fmt: skip
    assert evaluations[1]["success"]["value"] == 0.85
    assert evaluations[1]["success"]["low"] < 0.85 < evaluations[1]["success"]["high"]
    assert client.get("/api/runs/1/evaluations").json() == []


def test_a_damaged_evaluation_is_told_beside_the_others(tmp_path):
    run = DashRun(tmp_path / "run")
    run.evaluate("before", 3)
    (tmp_path / "run" / "evaluations" / "after.json").write_text("{}")
    before, after = RunsSource([tmp_path]).evaluations(0)
    assert "fault" not in before
    assert "after.json is not an evaluation" in after["fault"]


def test_episodes_by_query(client):
    found = client.get("/api/runs/0/episodes", sort="reward", limit=3, outcome="success").json()
    assert [row["reward"] for row in found["rows"]] == [1.0, 1.0, 1.0]
    assert (found["matches"], found["recorded"], found["complete"]) == (4, 7, True)
    nan = client.get("/api/runs/0/episodes", task="task-7").json()["rows"]
    assert [row["reward"] for row in nan] == [1.0, None]


@pytest.mark.parametrize(
    "params",
    [{"limit": 501}, {"limit": 0}, {"sort": "seed"}, {"outcome": "bad"}, {"offset": -1}, {"text": "x" * 201}],
)
def test_other_queries_are_refused(client, params):
    assert client.get("/api/runs/0/episodes", **params).status_code == 422


def test_a_whole_episode(client):
    found = client.get("/api/runs/0/episodes/1/1").json()
    assert (found["task_id"], found["reward"], found["success"]) == ("task-2", 0.0, False)
    assert [(one["place"], one["reward"]) for one in found["attempts"]] == [(0, 1.0), (1, 0.0)]
    first, second = found["turns"]
    assert "".join(first["texts"]) == first["reply"] == REPLY
    assert first["logprobs"] == [-0.5 * k for k in range(len(first["texts"]))]
    assert first["versions"] == [0]
    assert second["logprobs"] == [-0.25, None]
    assert "histories" not in found


def test_judgements_and_markup_come_as_they_are(client):
    found = client.get("/api/runs/0/episodes/3/0").json()
    assert found["judgements"]["ruler"] == {
        "score": 0.75, "explanation": f"Well done {MARKUP}", "parts": {"brevity": 0.5},
    }  # fmt: skip
    assert found["facts"] == {"note": MARKUP}
    assert found["independent_reward"] == 0.5


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/2/metrics",
        "/api/runs/7/events",
        "/api/runs/2/evaluations",
        "/api/runs/2/episodes",
        "/api/runs/0/episodes/9/0",
        "/api/runs/0/episodes/1/4",
        "/api/runs/1/episodes/1/0",
    ],
)
def test_what_is_not_there_is_404_with_words(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert "no" in answer.json()["error"]


@pytest.mark.parametrize("name", ["..", "first", "%2e%2e", "-1", "0%2F..%2F1"])
def test_a_run_is_a_number_and_no_path(client, name):
    assert client.get(f"/api/runs/{name}/metrics").status_code in (404, 422)


def test_damaged_records_are_told(tmp_path):
    run = DashRun(tmp_path / "run")
    run.step(1)
    file = run.folder / "episodes.jsonl.zst"
    file.write_bytes(file.read_bytes()[:-3] + b"xyz")
    app = FastAPI()
    app.include_router(dashboard_router(RunsSource([tmp_path])))
    answer = Client(app).get("/api/runs/0/episodes/1/0")
    assert answer.status_code == 409
    assert "damaged" in answer.json()["error"]
    assert "damaged" in Client(app).get("/api/runs/0/episodes").json()["fault"]


def test_status_is_the_servers_or_null(client, runs):
    assert client.get("/api/status").json()["queue"]["waiting"] == 8
    app = FastAPI()
    app.include_router(dashboard_router(RunsSource([runs])))
    assert Client(app).get("/api/status").json() is None


def test_the_page_holds_no_data_and_allows_only_its_own_script(client):
    answer = client.get("/")
    assert answer.content == page()
    assert answer.headers["content-security-policy"] == PAGE_HEADERS["Content-Security-Policy"]
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    text = answer.text
    assert "task-" not in text
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", text), "nothing is loaded"
    assert not re.search(r"\son[a-z]+\s*=\s*[\"']", re.sub(r"<script.*?</script>", "", text, flags=re.S))
    ours = text.rsplit("<script", 1)[1]
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert sink not in ours


def test_the_stream_tells_of_what_is_new(tmp_path):
    run = DashRun(tmp_path / "run")
    source = RunsSource([tmp_path])

    async def listen() -> list[tuple[str, Any]]:
        heard = []
        events = router_module._events(source, 0.01)
        async for block in events:
            for event in block.decode().split("\n\n"):
                name, _, data = event.partition("\ndata: ")
                if data:
                    heard.append((name.removeprefix("event: "), json.loads(data)))
            if len(heard) == 1:
                run.step(1)
            if len(heard) == 2:
                await events.aclose()
                break
        return heard

    (_, [before]), (name, [after]) = asyncio.run(asyncio.wait_for(listen(), 5))
    assert name == "runs"
    assert (before["step"], after["step"]) == (0, 1)
    assert before["metrics"] != after["metrics"]


def test_the_stream_shows_that_it_lives_and_gives_the_servers_status():
    class Quiet:
        def __init__(self, status: ServerStatus | None) -> None:
            self.status_now = status

        def runs(self) -> list[Any]:
            return []

        def status(self) -> ServerStatus | None:
            return self.status_now

    async def blocks(source: Any, count: int) -> list[bytes]:
        events = router_module._events(source, 0.0)
        found = [await anext(events) for _ in range(count)]
        await events.aclose()
        return found

    assert asyncio.run(blocks(Quiet(None), 3))[2] == b": nothing new\n\n"
    told = asyncio.run(blocks(Quiet(server_status()), 4))
    assert all(b"event: status\ndata: {" in block for block in told[1:])


@pytest.fixture
def guarded(runs: Path, tmp_path: Path) -> Iterator[str]:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with serving(DashRequest((runs,), token_file=file)) as url:
        yield url


def test_the_command_guards_every_route(guarded):
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    with httpx2.Client(base_url=guarded, trust_env=False) as web:
        login = web.get("/")
        assert (login.status_code, login.content) == (401, page())
        assert login.headers["content-security-policy"] == PAGE_HEADERS["Content-Security-Policy"]
        paths = [
            "/api/runs", "/api/status", "/api/stream", "/api/runs/0/metrics", "/api/runs/0/events",
            "/api/runs/0/evaluations", "/api/runs/0/episodes", "/api/runs/0/episodes/1/0", "/openapi.json",
        ]  # fmt: skip
        known = {route.path for route in dashboard_router(RunsSource([])).routes}
        assert len(known) == len(paths), "every route is in this list, and one that is off"
        for path in paths:
            assert web.get(path).status_code == 401
            assert web.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
            assert web.get(path, params={"token": TOKEN}).status_code == 401
        assert web.get("/api/runs", headers=bearer).json()[0]["name"] == "first"
        assert web.get("/", headers=bearer).status_code == 200
        assert web.get("/openapi.json", headers=bearer).status_code == 404
        foreign = {**bearer, "Origin": "http://evil.example"}
        assert web.get("/api/runs", headers=foreign).status_code == 403
        assert web.get("/api/runs", headers={**bearer, "Host": "evil.example"}).status_code == 400
        own = {**bearer, "Origin": guarded.rstrip("/")}
        assert web.get("/api/runs", headers=own).status_code == 200


def test_the_stream_ends_with_the_server(runs):
    began = time.monotonic()
    with serving(DashRequest((runs,))) as url, httpx2.Client(trust_env=False) as web:
        answer = web.send(web.build_request("GET", f"{url}api/stream"), stream=True)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert next(answer.iter_lines()) == "retry: 2000"
        answer.close()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"folders": (Path("no/such/folder"),)}, "no folder at no/such/folder"),
        ({"host": "0.0.0.0"}, "there is no token"),
        ({"allowed_hosts": ("runs.example",)}, "'runs.example' is allowed as a name"),
        ({"token_file": Path("no/such/file")}, "--token-file"),
        ({"host": "203.0.113.7", "token_file": "token"}, "cannot listen on 203.0.113.7"),
    ],
)
def test_the_command_says_what_is_wrong(runs, tmp_path, monkeypatch, change, words):
    monkeypatch.delenv("ART_SERVER_TOKEN", raising=False)
    if change.get("token_file") == "token":
        change = {**change, "token_file": tmp_path / "token"}
        change["token_file"].write_text(TOKEN)
    with (
        pytest.raises(ConfigError, match=re.escape(words)),
        serving(DashRequest(**{"folders": (runs,)} | change)),
    ):
        pass


def test_a_server_that_stops_ends_streams_that_are_read(runs, caplog):
    with httpx2.Client(trust_env=False) as web:
        with serving(DashRequest((runs,))) as url:
            answer = web.send(web.build_request("GET", f"{url}api/stream"), stream=True)
            lines = answer.iter_lines()
            assert next(lines) == "retry: 2000"
        assert any(line.startswith("data: [") for line in lines), "it ends, and whole"
        answer.close()
    assert caplog.text == ""


def test_the_command_says_which_extra_is_missing(monkeypatch):
    app = typer.Typer()
    add_dash_command(app)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "art_trainer.commands.dashboard")
    monkeypatch.delitem(sys.modules, "art_trainer.web.app")
    with pytest.raises(ConfigError, match=r'needs fastapi: pip install "art-gym\[serve\]"'):
        app([], standalone_mode=False)


def test_the_command_runs_until_ctrl_c(runs, monkeypatch):
    printed = io.StringIO()
    opened: list[str] = []

    def interrupt(seconds: float) -> None:
        assert httpx2.get(f"{opened[0]}api/runs", trust_env=False).json()[0]["name"] == "first"
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("art_trainer.commands.dashboard.time", SimpleNamespace(sleep=interrupt))
    run_dash(DashRequest((runs,), open_browser=True), Console(file=printed, width=200))
    assert f"Dashboard of {runs}: {opened[0]}" in printed.getvalue()
