import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import anyio
import gymnasium as gym
import httpx
import pytest

from art_gym.servers.tool_episode import ToolEpisode

pytest.importorskip("mcp")

import uvicorn
from mcp import Client, ClientSession
from mcp.client.streamable_http import streamable_http_client

from art_gym.servers.mcp import OBSERVATION
from art_gym.servers.mcp_http import PATH, EpisodeSessions, Limits, is_loopback
from tests.art_gym.servers.playing import in_loop, play_along
from tests.art_gym.toys import CounterEnv

JSON = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": CLIENT}


class Counter(CounterEnv):
    open = 0

    def begin(self, task):
        Counter.open += 1
        return f"{super().begin(task)} Lucky: {self.np_random.integers(10**6)}."

    def close(self):
        Counter.open -= 1


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def accounts():
    Counter.open = 0
    yield (found := [])
    assert Counter.open == 0, "an environment was left open"
    assert all(account["env"] for account in found)


def counters(accounts, **options):
    seeds = iter(range(100))
    return EpisodeSessions(
        lambda: ToolEpisode(Counter(max_turns=50), seed=next(seeds)), on_end=accounts.append, **options
    )


@asynccontextmanager
async def serving(sessions):
    """The URL of a real server for these sessions."""
    config = uvicorn.Config(
        sessions.app(), host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=1
    )
    listening = config.bind_socket()
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:
        assert not task.done()
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}{PATH}"
    finally:
        server.should_exit = True
        await task
        listening.close()


@asynccontextmanager
async def asking(sessions, **headers):
    """Plain HTTP requests to the application, without a socket."""
    app = sessions.app()
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8000", headers=JSON | headers
        ) as client:
            yield client


def call(amount, number=2):
    params = {"name": "add", "arguments": {"amount": amount}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


async def begin(client):
    """Open a session; its header."""
    opened = await client.post(PATH, json=HELLO)
    assert opened.status_code == 200
    headers = {"mcp-session-id": opened.headers["mcp-session-id"]}
    await client.post(PATH, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    return headers


@in_loop
async def test_an_episode_over_http_is_the_episode_played_directly():
    accounts = []
    sessions = EpisodeSessions(lambda: ToolEpisode(gym.make("art/Email-v0"), seed=3), on_end=accounts.append)
    async with serving(sessions) as url, Client(url) as client:
        total, info = await play_along(client, gym.make("art/Email-v0"), "bm25")
    (account,) = accounts
    assert account["reward"] == pytest.approx(total)
    assert (account["success"], account["metrics"]) == (info["success"], info["metrics"])


@in_loop
async def test_two_clients_play_two_episodes(accounts):
    async with serving(counters(accounts)) as url, Client(url) as one, Client(url) as two:
        read = [await client.read_resource(OBSERVATION) for client in (one, two)]
        assert read[0].contents[0].text != read[1].contents[0].text
        for client in (one, one, two, one):
            await client.call_tool("peek", {"what": "count"})
    found = sorted((account["seed"], account["turns"], round(account["reward"], 2)) for account in accounts)
    assert found == [(0, 3, -0.03), (1, 1, -0.01)]


@in_loop
async def test_a_client_that_vanishes_is_idle_in_the_end_and_its_environment_closed(accounts):
    async def play_and_vanish(streams, scope):
        async with ClientSession(*streams[:2]) as session:
            await session.initialize()
            await session.call_tool("add", {"amount": 1})
            scope.cancel()
            await asyncio.sleep(60)

    clock = Clock()
    limits = Limits(sessions=1, idle=0.2)
    async with serving(counters(accounts, limits=limits, clock=clock)) as url:
        # Never closed: cancelled in the middle, with no word to the server.
        with anyio.fail_after(60), anyio.CancelScope() as scope:
            async with streamable_http_client(url, terminate_on_close=False) as streams:
                await play_and_vanish(streams, scope)
        async with asyncio.timeout(60):
            while not accounts:
                clock.now += 1.0
                await asyncio.sleep(0.01)
        assert Counter.open == 0
        async with Client(url) as client:
            await client.call_tool("add", {"amount": 1})
    assert [account["turns"] for account in accounts] == [1, 1]


@in_loop
async def test_a_session_that_is_used_is_not_idle(accounts):
    clock = Clock()
    async with asking(counters(accounts, limits=Limits(idle=0.4), clock=clock)) as client:
        session = await begin(client)
        for _ in range(4):
            clock.now += 0.3
            await asyncio.sleep(0.12)  # idle sessions are looked for every 0.1 seconds
            assert (await client.post(PATH, json=call(1), headers=session)).status_code == 200
        clock.now += 0.5
        async with asyncio.timeout(60):
            while not accounts:
                await asyncio.sleep(0.01)
        assert (await client.post(PATH, json=call(1), headers=session)).status_code == 404
    assert [account["turns"] for account in accounts] == [4]


@in_loop
async def test_a_client_ends_its_session_and_makes_room_for_another(accounts):
    async with asking(counters(accounts, limits=Limits(sessions=2))) as client:
        one, _ = await begin(client), await begin(client)
        full = await client.post(PATH, json=HELLO)
        assert full.status_code == 503
        assert "all 2 sessions are taken" in full.json()["error"]["message"]
        assert (await client.delete(PATH, headers=one)).status_code == 200
        assert (await client.post(PATH, json=call(1), headers=one)).status_code == 404
        while Counter.open > 1:
            await asyncio.sleep(0.01)
        await begin(client)
        assert [account["seed"] for account in accounts] == [0]
    assert len(accounts) == 3, "the server's end ends the others"


@in_loop
async def test_a_result_that_cannot_be_written_ends_no_other_session(accounts, caplog):
    sessions = EpisodeSessions(lambda: ToolEpisode(Counter(max_turns=50)), on_end=[].index)  # raises
    async with asking(sessions) as client:
        one, two = await begin(client), await begin(client)
        await client.delete(PATH, headers=one)
        while Counter.open > 1:
            await asyncio.sleep(0.01)
        assert (await client.post(PATH, json=call(1), headers=two)).status_code == 200
    assert "ValueError" in caplog.text


@in_loop
async def test_a_client_of_the_sdk_is_told_that_the_sessions_are_taken(accounts):
    async with serving(counters(accounts, limits=Limits(sessions=1))) as url, Client(url):
        with pytest.raises(ExceptionGroup) as refused:
            await Client(url).__aenter__()
        assert refused.group_contains(Exception, match="all 1 sessions are taken: try again later, or start")


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"Host": "evil.example:8000"}, 421, "Host"),
        ({"Origin": "http://evil.example"}, 403, "Origin"),
        ({"Content-Type": "text/plain"}, 400, "Content-Type"),
        ({"mcp-session-id": "made-up"}, 404, "no such session"),
        ({"mcp-protocol-version": "2026-07-28"}, 400, "handshake"),
        ({"mcp-protocol-version": "x"}, 400, "handshake"),
    ],
)
@in_loop
async def test_a_request_that_is_refused_begins_no_episode(accounts, headers, status, words):
    async with asking(counters(accounts)) as client:
        answer = await client.post(PATH, json=HELLO, headers=headers)
        assert answer.status_code == status
        assert words in answer.text
        assert Counter.open == 0
    assert accounts == []


@pytest.mark.parametrize("body", [b"{", b"[]", json.dumps(call(1)).encode(), b"x" * (1 << 20) + b"x"])
@in_loop
async def test_a_request_that_opens_nothing_leaves_nothing_open(accounts, body):
    async with asking(counters(accounts, limits=Limits(sessions=1))) as client:
        for _ in range(3):
            assert (await client.post(PATH, content=body)).status_code in (400, 413)
            while Counter.open:
                await asyncio.sleep(0.01)
        await begin(client)
    assert len(accounts) == 1


@in_loop
async def test_every_request_needs_the_token(accounts):
    async with asking(counters(accounts, token="sesame", local=False)) as client:
        for headers in ({}, {"Authorization": "Bearer sesamé"}, {"Authorization": "sesame"}):
            raw = {key: value.encode() for key, value in headers.items()}
            refused = await client.post(PATH, json=HELLO, headers=raw)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
        key = {"Authorization": "bearer sesame", "Host": "gym.example"}
        opened = await client.post(PATH, json=HELLO, headers=key)
        assert opened.status_code == 200
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        assert (await client.post(PATH, json=call(1), headers=session)).status_code == 401


@pytest.mark.e2e
@in_loop
async def test_the_command_serves_until_it_is_interrupted(tmp_path):
    path = tmp_path / "episodes.jsonl"
    arguments = ["serve-mcp", "art/2048-v0", "--seed", "7", "--http", "0", "--json", str(path)]
    command = [sys.executable, "-c", "from art_gym.cli import main; main()", *arguments]
    env = {key: value for key, value in os.environ.items() if key != "ART_GYM_MCP_TOKEN"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as server:
        try:
            async with Client(server.stderr.readline().split()[-1]) as client:
                assert not (await client.call_tool("move", {"direction": "left"})).is_error
                server.send_signal(signal.SIGINT)
                async with asyncio.timeout(60):
                    while not (path.exists() and path.read_text().endswith("\n")):
                        await asyncio.sleep(0.01)
            server.wait(300)
        finally:
            server.kill()
        assert "Traceback" not in server.stderr.read()
    (account,) = map(json.loads, path.read_text().splitlines())
    assert (account["seed"], account["turns"], account["ended_by"]) == (7, 1, "leaving")


def test_only_loopback_is_local_and_limits_are_checked():
    hosts = ("127.0.0.1", "::1", "localhost", "0.0.0.0", "gym.example")
    assert [is_loopback(host) for host in hosts] == [True, True, True, False, False]
    for wrong in ({"sessions": 0}, {"idle": 0.0}, {"idle": float("inf")}):
        with pytest.raises(ValueError, match="must be"):
            Limits(**wrong)
