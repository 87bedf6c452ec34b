"""An environment's tools for any MCP client: one episode a session.

The client lists the tools and calls them; answers are the environment's observations. The task stands in the
server's instructions, and, for clients that do not show those to their model, in the prompt ``task`` and the
resource ``episode://task``. A model never sees its reward unless the environment says it in words:
:func:`episode_server` can offer the account of an episode that is over as a resource, and does so only when
asked to. The specification: https://modelcontextprotocol.io/specification.

Only this module, :mod:`art_gym.mcp_http` and their command import the ``mcp`` package.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn, TypeVar

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from art_gym.errors import did_you_mean
from art_gym.tool_episode import ENDED, Answer, ToolEpisode

TASK, OBSERVATION, RESULT = "episode://task", "episode://observation", "episode://result"
"""The resources: what to do, the latest observation as it is, and the account of an episode that is over."""

_T = TypeVar("_T")


class PlayedEpisode:
    """An episode on a thread of its own, for a server that must not wait for an environment.

    The environment is made, stepped and closed on that one thread, so calls are carried out one after the
    other in the order they came, and a call whose client has lost patience is still carried out.

    Args:
        begin: Makes the episode.
    """

    def __init__(self, begin: Callable[[], ToolEpisode]) -> None:
        self._begin = begin
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="episode")
        self._episode: ToolEpisode | None = None

    @property
    def episode(self) -> ToolEpisode:
        """The episode; to be read only, as its own thread changes it."""
        if self._episode is None:
            raise RuntimeError("call begin() first")
        return self._episode

    async def begin(self) -> None:
        """Make the episode.

        Raises:
            Exception: Whatever making it raised.
        """
        try:
            self._episode = await self._run(self._begin)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    async def call(self, name: str, arguments: Mapping[str, Any] | None) -> Answer:
        """Play a call as one turn."""
        return await self._run(partial(self.episode.call, name, arguments))

    async def close(self) -> dict[str, Any]:
        """Close the environment, and return the account of the episode."""
        episode = self.episode

        def close() -> dict[str, Any]:
            account = episode.account()
            episode.close()
            return account

        try:
            return await self._run(close)
        finally:
            self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def episode_server(played: PlayedEpisode, *, show_result: bool = False) -> Server[Any]:
    """The MCP server of one episode, for one client.

    Args:
        played: The episode, begun.
        show_result: Whether the account of the episode can be read at ``episode://result`` once it is over;
            a client may then show a model its reward.
    """
    episode = played.episode

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool(function) for function in episode.tools])

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        answer = await played.call(params.name, params.arguments)
        words = [answer.text, ENDED] if answer.ended else [answer.text]
        content = [types.TextContent(type="text", text=text) for text in words]
        return types.CallToolResult(content=list(content), is_error=answer.refused)

    async def list_resources(_: Any, __: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=_resources(show_result and episode.over))

    async def read_resource(_: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        uri = str(params.uri)
        return types.ReadResourceResult(contents=[_contents(uri, episode, show_result=show_result)])

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
        on_end: Given the account of the episode when the client has left.

    Raises:
        Exception: Whatever making the episode raised.
    """

    async def serve() -> None:
        played = PlayedEpisode(begin)
        await played.begin()
        try:
            server = episode_server(played, show_result=show_result)
            async with stdio_server() as (reading, writing):
                await server.run(reading, writing, server.create_initialization_options())
        finally:
            with anyio.CancelScope(shield=True):
                account = await played.close()
            if on_end is not None:
                on_end(account)

    anyio.run(serve)


def _tool(function: Mapping[str, Any]) -> types.Tool:
    return types.Tool(
        name=function["name"],
        description=function.get("description"),
        input_schema=dict(function["parameters"]),
    )


def _resources(with_result: bool) -> list[types.Resource]:
    resources = [
        types.Resource(uri=TASK, name="task", description="What to do.", mime_type="text/plain"),
        types.Resource(
            uri=OBSERVATION, name="observation", description="The latest observation.", mime_type="text/plain"
        ),
    ]
    if with_result:
        resources.append(
            types.Resource(
                uri=RESULT, name="result", description="What came of it.", mime_type="application/json"
            )
        )
    return resources


def _contents(uri: str, episode: ToolEpisode, *, show_result: bool) -> types.TextResourceContents:
    if uri == TASK:
        return types.TextResourceContents(uri=uri, text=episode.introduction, mime_type="text/plain")
    if uri == OBSERVATION:
        return types.TextResourceContents(uri=uri, text=episode.observation, mime_type="text/plain")
    if uri != RESULT or not show_result:
        known = [TASK, OBSERVATION, RESULT] if show_result else [TASK, OBSERVATION]
        _refuse(f"no resource `{uri}`{did_you_mean(uri, known)}")
    if not episode.over:
        _refuse(f"`{RESULT}` can be read when the episode is over")
    account = json.dumps(episode.account(), ensure_ascii=False)
    return types.TextResourceContents(uri=uri, text=account, mime_type="application/json")


def _refuse(words: str) -> NoReturn:
    raise MCPError(code=types.INVALID_PARAMS, message=words)
