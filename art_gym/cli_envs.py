"""``art-gym list``, ``info`` and ``check``: which environments there are, what they are and what they keep.

As `art_gym.cli`, of which it is a part, it imports typer and rich only when a command runs, and does without
``from __future__ import annotations``.
"""

import contextlib
import json
import sys
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import gymnasium as gym

from art_gym.errors import ArtGymError

if TYPE_CHECKING:
    import typer

_LIST_HELP = """List the environments: ours and those of installed packages, each with what it is about."""
_INFO_HELP = """Tell what an environment is: spaces, tools, splits, rewards, arguments, scripted players.

With --play N every scripted player plays N episodes, and what it got is shown.

Example: art-gym info art/Email-v0 --env-args difficulty=1 --play 100 --split test
"""
_CHECK_HELP = """Hold a text environment to every sentence of the contract, and say which it keeps.

The exit code is 1 when one does not hold.

Example: art-gym check art/Email-v0 --env-args difficulty=1
"""
_SECTIONS = ("Description", "Starting State", "Rewards", "Episode End", "Information", "Arguments")
"""Headings of the docstring that `info` shows; spaces and tools are shown from the environment itself."""
_FAULTS = (ArtGymError, gym.error.Error, ValueError, TypeError, OSError, ImportError)
"""What making an environment raises for wrong ids, arguments and files."""


def add_env_commands(app: "typer.Typer") -> None:
    """Add ``list``, ``info`` and ``check`` to the ``art-gym`` command."""
    app.command("list", help=_LIST_HELP)(_command_list)
    app.command("info", help=_INFO_HELP)(_command_info())
    app.command("check", help=_CHECK_HELP)(_command_check())


def parse_env_args(pairs: list[str]) -> dict[str, Any]:
    """``["difficulty=1", "reward=shaped"]`` as arguments: values are JSON where they can be, else text.

    Raises:
        ValueError: For a pair without ``=``.
    """
    arguments: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"--env-args {pair}: write it as name=value, as in difficulty=1")
        try:
            arguments[name] = json.loads(text)
        except json.JSONDecodeError:
            arguments[name] = text
    return arguments


def _command_list() -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from art_gym.catalog import entries

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    for entry in entries():
        table.add_row(Text(entry.id, style="bold"), Text(entry.summary))
    Console().print(table)


def _command_info() -> Callable[..., None]:
    import typer

    def command(
        env: Annotated[str, typer.Argument(help="The environment's id.", show_default=False)],
        env_args: Annotated[
            list[str], typer.Option(metavar="KEY=VALUE", help="Argument of the environment. Repeatable.")
        ] = [],  # noqa: B006 (typer reads it, nobody changes it)
        play: Annotated[int, typer.Option(help="Episodes that each scripted player plays.", min=0)] = 0,
        split: Annotated[str | None, typer.Option(help="Whose tasks they play.")] = None,
    ) -> None:
        with contextlib.closing(_make(env, env_args)) as made:
            _show_docstring(env, made)
            if hasattr(made, "possible_agents"):
                _show_seats(made)
            else:
                _show_spaces(made)
                _show_players(made, play, split)

    return command


def _command_check() -> Callable[..., None]:
    import typer

    def command(
        env: Annotated[str, typer.Argument(help="The environment's id.", show_default=False)],
        env_args: Annotated[
            list[str], typer.Option(metavar="KEY=VALUE", help="Argument of the environment. Repeatable.")
        ] = [],  # noqa: B006
    ) -> None:
        from art_gym.verdicts import verdicts

        held, shown = [], set()
        with contextlib.closing(_make(env, env_args, games=False)) as made:
            for verdict in verdicts(made):
                word = {True: "holds", False: "BROKEN", None: "unknown"}[verdict.held]
                print(f"{word:8} {verdict.sentence}")
                if verdict.detail and verdict.detail not in shown:
                    print(f"         {verdict.detail}")
                shown.add(verdict.detail)
                held.append(verdict.held is True)
        print(f"\n{env} keeps {sum(held)} of the contract's {len(held)} sentences")
        raise typer.Exit(0 if all(held) else 1)

    return command


def _make(env_id: str, pairs: list[str], *, games: bool = True) -> Any:
    """The environment, or the game where ``games``; a wrong id or argument is one line and exit code 2."""
    from art_gym.catalog import env_spec, make_game

    try:
        arguments = parse_env_args(pairs)
        game = make_game(env_id, arguments) if games else None
        return env_spec(env_id).make(**arguments) if game is None else game
    except _FAULTS as error:
        _fail(str(error))


def _fail(reason: str) -> NoReturn:
    import typer

    print(f"art-gym: {reason}", file=sys.stderr)
    raise typer.Exit(2) from None


def _show_docstring(env_id: str, made: Any) -> None:
    """What the class says of itself; wrappers say nothing of the task."""
    from art_gym.docstrings import sections, summary

    print(f"{env_id}: {summary(type(made.unwrapped))}")
    found = sections(type(made.unwrapped))
    for title in _SECTIONS:
        if title in found:
            _show_part(title, found[title])


def _show_part(title: str, text: str) -> None:
    print(f"\n{title}\n{textwrap.indent(text, '  ')}")


def _show_seats(game: Any) -> None:
    """Each seat's spaces, tools and scripted players."""
    from art_gym.tools import usage_lines

    tools, players = getattr(game.unwrapped, "tools", {}), getattr(game.unwrapped, "players", {})
    for seat in game.possible_agents:
        lines = [f"observations: {game.observation_space(seat)}", f"actions: {game.action_space(seat)}"]
        lines += [usage_lines(tools[seat].values())] if seat in tools else []
        lines += [f"scripted players: {', '.join(players[seat])}"] if players.get(seat) else []
        _show_part(f"Seat {seat}", "\n".join(lines))


def _show_spaces(made: gym.Env[Any, Any]) -> None:
    """Spaces and, of a text environment, tools, splits and limits."""
    from art_gym.tools import usage_lines

    bare: Any = made.unwrapped
    _show_part("Spaces", f"observations: {made.observation_space}\nactions: {made.action_space}")
    if getattr(bare, "tools", None):
        _show_part("Tools", usage_lines(bare.tools.values()))
    if hasattr(bare, "tasks"):
        _show_part("Tasks", "\n".join(f"{name}: {len(bare.tasks.split(name))}" for name in bare.tasks.splits))
    if hasattr(bare, "max_turns"):
        cost = f"a reply that is no valid call costs {bare.invalid_action_penalty:g}"
        _show_part("Limits", f"{bare.max_turns} turns; {cost}")


def _show_players(made: gym.Env[Any, Any], episodes: int, split: str | None) -> None:
    """The scripted players, with what they get where they are to play."""
    from art_gym.catalog import play, players

    teachers = getattr(made.unwrapped, "teachers", {})
    names = list(players(made))
    if not names:
        _show_part("Scripted players", "none")
        return
    title = f"Scripted players, {episodes} episodes each" if episodes else "Scripted players"
    print(f"\n{title}")
    for name in names:
        words = f"  {name}{' (may look at the answer)' if name in teachers else ''}"
        if episodes:
            try:
                score = play(made, name, episodes=episodes, split=split)
            except ArtGymError as error:
                _fail(str(error))
            words += (
                f": reward {score.reward:.3f} ± {score.error:.3f}, success {score.success:.1%}, "
                f"{score.turns:.1f} turns"
            )
        print(words, flush=True)
    if episodes:
        print("  (± is the standard error)")
