"""What the tests of the MCP server share: coroutines as tests, and an episode that is played twice."""

import asyncio
import functools

import numpy as np

from art_gym import parse
from art_gym.base import jsonable
from art_gym.servers.mcp import ENDED, OBSERVATION


def in_loop(test):
    """Run a coroutine function as a test."""

    @functools.wraps(test)
    def run(*arguments, **fixtures):
        asyncio.run(test(*arguments, **fixtures))

    return run


async def play_along(client, env, player, *, seed=3, turns=400, **options):
    """Play an episode by MCP and directly; both must show the same. The direct reward and the last info."""
    observation, info = env.reset(seed=seed, options=options)
    act = env.unwrapped.baselines[player](env.unwrapped, np.random.default_rng(0))
    functions = [schema["function"] for schema in info["tools"]]
    tools = {item.name: item.input_schema for item in (await client.list_tools()).tools}
    assert tools == {function["name"]: function["parameters"] for function in functions}
    assert (await client.read_resource(OBSERVATION)).contents[0].text == observation
    total, over = 0.0, False
    for _ in range(turns):
        reply = act(observation)
        call = parse(reply, env.unwrapped.tools)
        observation, reward, terminated, truncated, info = env.step(reply)
        total, over = total + reward, terminated or truncated
        result = await client.call_tool(call.name, jsonable(call.arguments))
        assert [content.text for content in result.content] == [observation, *[ENDED] * over]
        if over:
            break
    return total, info
