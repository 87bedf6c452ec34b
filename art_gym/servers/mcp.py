"""An environment's tools for any MCP client: one episode a session.

The client lists the tools and calls them; answers are the environment's observations. The task stands in the
server's instructions, and, for clients that do not show those to their model, in the prompt ``task`` and the
resource ``episode://task``. A model never sees its reward unless the environment shows it in an observation:
:func:`episode_server` can offer the result of an episode that is over as a resource, and does so only when
asked to. The specification: https://modelcontextprotocol.io/specification.

Only this module, :mod:`art_gym.servers.mcp_http` and their command import the ``mcp`` package.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, Self

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from art_gym.errors import did_you_mean
from art_gym.servers.tool_episode import ENDED, Answer, ToolEpisode

TASK, OBSERVATION, RESULT = "episode://task", "episode://observation", "episode://result"
"""The resources: what to do, the latest observation as it is, and the result of an episode that is over."""

_ABOUT = {TASK: "What to do.", OBSERVATION: "The latest observation.", RESULT: "The episode's result."}


class AsyncEpisode:
    """An episode on a thread of its own, for a server that must not wait for an environment.

    The environment is made, stepped and closed on that one thread, so calls are carried out one after the
    other in the order they came, and a call whose client has given up is still carried out.

    Attributes:
        episode: The episode; to be read only, as its own thread changes it.
    """

    def __init__(self, episode: ToolEpisode, thread: ThreadPoolExecutor) -> None:
        self.episode = episode
        self._thread = thread

    @classmethod
    async def begin(cls, make: Callable[[], ToolEpisode]) -> Self:
        """Make an episode on a new thread.

        Raises:
            Exception: Whatever making it raised.
        """
        thread = ThreadPoolExecutor(1, thread_name_prefix="episode")
        try:
            return cls(await asyncio.get_running_loop().run_in_executor(thread, make), thread)
        except BaseException:
            thread.shutdown(wait=False)
            raise

    async def call(self, name: str, arguments: Mapping[str, Any] | None) -> Answer:
        """Play a call as one turn."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self.episode.call, name, arguments)

    async def close(self) -> dict[str, Any]:
        """Close the environment, and return the result of the episode."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self.episode.close)
        finally:
            self._thread.shutdown(wait=False)


def episode_server(played: AsyncEpisode, *, show_result: bool = False) -> Server[Any]:
    """The MCP server of one episode, for one client.

    Args:
        played: The episode.
        show_result: Whether the result of the episode can be read at ``episode://result`` once it is over;
            a client may then show a model its reward.
    """
    episode = played.episode

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        tools = [
            types.Tool(
                name=tool["name"], description=tool.get("description"), input_schema=dict(tool["parameters"])
            )
            for tool in episode.tools
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        answer = await played.call(params.name, params.arguments)
        texts = [answer.text, ENDED] if answer.ended else [answer.text]
        content = [types.TextContent(type="text", text=text) for text in texts]
        return types.CallToolResult(content=list(content), is_error=answer.refused)

    async def list_resources(_: Any, __: Any) -> types.ListResourcesResult:
        uris = [TASK, OBSERVATION, *([RESULT] if show_result and episode.over else [])]
        resources = [
            types.Resource(
                uri=uri, name=uri.rpartition("/")[2], description=_ABOUT[uri], mime_type=_mime(uri)
            )
            for uri in uris
        ]
        return types.ListResourcesResult(resources=resources)

    async def read_resource(_: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        uri = str(params.uri)
        texts = {TASK: episode.introduction, OBSERVATION: episode.observation}
        if show_result:
            texts[RESULT] = json.dumps(episode.result(), ensure_ascii=False)
        if uri not in texts:
            _refuse(f"no resource `{uri}`{did_you_mean(uri, texts)}")
        if uri == RESULT and not episode.over:
            _refuse(f"`{RESULT}` can be read when the episode is over")
        content = types.TextResourceContents(uri=uri, text=texts[uri], mime_type=_mime(uri))
        return types.ReadResourceResult(contents=[content])

    async def list_prompts(_: Any, __: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[types.Prompt(name="task", description="What to do.")])

    async def get_prompt(_: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        if params.name != "task":
            _refuse(f"no prompt `{params.name}`{did_you_mean(params.name, ['task'])}")
        content = types.TextContent(type="text", text=episode.introduction)
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])

    return Server(
        episode.name,
        instructions=episode.introduction,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )


def serve_stdio(
    begin: Callable[[], ToolEpisode],
    *,
    show_result: bool = False,
    on_end: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Serve one episode over this process's standard streams, until the client leaves.

    Args:
        begin: Makes the episode.
        show_result: As of :func:`episode_server`.
        on_end: Given the result of the episode when the client has left.

    Raises:
        Exception: Whatever making the episode raised.
    """

    async def serve() -> None:
        played = await AsyncEpisode.begin(begin)
        try:
            server = episode_server(played, show_result=show_result)
            async with stdio_server() as (reading, writing):
                await server.run(reading, writing, server.create_initialization_options())
        finally:
            with anyio.CancelScope(shield=True):
                result = await played.close()
            if on_end is not None:
                on_end(result)

    anyio.run(serve)


def _mime(uri: str) -> str:
    return "application/json" if uri == RESULT else "text/plain"


def _refuse(message: str) -> NoReturn:
    raise MCPError(code=types.INVALID_PARAMS, message=message)
