"""``art-gym serve-mcp``: an environment's tools for any MCP client.

As `art_gym.cli`, of which it is a part, it imports typer only when a command runs, and does without
``from __future__ import annotations``.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

if TYPE_CHECKING:
    from art_gym.tool_episode import ToolEpisode

TOKEN = "ART_GYM_MCP_TOKEN"
"""The environment variable that holds the token of the HTTP form; an argument would show in `ps`."""

SERVE_MCP_HELP = """Offer an environment's tools to any MCP client, one episode a session.

Without --http the client starts this command itself and talks over its standard streams: put it into the
client's configuration. With --http it serves streamable HTTP on this machine, and every session plays an
episode of its own. The model sees what the environment says, and no reward; --json writes it for you.

Set ART_GYM_MCP_TOKEN to require a token over HTTP; a --host that others can reach needs one.

Example: art-gym serve-mcp art/2048-v0 --seed 1 --json episodes.jsonl
"""


def command_serve_mcp() -> Callable[..., None]:
    """The command, for `art_gym.cli` to add."""
    import typer

    def command(
        env: Annotated[str, typer.Argument(help="An environment's id.", show_default=False)],
        env_args: Annotated[
            list[str] | None, typer.Option(help="An argument of the environment, name=value; repeatable.")
        ] = None,
        split: Annotated[str | None, typer.Option(help="The split that tasks come from.")] = None,
        task: Annotated[str | None, typer.Option(help="The id of one task to play.")] = None,
        seed: Annotated[
            int | None,
            typer.Option(
                help="Of the first session; the next has the next.", show_default="a fresh one", min=0
            ),
        ] = None,
        http: Annotated[
            int | None, typer.Option(help="Serve HTTP at this port; 0 takes a free one.", min=0, max=65535)
        ] = None,
        host: Annotated[str, typer.Option(help="The address for --http.")] = "127.0.0.1",
        max_sessions: Annotated[int, typer.Option(help="The most sessions at once, over HTTP.", min=1)] = 16,
        idle: Annotated[
            float, typer.Option(help="Seconds after which an idle HTTP session ends.", min=1)
        ] = 600.0,
        json_file: Annotated[
            Path | None, typer.Option("--json", help="Append every episode's reward and metrics here.")
        ] = None,
        show_result: Annotated[
            bool, typer.Option("--show-result", help="Let clients read it as well, after the end.")
        ] = False,
    ) -> None:
        import gymnasium as gym

        from art_gym.cli_envs import parse_env_args
        from art_gym.errors import ArtGymError

        try:
            arguments = parse_env_args(env_args or [])
            begin = beginner(env, arguments, split=split, task=task, seed=seed)
            on_end = _appender(json_file)
            if http is None:
                from art_gym.mcp_server import serve_stdio

                serve_stdio(begin, show_result=show_result, on_end=on_end)
            else:
                # Wrong arguments are told now, not to the first client.
                beginner(env, arguments, split=split, task=task, seed=0)().close()
                _serve_http(begin, on_end, http, host, max_sessions, idle, show_result)
        except ModuleNotFoundError as error:
            if error.name not in ("mcp", "mcp_types"):
                raise
            _fail('serve-mcp needs the MCP SDK; run: pip install "art-gym[cli,mcp]"')
        except (ValueError, TypeError, OSError, ArtGymError, gym.error.Error) as error:
            _fail(str(error))
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    return command


def beginner(
    env: str, env_args: dict[str, Any], *, split: str | None, task: str | None, seed: int | None
) -> "Callable[[], ToolEpisode]":
    """What makes the next episode: with ``seed``, then ``seed + 1``, …; without one, each with a fresh one.

    Called from several threads it gives every episode a seed of its own.
    """
    import itertools

    import gymnasium as gym
    import numpy as np

    import art_gym  # noqa: F401 - registers the environments
    from art_gym.tool_episode import ToolEpisode

    options = {name: value for name, value in (("split", split), ("task", task)) if value is not None}
    fresh = np.random.default_rng()
    seeds = itertools.count(seed) if seed is not None else iter(lambda: int(fresh.integers(2**31)), None)

    def begin() -> ToolEpisode:
        made = gym.make(env, **env_args)
        try:
            return ToolEpisode(made, seed=next(seeds), options=options)
        except BaseException:
            made.close()
            raise

    return begin


def _serve_http(
    begin: "Callable[[], ToolEpisode]",
    on_end: Callable[[dict[str, Any]], None] | None,
    port: int,
    host: str,
    max_sessions: int,
    idle: float,
    show_result: bool,
) -> None:
    from art_gym.mcp_http import EpisodeSessions, Limits, is_loopback, serve_http

    token = os.environ.get(TOKEN) or None
    local = is_loopback(host)
    if token is None and not local:
        raise ValueError(f"--host {host} can be reached by others: set {TOKEN}, or leave it at 127.0.0.1")
    sessions = EpisodeSessions(
        begin,
        show_result=show_result,
        limits=Limits(max_sessions, idle),
        token=token,
        local=local,
        on_end=on_end,
    )

    def say(url: str) -> None:
        print(f"serving at {url}", file=sys.stderr, flush=True)

    serve_http(sessions, port=port, host=host, on_start=say)


def _appender(path: Path | None) -> Callable[[dict[str, Any]], None] | None:
    """What appends accounts to a file as JSON lines; opens it, so that a wrong path is told at once."""
    if path is None:
        return None
    path.open("a", encoding="utf-8").close()

    def append(account: dict[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(account, ensure_ascii=False) + "\n")

    return append


def _fail(reason: str) -> NoReturn:
    """Say what is wrong in one line and end with exit code 2."""
    import typer

    print(f"art-gym: {reason}", file=sys.stderr)
    raise typer.Exit(2)
