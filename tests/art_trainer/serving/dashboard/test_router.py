"""The dashboard's routes and command, without a browser."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from art_trainer.cli.dash import dash, serving
from art_trainer.distributed.protocol import QueueStatus, ServerStatus
from art_trainer.errors import ConfigError
from art_trainer.serving.dashboard import RunsSource, dashboard_router, page
from art_trainer.serving.dashboard import router as router_module
from art_trainer.serving.dashboard import run_reader as reader_module
from art_trainer.serving.http.middleware import AccessPolicy, HostNames
from art_trainer.serving.http.server import create_app
from tests.art_trainer.serving.dashboard.run_folders import MARKUP, REPLY, DashRun, group, judged

TOKEN = "a-token-of-some-length"
STATUS = ServerStatus(
    state="starved", run="first", env="toy/Mail-v0", step=2, max_steps=10, policy_version=2,
    uptime_seconds=5.0, seconds_left=None, clients=[], leases=[], results={},
    queue=QueueStatus(waiting=8, leased=0, finished=0, groups_waiting=2),
)  # fmt: skip


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
    """Asks a dashboard as a browser would, in this process."""

    def __init__(self, *arguments: Any) -> None:
        self._app = create_app(AccessPolicy(HostNames("127.0.0.1"), 1000), "a page at /")
        self._app.include_router(dashboard_router(RunsSource(*arguments)))

    def get(self, path: str, **params: Any) -> Any:
        return asyncio.run(self._get(path, params))

    async def _get(self, path: str, params: dict[str, Any]) -> httpx2.Response:
        transport = httpx2.ASGITransport(self._app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get(path, params=params)


@pytest.fixture
def client(runs: Path) -> Client:
    return Client([runs], lambda: STATUS)


def test_runs_are_found_below_a_folder_and_summarised(client):
    first, second = client.get("/api/runs").json()
    assert [first[key] for key in ("id", "name", "env", "model")] == [0, "first", "toy/Mail-v0", "art-tiny"]
    assert (first["step"], first["max_steps"], first["state"]) == (3, 10, "running")
    assert first["seconds_left"] == pytest.approx(3.0 * 7)
    assert (first["episodes"], first["warnings"]) == (7, 1)
    assert first["latest"]["reward"] == 0.3
    assert first["latest"]["kl"] == pytest.approx(0.01 / 3)
    assert [second[key] for key in ("name", "state", "step", "episodes")] == ["second", "starting", 0, 0]


def test_a_run_that_begins_later_is_found_and_numbers_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(reader_module, "_SUMMARY_SECONDS", 0.0)
    source = RunsSource([tmp_path / "x", tmp_path / "y"])
    assert source.runs() == []
    DashRun(tmp_path / "y" / "run", max_steps=1).step(1)
    assert [(run["name"], run["state"]) for run in source.runs()] == [("run", "finished")]
    DashRun(tmp_path / "x" / "run")
    assert [(run["id"], run["name"]) for run in source.runs()] == [(0, "y/run"), (1, "x/run")]


def test_metrics_events_evaluations_and_episodes(client):
    episodes = client.get("/api/runs/0/episodes", sort="reward", limit=2, outcome="success").json()
    assert ([row["reward"] for row in episodes["rows"]], episodes["matches"]) == ([1.0, 1.0], 4)
    found = client.get("/api/runs/0/metrics").json()
    assert found["columns"]["reward"] == [0.1, 0.2, 0.3]
    assert client.get("/api/runs/0/metrics", after=found["cursor"]).json()["rows"] == 0
    (event,) = client.get("/api/runs/0/events").json()
    assert (event["step"], event["name"]) == (2, "entropy")
    evaluations = client.get("/api/runs/0/evaluations").json()
    assert [(one["name"], one["baseline"]) for one in evaluations] == [
        ("before", False), ("after", False), ("random", True),
    ]  # fmt: skip
    assert evaluations[1]["success"]["value"] == 0.85
    assert evaluations[1]["success"]["low"] < 0.85 < evaluations[1]["success"]["high"]
    assert client.get("/api/runs/1/metrics").json()["columns"] == {}
    assert client.get("/api/runs/1/evaluations").json() == []


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
    judged_one = client.get("/api/runs/0/episodes/3/0").json()
    judgement = {"score": 0.75, "explanation": f"Well done {MARKUP}", "parts": {"brevity": 0.5}}
    assert judged_one["judgements"]["ruler"] == judgement
    assert (judged_one["facts"], judged_one["independent_reward"]) == ({"note": MARKUP}, 0.5)


@pytest.mark.parametrize(
    "path",
    [
        *(f"2/{part}" for part in ("metrics", "events", "evaluations", "episodes", "episodes/1/0")),
        *("0/episodes/9/0", "0/episodes/1/4", "1/episodes/1/0"),
    ],
)
def test_an_unknown_run_or_episode_is_404(client, path):
    answer = client.get(f"/api/runs/{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("name", ["..", "first", "%2e%2e", "-1", "0%2F..%2F1"])
def test_a_run_is_a_number_and_no_path(client, name):
    assert client.get(f"/api/runs/{name}/metrics").status_code in (404, 422)


def test_damaged_files_are_reported(tmp_path):
    run = DashRun(tmp_path / "run")
    run.step(1)
    run.evaluate("before", 3)
    (run.folder / "evaluations" / "after.json").write_text("{}")
    file = run.folder / "episodes.jsonl.zst"
    file.write_bytes(file.read_bytes()[:-3] + b"xyz")
    client = Client([tmp_path])
    answer = client.get("/api/runs/0/episodes/1/0")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "damaged_record")
    assert "damaged" in client.get("/api/runs/0/episodes").json()["fault"]
    before, after = client.get("/api/runs/0/evaluations").json()
    assert "fault" not in before
    assert "after.json" in after["fault"]


def test_the_page_holds_no_data_and_allows_only_its_own_script(client):
    answer = client.get("/")
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


def test_the_stream_reports_what_is_new(tmp_path, monkeypatch):
    monkeypatch.setattr(router_module, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(reader_module, "_SUMMARY_SECONDS", 0.0)
    run = DashRun(tmp_path / "run")

    async def blocks(count: int, **options: Any) -> list[bytes]:
        events = router_module._events(RunsSource([tmp_path], **options), threading.Event())
        found = []
        async for block in events:
            found.append(block)
            if block.startswith(b"event: runs") and len(found) == 2:
                run.step(1)
            if len(found) == count:
                break
        await events.aclose()
        return found

    _, before, after, silence = asyncio.run(asyncio.wait_for(blocks(4), 30))
    old, new = (json.loads(block.partition(b"data: ")[2])[0] for block in (before, after))
    assert (old["step"], new["step"]) == (0, 1)
    assert old["metrics"] != new["metrics"]
    assert silence == b": nothing new\n\n"
    with_status = asyncio.run(asyncio.wait_for(blocks(4, status=lambda: STATUS), 30))
    assert all(b"event: status\ndata: {" in block for block in with_status[1:])


def test_the_command_guards_every_route(runs, tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    with serving((runs,), token_file=file) as url, httpx2.Client(base_url=url, trust_env=False) as web:
        login = web.get("/")
        assert (login.status_code, login.content) == (401, page().body)
        assert login.headers["content-security-policy"] == page().headers["content-security-policy"]
        for route in dashboard_router(RunsSource([])).routes[1:]:
            path = re.sub(r"\{\w+\}", "0", route.path)
            assert web.get(path).status_code == 401
            assert web.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert web.get("/api/runs", headers=bearer).json()[0]["name"] == "first"
        assert web.get("/", headers=bearer).status_code == 200
        assert web.get("/openapi.json", headers=bearer).status_code == 404
        for more, status in (
            ({"Origin": "http://evil.example"}, 403), ({"Host": "evil.example"}, 400),
            ({"Origin": url.rstrip("/")}, 200),
        ):  # fmt: skip
            assert web.get("/api/runs", headers={**bearer, **more}).status_code == status


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"folders": (Path("no/such/folder"),)}, "no/such/folder"),
        ({"host": "0.0.0.0"}, "no token"),
        ({"allowed_hosts": ("runs.example",)}, "'runs.example'"),
        ({"token_file": Path("no/such/file")}, "--token-file"),
        ({"host": "203.0.113.7", "token_file": "token"}, "203.0.113.7:0"),
    ],
)
def test_wrong_options_are_refused(runs, tmp_path, monkeypatch, change, words):
    monkeypatch.delenv("ART_SERVER_TOKEN", raising=False)
    if change.get("token_file") == "token":
        change = {**change, "token_file": tmp_path / "token"}
        change["token_file"].write_text(TOKEN)
    with pytest.raises(ConfigError, match=re.escape(words)), serving(**{"folders": (runs,)} | change):
        pass


def test_a_server_that_stops_ends_streams_that_are_read(runs, caplog):
    with httpx2.Client(trust_env=False) as web:
        with serving((runs,)) as url:
            answer = web.send(web.build_request("GET", f"{url}api/stream"), stream=True)
            lines = answer.iter_lines()
            assert next(lines) == "retry: 2000"
        assert any(line.startswith("data: [") for line in lines), "it ends, and whole"
        answer.close()
    assert caplog.text == ""


def test_the_command_runs_until_ctrl_c(runs, monkeypatch, capsys):
    opened: list[str] = []

    def interrupt(seconds: float) -> None:
        assert httpx2.get(f"{opened[0]}api/runs", trust_env=False).json()[0]["name"] == "first"
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("art_trainer.cli.dash.time", SimpleNamespace(sleep=interrupt))
    dash([runs], port=0, open_=True)
    assert f"Dashboard of {runs}: {opened[0]}" in capsys.readouterr().out
