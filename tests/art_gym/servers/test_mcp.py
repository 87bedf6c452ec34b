import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager

import anyio
import gymnasium as gym
import numpy as np
import pytest

from art_gym import Outcome, TextEnv, parse, tool
from art_gym.base import jsonable
from art_gym.servers.tool_episode import ENDED, OVER, ToolEpisode

pytest.importorskip("mcp")

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError

from art_gym.servers.mcp import OBSERVATION, RESULT, TASK, AsyncEpisode, episode_server


class Lamp(TextEnv):
    """A lamp to be lit."""

    instructions = "Light the lamp."

    @tool
    def knock(self) -> str:
        """Knock on it."""
        return "It flickers."

    @tool(ends=True)
    def light(self, wick: int) -> Outcome:
        """Light it.

        Args:
            wick: Which wick.
        """
        return Outcome("It shines.", {"light": 1.0}, success=True)


@asynccontextmanager
async def client_of(env, mode="auto", *, show_result=False, seed=0):
    """A client of one episode in this process, and the episode."""
    played = await AsyncEpisode.begin(lambda: ToolEpisode(env, seed=seed))
    try:
        server = episode_server(played, show_result=show_result)
        async with Client(server, mode=mode) as client:
            yield client, played
    finally:
        await played.close()


async def play_along(client, env, act, observation, turns=400):
    """Play an episode by MCP and directly at once; both must say the same. Returns the direct reward."""
    total = 0.0
    for _ in range(turns):
        reply = act(observation)
        call = parse(reply, env.unwrapped.tools)
        observation, reward, terminated, truncated, _ = env.step(reply)
        total += reward
        result = await client.call_tool(call.name, jsonable(call.arguments))
        assert result.content[0].text == observation
        assert (len(result.content) == 2) == (terminated or truncated)
        if terminated or truncated:
            assert result.content[1].text == ENDED
            break
    return total


def begun(env_id, name, seed, *, options=None, **arguments):
    env = gym.make(env_id, **arguments)
    observation, info = env.reset(seed=seed, options=options)
    return env, observation, info, env.unwrapped.baselines[name](env.unwrapped, np.random.default_rng(0))


def stdio(*arguments):
    """A transport to the command, started as a client would start it."""
    code = "from art_gym.cli import main; main()"
    env = {name: os.environ[name] for name in ("ART_GYM_CACHE",) if name in os.environ}
    return stdio_client(
        StdioServerParameters(command=sys.executable, args=["-c", code, "serve-mcp", *arguments], env=env)
    )


@pytest.mark.e2e
def test_an_episode_over_stdio_is_the_episode_played_directly(tmp_path):
    path = tmp_path / "episodes.jsonl"

    async def main():
        env, observation, info, act = begun("art/2048-v0", "random", 3, max_turns=40)
        server = stdio("art/2048-v0", "--seed", "3", "--env-args", "max_turns=40", "--json", str(path))
        async with Client(server) as client:
            tools = {item.name: item.input_schema for item in (await client.list_tools()).tools}
            functions = [schema["function"] for schema in info["tools"]]
            assert tools == {function["name"]: function["parameters"] for function in functions}
            first = await client.read_resource(OBSERVATION)
            assert first.contents[0].text == observation
            total = await play_along(client, env, act, observation)
            late = await client.call_tool("move", {"direction": "up"})
            assert (late.content[0].text, late.is_error) == (OVER, True)
            return total

    total = asyncio.run(main())
    (account,) = map(json.loads, path.read_text().splitlines())
    assert account["reward"] == total > 0
    assert (account["seed"], account["turns"], account["ended_by"]) == (3, 40, "truncation")
    assert account["metrics"]["score"] == account["reward"]


@pytest.mark.e2e
def test_a_client_that_leaves_in_the_middle_is_in_the_account(tmp_path):
    path = tmp_path / "episodes.jsonl"

    async def main():
        env, observation, info, act = begun("art/Email-v0", "bm25", 5, options={"split": "test"})
        server = stdio("art/Email-v0", "--seed", "5", "--split", "test", "--json", str(path))
        async with Client(server, mode="legacy") as client:
            assert info["system"] not in client.instructions
            assert observation.removeprefix(info["system"]).strip() in client.instructions
            await play_along(client, env, act, observation, 1)
        return info["task_id"]

    task_id = asyncio.run(main())
    (account,) = map(json.loads, path.read_text().splitlines())
    assert (account["task_id"], account["turns"], account["ended_by"]) == (task_id, 1, "leaving")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_wrong_calls_are_turns_answered_in_words(mode):
    async def main():
        async with client_of(Lamp(), mode) as (client, played):
            for name, arguments, words in [
                ("lihgt", {"wick": 1}, "did you mean `light`"),
                ("light", {"wick": "red"}, "`wick` must be a whole number"),
                ("light", {}, "wick"),
                ("light", {"wick": [[1]]}, "wick"),
            ]:
                result = await client.call_tool(name, arguments)
                assert result.is_error
                assert words in result.content[0].text
            assert played.episode.result()["turns"] == 4
            assert played.episode.result()["reward"] == pytest.approx(-0.4)
            assert not (await client.call_tool("light", {"wick": 1})).is_error

    asyncio.run(main())


def test_calls_at_once_are_carried_out_one_after_the_other():
    async def main():
        async with client_of(Lamp(max_turns=8)) as (client, played):
            async with anyio.create_task_group() as group:
                for _ in range(12):
                    group.start_soon(client.call_tool, "knock", {})
            assert played.episode.result()["turns"] == 8

    asyncio.run(main())


def test_the_task_stands_in_instructions_prompt_and_resource():
    async def main():
        async with client_of(Lamp()) as (client, played):
            introduction = played.episode.introduction
            assert "Light the lamp." in introduction
            assert client.instructions == introduction
            (prompt,) = (await client.list_prompts()).prompts
            (message,) = (await client.get_prompt(prompt.name)).messages
            assert (message.role, message.content.text) == ("user", introduction)
            assert (await client.read_resource(TASK)).contents[0].text == introduction
            with pytest.raises(MCPError, match="no prompt `tsak`; did you mean `task`"):
                await client.get_prompt("tsak")
            with pytest.raises(MCPError, match="no resource `episode://tsak`"):
                await client.read_resource("episode://tsak")

    asyncio.run(main())


def test_the_result_is_hidden_unless_asked_for_and_until_the_end():
    async def main():
        async with client_of(Lamp()) as (client, _):
            await client.call_tool("light", {"wick": 1})
            assert RESULT not in [str(found.uri) for found in (await client.list_resources()).resources]
            with pytest.raises(MCPError, match="no resource"):
                await client.read_resource(RESULT)
        async with client_of(Lamp(), show_result=True) as (client, _):
            with pytest.raises(MCPError, match="when the episode is over"):
                await client.read_resource(RESULT)
            await client.call_tool("light", {"wick": 1})
            assert RESULT in [str(found.uri) for found in (await client.list_resources()).resources]
            account = json.loads((await client.read_resource(RESULT)).contents[0].text)
            assert (account["reward"], account["success"]) == (1.0, True)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("art/2408-v0",), "2048"),
        (("art/2048-v0", "--env-args", "board_size"), "write it as name=value"),
        (("art/2048-v0", "--split", "tset"), "no split `tset`"),
        (("art/2048-v0", "--env-args", "bord_size=4"), "bord_size"),
        (("art/2048Array-v0",), "cannot be played by calls of tools"),
        (("art/2048-v0", "--json", "no/such/folder/file"), "no/such/folder"),
        (("art/2048-v0", "--http", "0", "--split", "tset"), "no split `tset`"),
        (("art/2048-v0", "--http", "0", "--host", "0.0.0.0"), "ART_GYM_MCP_TOKEN"),
    ],
)
def test_wrong_use_of_the_command_is_one_line(monkeypatch, rejected, arguments, reason):
    monkeypatch.delenv("ART_GYM_MCP_TOKEN", raising=False)
    assert reason in rejected("serve-mcp", *arguments)


def test_a_missing_sdk_is_named_with_its_extra(monkeypatch, rejected):
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert 'pip install "art-gym[cli,mcp]"' in rejected("serve-mcp", "art/2048-v0")
