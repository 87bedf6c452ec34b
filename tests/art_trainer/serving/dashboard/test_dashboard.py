"""The dashboard without a browser: its routes, its command, and files that a run writes meanwhile."""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from tokenizers import Tokenizer

from art_trainer.cli.dash import dash, serving
from art_trainer.distributed.protocol import QueueStatus, ServerStatus
from art_trainer.errors import ConfigError
from art_trainer.serving.dashboard import RunsSource, dashboard_router, page
from art_trainer.serving.dashboard import router as router_module
from art_trainer.serving.http.middleware import AccessPolicy, HostNames
from art_trainer.serving.http.server import create_app
from art_trainer.tracking.frame_file import read_frames
from art_trainer.tracking.reading import run_reader as reader_module
from art_trainer.tracking.reading.episode_index import EpisodeIndex, EpisodeQuery
from art_trainer.tracking.reading.episode_view import align_pieces, token_texts
from art_trainer.tracking.reading.tail_reader import MetricTable, TailReader
from tests.art_trainer.serving.dashboard.run_folders import (
    MARKUP,
    REPLY,
    TOKENIZER,
    DashRun,
    group,
    judged,
    tokens_of,
)

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

    def get(self, path: str) -> httpx2.Response:
        async def ask() -> httpx2.Response:
            transport = httpx2.ASGITransport(self._app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.get(path)

        return asyncio.run(ask())

    def json(self, path: str) -> Any:
        return self.get(f"/api/runs{path}").json()


@pytest.fixture
def client(runs: Path) -> Client:
    return Client([runs], lambda: STATUS)


def test_runs_are_found_below_a_folder_and_summarised(client):
    first, second = client.json("")
    assert [first[key] for key in ("id", "name", "env", "model")] == [0, "first", "toy/Mail-v0", "art-tiny"]
    assert (first["step"], first["max_steps"], first["state"]) == (3, 10, "running")
    assert first["seconds_left"] == pytest.approx(3.0 * 7)
    assert (first["episodes"], first["warnings"]) == (7, 1)
    assert first["latest"]["reward"] == 0.3
    assert first["latest"]["kl"] == pytest.approx(0.01 / 3), "the last finite one"
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
    episodes = client.json("/0/episodes?sort=reward&limit=2&outcome=success")
    assert ([row["reward"] for row in episodes["rows"]], episodes["matches"]) == ([1.0, 1.0], 4)
    found = client.json("/0/metrics")
    assert found["columns"]["reward"] == [0.1, 0.2, 0.3]
    assert client.json(f"/0/metrics?after={found['cursor']}")["rows"] == 0
    (event,) = client.json("/0/events")
    assert (event["step"], event["name"]) == (2, "entropy")
    before, after, random = client.json("/0/evaluations")
    assert [one["name"] for one in (before, after, random)] == ["before", "after", "random"]
    assert [one["baseline"] for one in (before, after, random)] == [False, False, True]
    assert after["success"]["value"] == 0.85
    assert after["success"]["low"] < 0.85 < after["success"]["high"]
    assert (client.json("/1/metrics")["columns"], client.json("/1/evaluations")) == ({}, [])


def test_a_whole_episode(client):
    found = client.json("/0/episodes/1/1")
    assert (found["task_id"], found["reward"], found["success"]) == ("task-2", 0.0, False)
    assert [(one["place"], one["reward"]) for one in found["attempts"]] == [(0, 1.0), (1, 0.0)]
    first, second = found["turns"]
    assert "".join(first["texts"]) == first["reply"] == REPLY
    assert first["logprobs"] == [-0.5 * k for k in range(len(first["texts"]))]
    assert (first["versions"], second["logprobs"]) == ([0], [-0.25, None])
    assert "histories" not in found
    judged_one = client.json("/0/episodes/3/0")
    judgement = {"score": 0.75, "explanation": f"Well done {MARKUP}", "parts": {"brevity": 0.5}}
    assert judged_one["judgements"]["ruler"] == judgement
    assert (judged_one["facts"], judged_one["independent_reward"]) == ({"note": MARKUP}, 0.5)


QUERIES = ("limit=501", "limit=0", "sort=seed", "outcome=bad", "offset=-1", f"text={'x' * 201}")
PARTS = ("metrics", "events", "evaluations", "episodes", "episodes/1/0")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *((f"0/episodes?{query}", 422) for query in QUERIES),
        *((f"2/{part}", 404) for part in PARTS),
        *((f"{place}/0", 404) for place in ("0/episodes/9", "1/episodes/1")),
        *((f"{name}/metrics", 404) for name in ("..", "0%2F..%2F1")),
        *((f"{name}/metrics", 422) for name in ("first", "-1", "%2e%2e")),
    ],
)
def test_other_queries_runs_and_episodes_are_refused(client, path, status):
    answer = client.get(f"/api/runs/{path}")
    assert answer.status_code == status
    assert status == 422 or answer.json()["error"]["code"] == "not_found"


def test_damaged_files_are_reported(tmp_path):
    run = DashRun(tmp_path / "run")
    run.step(1)
    run.evaluate("before", 3)
    (run.folder / "evaluations" / "after.json").write_text("{}")
    file = run.folder / "episodes.jsonl.zst"
    file.write_bytes(file.read_bytes()[:-3] + b"xyz")
    client = Client([tmp_path])
    assert client.get("/api/runs/0/episodes/1/0").status_code == 409
    assert client.json("/0/episodes/1/0")["error"]["code"] == "damaged_record"
    assert "damaged" in client.json("/0/episodes")["fault"]
    before, after = client.json("/0/evaluations")
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
        found, source = [], RunsSource([tmp_path], **options)
        async with aclosing(router_module._events(source, threading.Event())) as events:
            async for block in events:
                found.append(block)
                if block.startswith(b"event: runs") and len(found) == 2:
                    run.step(1)
                if len(found) == count:
                    break
        return found

    _, before, after, silence = asyncio.run(asyncio.wait_for(blocks(4), 30))
    old, new = (json.loads(block.partition(b"data: ")[2])[0] for block in (before, after))
    assert (old["step"], new["step"]) == (0, 1)
    assert old["metrics"] != new["metrics"]
    assert silence == b": nothing new\n\n"
    with_status = asyncio.run(asyncio.wait_for(blocks(4, status=lambda: STATUS), 30))
    assert all(b"event: status\ndata: {" in block for block in with_status[1:])


def test_long_metrics_are_read_from_their_end_until_they_are_asked_for(tmp_path):
    run = DashRun(tmp_path / "long", max_steps=5_000)
    lines = (json.dumps({"step": k, "trained_tokens": 0.0, "reward": 0.5}) for k in range(1, 5_001))
    run.log.metrics_file.write_text("\n".join(lines) + "\n")
    source = RunsSource([tmp_path])
    (first,) = source.runs()
    assert (first["step"], first["state"], first["stall"]) == (5_000, "finished", None)
    assert source.run(0)._metrics._rows < 1_000
    source.read_one()
    whole = source.run(0).summary()
    assert "cannot learn" in whole["stall"]["title"]
    assert whole["metrics"].endswith("-5000")
    assert source.run(0).metrics(None)["cursor"] == whole["metrics"] != first["metrics"]


def test_a_training_server_that_stops_sends_its_run_whole(tmp_path):
    run, closing = DashRun(tmp_path / "run", max_steps=2), threading.Event()

    async def last() -> bytes:
        async with aclosing(
            router_module._events(RunsSource([tmp_path / "run"], lambda: STATUS), closing)
        ) as events:
            async for block in events:
                if block.startswith(b"event: runs"):
                    run.step(1)
                    run.step(2)
                    run.evaluate("after", 7)
                    closing.set()
        return block

    event, _, data = asyncio.run(asyncio.wait_for(last(), 30)).partition(b"\ndata: ")
    end = json.loads(data)
    assert (event, end["folders"]) == (b"event: end", [str(tmp_path / "run")])
    assert [(one["state"], one["step"]) for one in end["runs"]] == [("finished", 2)]
    assert end["shown"][0]["metrics"]["columns"]["step"] == [1, 2]
    assert [one["name"] for one in end["shown"][0]["evaluations"]] == ["after"]


def test_the_command_guards_every_route(runs, tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with serving((runs,), token_file=file) as url, httpx2.Client(base_url=url, trust_env=False) as web:

        def status(path: str, token: str = TOKEN, **headers: str) -> int:
            return web.get(path, headers={"Authorization": f"Bearer {token}"} | headers).status_code

        assert (web.get("/").status_code, web.get("/").content) == (401, page().body)
        paths = [re.sub(r"\{\w+\}", "0", route.path) for route in dashboard_router(RunsSource([])).routes]
        for path in paths[1:]:
            assert (web.get(path).status_code, status(path, "wrong")) == (401, 401)
        assert (status("/"), status("/api/runs"), status("/openapi.json")) == (200, 200, 404)
        assert status("/api/runs", Origin=url.rstrip("/")) == 200
        assert status("/api/runs", Origin="http://evil.example") == 403
        assert status("/api/runs", Host="evil.example") == 400


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"folders": (Path("no/such/folder"),)}, "no/such/folder"),
        ({"host": "0.0.0.0"}, "no token"),
        ({"allowed_hosts": ("runs.example",)}, "'runs.example'"),
        ({"token_file": Path("no/such/file")}, "--token-file"),
    ],
)
def test_wrong_options_are_refused(runs, monkeypatch, change, words):
    monkeypatch.delenv("ART_SERVER_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=words), serving(**{"folders": (runs,)} | change):
        pass


def test_a_server_that_stops_ends_streams_that_are_read(runs, caplog):
    with httpx2.Client(trust_env=False) as web:
        with serving((runs,)) as url:
            answer = web.send(web.build_request("GET", f"{url}api/stream"), stream=True)
            lines = answer.iter_lines()
            assert next(lines) == "retry: 2000"
            assert any(line.startswith("data: [") for line in lines)
        list(lines)  # it ends, and whole: httpx2 raises for half a chunk
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


EPISODES = "episodes.jsonl.zst"


def run_of(folder: Path, steps: int) -> DashRun:
    run = DashRun(folder)
    for step in range(1, steps + 1):
        run.step(step)
    return run


def append(file: Path, *records: object) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(record) + "\n" for record in records)


def test_lines_are_read_once_and_only_when_whole(tmp_path):
    file = tmp_path / "lines.jsonl"
    lines = TailReader(file)
    assert lines.read() == []
    for written, read in (
        ('{"a": 1}\n', [{"a": 1}]),
        ('{"a": ', []),
        ('2}\nnot json\n[3]\n{"a": 4}\n', [{"a": 2}, {"a": 4}]),
    ):
        with file.open("a") as stream:
            stream.write(written)
        assert lines.read() == read


def test_metrics_come_in_columns_with_gaps(tmp_path):
    file = tmp_path / "metrics.jsonl"
    append(file, {"step": 1, "loss": 0.123456789}, {"step": 2, "eval": 3, "loss": math.nan, "note": "x"})
    table = MetricTable(file)
    table.update()
    found = table.after(None)
    assert found["columns"] == {"step": [1, 2], "loss": [0.123457, None], "eval": [None, 3]}
    assert (found["reset"], found["rows"]) == (True, 2)
    assert table.latest("loss") == [0.123456789]
    append(file, {"step": 3, "loss": 1.0})
    table.update()
    later = table.after(found["cursor"])
    assert (later["columns"], later["reset"]) == ({"step": [3], "loss": [1.0], "eval": [None]}, False)
    assert table.after(later["cursor"])["rows"] == 0
    assert table.after("another-1")["reset"]


@pytest.mark.parametrize("more", [0, 5], ids=["shorter", "longer"])
def test_metrics_of_a_resumed_run_begin_anew(tmp_path, more):
    run = run_of(tmp_path, 3)
    table = MetricTable(tmp_path / "metrics.jsonl")
    table.update()
    cursor = table.after(None)["cursor"]
    run.log.begin({"max_steps": 10}, 2)
    for step in range(more):
        run.step(3 + step, reward=7.0)
    table.update()
    again = table.after(cursor)
    assert again["reset"]
    assert again["columns"]["reward"] == [0.1, 0.2, *[7.0] * more]
    (tmp_path / "metrics.jsonl").unlink()
    table.update()
    assert table.after(again["cursor"])["reset"]


def whole(index: EpisodeIndex, **query: Any) -> dict[str, Any]:
    """Ask until all is read and searched."""
    for _ in range(1000):
        page = index.page(EpisodeQuery(**query))
        if page["complete"]:
            return page
    raise AssertionError("it never ends")


def test_episodes_are_found_by_every_filter(tmp_path):
    run = DashRun(tmp_path)
    run.step(1, [group(1, (1.0, 0.0)), group(2, (0.75, 0.25), words="A Walrus, straße")])
    run.step(2, [group(3, (1.0, -1.0))])
    run.step(3, [group(4, (float("nan"),), words="not a number")])
    index = EpisodeIndex(tmp_path)
    rows = whole(index, step_max=2)["rows"]
    assert [(row["step"], row["place"]) for row in rows] == [(2, 0), (2, 1), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert rows[0] == {
        "step": 2, "place": 0, "group": 0, "turns": 2, "tokens": len(tokens_of(REPLY)) + 2, "invalid": 0,
        "replaced": False, "task": "task-3", "reward": 1.0, "success": True, "ending": "terminated",
        "preview": "select(m3)",
    }  # fmt: skip

    def rewards(**query: Any) -> list[float | None]:
        return [row["reward"] for row in whole(index, **query)["rows"]]

    assert rewards(sort="reward") == [1.0, 1.0, 0.75, 0.25, 0.0, -1.0, None]
    assert rewards(sort="reward", descending=False, limit=2, offset=1) == [0.0, 0.25]
    assert rewards(task="TASK-2") == [0.75, 0.25]
    assert rewards(outcome="failure", step_max=1) == [0.0, 0.25]
    assert rewards(reward_min=0.25, reward_max=0.75) == [0.75, 0.25]
    assert rewards(text="walrus") == rewards(text="STRAßE") == [0.75, 0.25]
    assert rewards(text="tokens") == rewards(text="histories") == [], "only words are searched"
    assert rewards(text="select(M3)") == [1.0, -1.0]
    assert (
        rewards(sort="task", descending=False)[:2] == rewards(sort="outcome", step_max=1)[::2] == [1.0, 0.0]
    )


def test_new_episodes_appear_and_those_cut_off_go(tmp_path):
    run = run_of(tmp_path, 3)
    index = EpisodeIndex(tmp_path)
    assert whole(index, text="tea")["matches"] == 12
    run.log.begin({"max_steps": 10}, 1)
    assert whole(index, text="tea")["matches"] == 4
    # Between two looks a resumed run may cut steps off and write longer ones in their place.
    run.step(2, [group(9, (0.5, 0.5), words="new")])
    assert [(row["step"], row["task"]) for row in whole(index, text="new")["rows"]] == [(2, "task-9")] * 2
    run.log.begin({"max_steps": 10}, 1)
    run.step(2, [group(k, (0.5,) * 4, words="longer " * k) for k in range(6)])
    page = whole(index, step_min=2)
    assert (page["matches"], page["recorded"], page["fault"]) == (24, 28, None)
    assert index.frame(2) == list(read_frames(tmp_path / EPISODES))[-1]
    (tmp_path / EPISODES).unlink()
    assert (whole(index)["matches"], index.count()) == (0, 0)


def test_a_damaged_step_is_reported_and_the_rest_is_shown(tmp_path):
    run_of(tmp_path, 3)
    file = tmp_path / EPISODES
    second = next(frame for frame in read_frames(file) if frame.header.get("step") == 2)
    data = bytearray(file.read_bytes())
    data[second.data_offset + 20] ^= 1
    file.write_bytes(data)
    page = whole(EpisodeIndex(tmp_path), text="tea")
    assert {row["step"] for row in page["rows"]} == {1, 3}
    assert (page["known"], page["matches"]) == (12, 8)
    assert "step 2" in page["fault"]
    file.write_bytes(bytes(data[: second.offset]) + b"rubbish" * 20)
    page = whole(EpisodeIndex(tmp_path))
    assert {row["step"] for row in page["rows"]} == {1}
    assert page["fault"]


def test_tokens_that_the_tokenizer_does_not_know_have_no_texts():
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    assert token_texts(tokenizer, (10**6,), "x") is token_texts(tokenizer, (), "") is None


@pytest.mark.parametrize(
    ("pieces", "text", "wanted"),
    [
        (["a", " b", "<end>"], "a b", ["a", " b", "<end>"]),
        (["a", " (", ' "', " b"], 'a("b', ["a", "(", '"', "b"]),
        (["a", "b"], "a  b", ["a", "  b"]),
        (["", "é", "x"], "éx", ["", "é", "x"]),
        (["no", "pe"], "something", ["no", "pe"]),
        (["cut", "off"], "cut", ["cut", "off"]),
    ],
)
def test_pieces_are_aligned_to_the_text(pieces, text, wanted):
    assert align_pieces(pieces, text) == wanted
