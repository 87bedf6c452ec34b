"""``art-gym serve-mcp``: serve an environment's tools to any MCP client."""

import itertools
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

import art_gym  # noqa: F401 - registers the environments
from art_gym.cli.common import EnvArgs, EnvId, fail, parse_env_args, user_errors
from art_gym.lookup import make_env
from art_gym.servers.tool_episode import ToolEpisode

if TYPE_CHECKING:
    from art_gym.servers.mcp_http import Limits

TOKEN = "ART_GYM_MCP_TOKEN"
"""The environment variable that holds the token for HTTP; an argument would be visible in `ps`."""


def serve_mcp_command(
    env: EnvId,
    env_args: EnvArgs = None,
    split: Annotated[str | None, typer.Option(help="The split that tasks come from.")] = None,
    task: Annotated[str | None, typer.Option(help="The id of one task to play.")] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the first session; each next one adds 1.", show_default="random", min=0),
    ] = None,
    http: Annotated[
        int | None, typer.Option(help="Serve HTTP at this port; 0 takes a free one.", min=0, max=65535)
    ] = None,
    host: Annotated[str, typer.Option(help="The address for --http.")] = "127.0.0.1",
    max_sessions: Annotated[int, typer.Option(help="The most HTTP sessions at once.", min=1)] = 16,
    idle: Annotated[float, typer.Option(help="Seconds until an idle HTTP session ends.", min=1)] = 600.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Append every episode's reward and metrics to this file.")
    ] = None,
    show_result: Annotated[
        bool, typer.Option("--show-result", help="Let clients read them too, after the end.")
    ] = False,
) -> None:
    """Serve an environment's tools to any MCP client, one episode per session.

    Without --http the client starts this command itself and talks over its standard streams: put it into the
    client's configuration. With --http it serves streamable HTTP on this machine, and every session plays an
    episode of its own. The model sees the observations but no rewards; --json writes the rewards to a file.

    Set ART_GYM_MCP_TOKEN to require a token over HTTP; a --host that others can reach needs one.

    Example: art-gym serve-mcp art/2048-v0 --seed 1 --json episodes.jsonl
    """
    try:
        import mcp  # noqa: F401
    except ModuleNotFoundError:
        fail('serve-mcp needs the MCP SDK; run: pip install "art-gym[cli,mcp]"')
    try:
        with user_errors():
            arguments = parse_env_args(env_args)
            begin = episode_factory(env, arguments, split=split, task=task, seed=seed)
            on_end = _appender(json_file)
            if http is None:
                from art_gym.servers.mcp import serve_stdio

                serve_stdio(begin, show_result=show_result, on_end=on_end)
            else:
                from art_gym.servers.mcp_http import Limits

                # Wrong arguments are reported now, not to the first client.
                episode_factory(env, arguments, split=split, task=task, seed=0)().close()
                _serve_http(begin, on_end, http, host, Limits(max_sessions, idle), show_result)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def episode_factory(
    env: str, env_args: dict[str, Any], *, split: str | None, task: str | None, seed: int | None
) -> Callable[[], ToolEpisode]:
    """Return a function that begins the next episode, with ``seed``, ``seed + 1`` and so on, or random seeds.

    It may be called from several threads: every episode gets its own seed.
    """
    options = {name: value for name, value in (("split", split), ("task", task)) if value is not None}
    fresh = np.random.default_rng()
    seeds = itertools.count(seed) if seed is not None else iter(lambda: int(fresh.integers(2**31)), None)

    def begin() -> ToolEpisode:
        made = make_env(env, env_args)
        try:
            return ToolEpisode(made, seed=next(seeds), options=options)
        except BaseException:
            made.close()
            raise

    return begin


def _serve_http(
    begin: Callable[[], ToolEpisode],
    on_end: Callable[[dict[str, Any]], None] | None,
    port: int,
    host: str,
    limits: "Limits",
    show_result: bool,
) -> None:
    from art_gym.servers.mcp_http import EpisodeSessions, is_loopback, serve_http

    token = os.environ.get(TOKEN) or None
    local = is_loopback(host)
    if token is None and not local:
        raise ValueError(f"--host {host} can be reached by others: set {TOKEN}, or leave it at 127.0.0.1")
    sessions = EpisodeSessions(
        begin,
        show_result=show_result,
        limits=limits,
        token=token,
        local=local,
        on_end=on_end,
    )

    serve_http(
        sessions, port=port, host=host, on_start=partial(print, "serving at", file=sys.stderr, flush=True)
    )


def _appender(path: Path | None) -> Callable[[dict[str, Any]], None] | None:
    """Return a function that appends results to a JSON Lines file; a wrong path is reported at once."""
    if path is None:
        return None
    path.touch(0o600)  # results may hold mail
    path.open("a", encoding="utf-8").close()

    def append(result: dict[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result, ensure_ascii=False) + "\n")

    return append
