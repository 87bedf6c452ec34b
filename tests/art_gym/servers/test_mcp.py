import json
import os
import socket
import sys
from contextlib import asynccontextmanager

import anyio
import gymnasium as gym
import pytest

from art_gym.servers.tool_episode import OVER, ToolEpisode

pytest.importorskip("mcp")

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError

from art_gym.servers.mcp import RESULT, TASK, AsyncEpisode, episode_server
from tests.art_gym.servers.playing import in_loop, play_along
from tests.art_gym.toys import CounterEnv


@asynccontextmanager
async def client_of(env, mode="auto", *, show_result=False):
    """A client of one episode in this process, and the episode."""
    played = await AsyncEpisode.begin(lambda: ToolEpisode(env, seed=0))
    try:
        server = episode_server(played, show_result=show_result)
        async with Client(server, mode=mode) as client:
            yield client, played
    finally:
        await played.close()


def stdio(*arguments):
    """A transport to the command, started as a client would start it."""
    command = ["-c", "from art_gym.cli import main; main()", "serve-mcp", *map(str, arguments)]
    env = {name: os.environ[name] for name in ("ART_GYM_CACHE",) if name in os.environ}
    return stdio_client(StdioServerParameters(command=sys.executable, args=command, env=env))


@pytest.mark.e2e
@in_loop
async def test_an_episode_over_stdio_is_the_episode_played_directly(tmp_path):
    path = tmp_path / "episodes.jsonl"
    server = stdio("art/2048-v0", "--seed", 3, "--env-args", "max_turns=40", "--json", path)
    async with Client(server) as client:
        total, _ = await play_along(client, gym.make("art/2048-v0", max_turns=40), "random")
        late = await client.call_tool("move", {"direction": "up"})
        assert (late.content[0].text, late.is_error) == (OVER, True)
    (account,) = map(json.loads, path.read_text().splitlines())
    assert account["reward"] == account["metrics"]["score"] == total > 0
    assert (account["seed"], account["turns"], account["ended_by"]) == (3, 40, "truncation")


@pytest.mark.e2e
@in_loop
async def test_a_client_that_disconnects_during_an_episode_is_reported(tmp_path):
    path = tmp_path / "episodes.jsonl"
    server = stdio("art/Email-v0", "--seed", 3, "--split", "test", "--json", path)
    async with Client(server, mode="legacy") as client:
        _, info = await play_along(client, gym.make("art/Email-v0"), "bm25", turns=1, split="test")
    (account,) = map(json.loads, path.read_text().splitlines())
    assert (account["task_id"], account["turns"], account["ended_by"]) == (info["task_id"], 1, "leaving")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@in_loop
async def test_wrong_calls_use_a_turn_and_get_an_error_message(mode):
    async with client_of(CounterEnv(), mode) as (client, played):
        for name, arguments, words in [
            ("sotp", {}, "did you mean `stop`"),
            ("add", {"amount": [[1]]}, "amount"),
        ]:
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert words in result.content[0].text
        assert played.episode.result()["turns"] == 2
        assert played.episode.result()["reward"] == pytest.approx(-0.2)
        assert not (await client.call_tool("add", {"amount": 1})).is_error


@in_loop
async def test_calls_at_once_are_carried_out_one_after_the_other():
    async with client_of(CounterEnv(max_turns=8)) as (client, played):
        async with anyio.create_task_group() as group:
            for _ in range(12):
                group.start_soon(client.call_tool, "add", {"amount": 1})
        assert played.episode.result()["turns"] == 8


@in_loop
async def test_the_task_stands_in_instructions_prompt_and_resource():
    async with client_of(CounterEnv()) as (client, played):
        introduction = played.episode.introduction
        assert "Reach the target." in introduction
        assert client.instructions == introduction
        (prompt,) = (await client.list_prompts()).prompts
        (message,) = (await client.get_prompt(prompt.name)).messages
        assert (message.role, message.content.text) == ("user", introduction)
        assert (await client.read_resource(TASK)).contents[0].text == introduction
        with pytest.raises(MCPError, match="no prompt `tsak`; did you mean `task`"):
            await client.get_prompt("tsak")
        with pytest.raises(MCPError, match="no resource `episode://tsak`"):
            await client.read_resource("episode://tsak")


@in_loop
async def test_the_result_is_hidden_unless_asked_for_and_until_the_end():
    async with client_of(CounterEnv()) as (client, _):
        await client.call_tool("stop", {})
        assert RESULT not in [str(found.uri) for found in (await client.list_resources()).resources]
        with pytest.raises(MCPError, match="no resource"):
            await client.read_resource(RESULT)
    async with client_of(CounterEnv(), show_result=True) as (client, played):
        with pytest.raises(MCPError, match="when the episode is over"):
            await client.read_resource(RESULT)
        await client.call_tool("stop", {})
        assert RESULT in [str(found.uri) for found in (await client.list_resources()).resources]
        account = json.loads((await client.read_resource(RESULT)).contents[0].text)
        assert account == played.episode.result()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("art/2408-v0",), "2048"),
        (("art/2048-v0", "--env-args", "board_size"), "write it as name=value"),
        (("art/2048-v0", "--env-args", "bord_size=4"), "bord_size"),
        (("art/2048Array-v0",), "cannot be played by calls of tools"),
        (("art/2048-v0", "--json", "no/such/folder/file"), "no/such/folder"),
        (("art/2048-v0", "--split", "tset"), "no split `tset`"),
        (("art/2048-v0", "--http", "0", "--split", "tset"), "no split `tset`"),
        (("art/2048-v0", "--http", "0", "--host", "0.0.0.0"), "ART_GYM_MCP_TOKEN"),
    ],
)
def test_wrong_use_of_the_command_is_one_line(monkeypatch, rejected, arguments, reason):
    monkeypatch.delenv("ART_GYM_MCP_TOKEN", raising=False)
    assert reason in rejected("serve-mcp", *arguments)


def test_a_port_that_is_taken_is_named(rejected):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"'127.0.0.1', {port}" in rejected("serve-mcp", "art/2048-v0", "--http", str(port))


def test_a_missing_sdk_is_named_with_its_extra(monkeypatch, rejected):
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert 'pip install "art-gym[cli,mcp]"' in rejected("serve-mcp", "art/2048-v0")
