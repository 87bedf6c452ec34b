"""``art-gym list``, ``info`` and ``check``: list, describe and check environments."""

import contextlib
import textwrap
from collections import Counter
from typing import Annotated, Any

import gymnasium as gym
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from art_gym.baselines import play, players
from art_gym.catalog import entries, make_game, sections, summary
from art_gym.cli.common import EnvArgs, EnvId, fail, parse_env_args, user_errors
from art_gym.errors import ArtGymError
from art_gym.lookup import find_env, make_env
from art_gym.testing import ADVICE, check_results
from art_gym.tools import usage_lines

_SECTIONS = ("Description", "Starting State", "Rewards", "Episode End", "Information", "Arguments")
"""Headings of the docstring that `info` shows; spaces and tools are shown from the environment itself."""


def list_command() -> None:
    """List the environments of this project and of installed packages."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    for entry in entries():
        table.add_row(Text(entry.id, style="bold"), Text(entry.summary))
    Console().print(table)


def info_command(
    env: EnvId,
    env_args: EnvArgs = None,
    play: Annotated[int, typer.Option(help="Episodes that each scripted player plays.", min=0)] = 0,
    split: Annotated[str | None, typer.Option(help="The split whose tasks they play.")] = None,
) -> None:
    """Describe an environment: spaces, tools, splits, rewards, arguments, scripted players.

    With --play N every scripted player plays N episodes, and its score is shown.

    Example: art-gym info art/Email-v0 --env-args difficulty=1 --play 100 --split test
    """
    with contextlib.closing(_make(env, env_args)) as made:
        _show_docstring(find_env(env).id, made)
        if hasattr(made, "possible_agents"):
            _show_seats(made)
        else:
            _show_spaces(made)
            _show_players(made, play, split)


def check_command(
    env: EnvId,
    env_args: EnvArgs = None,
    publish: Annotated[
        bool, typer.Option("--publish", help="Advice is a rule too, for an environment that others will use.")
    ] = False,
) -> None:
    """Check a text environment against every rule of the TextEnv contract.

    The exit code is 1 if a rule is broken. Headings of the docstring and valid random calls are advice.

    Example: art-gym check art/Email-v0 --env-args difficulty=1
    """
    counts, shown = Counter[str](), set()
    with contextlib.closing(_make(env, env_args, games=False)) as made:
        if not hasattr(made.unwrapped, "tools"):
            fail(
                f"{env} is no TextEnv, whose contract is checked here: derive it from art_gym.TextEnv, or "
                "make it one with art_gym.wrappers.TextAdapter; docs/guides/other-environments.md shows how"
            )
        for result in check_results(made):
            advice = result.rule in ADVICE and not publish
            word = {True: "ok", False: "advice" if advice else "BROKEN", None: "unknown"}[result.passed]
            print(f"{word:8} {result.rule}")
            if result.detail and result.detail not in shown:
                print(f"         {result.detail}")
            shown.add(result.detail)
            counts[word] += 1
    print(f"\n{find_env(env).id} keeps {counts['ok']} of the contract's {counts.total()} rules", end="")
    print("; advice is for publishing it (--publish)" if counts["advice"] else "")
    raise typer.Exit(1 if counts["BROKEN"] or counts["unknown"] else 0)


def _make(env_id: str, pairs: list[str] | None, *, games: bool = True) -> Any:
    """Make the environment, or the game if ``games`` is true."""
    with user_errors():
        arguments, env_id = parse_env_args(pairs), find_env(env_id).id
        game = make_game(env_id, arguments) if games else None
        return make_env(env_id, arguments) if game is None else game


def _show_docstring(env_id: str, made: Any) -> None:
    print(f"{env_id}: {summary(type(made.unwrapped))}")
    found = sections(type(made.unwrapped))
    for title in _SECTIONS:
        if title in found:
            _show_part(title, found[title])


def _show_part(title: str, text: str) -> None:
    print(f"\n{title}\n{textwrap.indent(text, '  ')}")


def _show_seats(game: Any) -> None:
    """Each seat's spaces, tools and scripted players."""
    tools, scripted = getattr(game.unwrapped, "tools", {}), getattr(game.unwrapped, "players", {})
    for seat in game.possible_agents:
        lines = [f"observations: {game.observation_space(seat)}", f"actions: {game.action_space(seat)}"]
        lines += [usage_lines(tools[seat].values())] if seat in tools else []
        lines += [f"scripted players: {', '.join(scripted[seat])}"] if scripted.get(seat) else []
        _show_part(f"Seat {seat}", "\n".join(lines))


def _show_spaces(made: gym.Env[Any, Any]) -> None:
    """The spaces and, for a text environment, tools, splits and limits."""
    bare: Any = made.unwrapped
    _show_part("Spaces", f"observations: {made.observation_space}\nactions: {made.action_space}")
    if getattr(bare, "tools", None):
        _show_part("Tools", usage_lines(bare.tools.values()))
    if hasattr(bare, "tasks"):
        _show_part("Tasks", "\n".join(f"{name}: {len(bare.tasks.split(name))}" for name in bare.tasks.splits))
    if hasattr(bare, "invalid_action_penalty"):
        cost = f"a reply that is not a valid call costs {bare.invalid_action_penalty:g}"
        _show_part("Limits", f"{bare.max_turns} turns; {cost}")


def _show_players(made: gym.Env[Any, Any], episodes: int, split: str | None) -> None:
    """The scripted players, with their scores if they are to play."""
    teachers = getattr(made.unwrapped, "teachers", {})
    names = list(players(made))
    if not names:
        _show_part("Scripted players", "none")
        return
    print(f"\nScripted players{f', {episodes} episodes each' if episodes else ''}")
    for name in names:
        line = f"  {name}{' (may look at the answer)' if name in teachers else ''}"
        if episodes:
            try:
                score = play(made, name, episodes=episodes, split=split)
            except ArtGymError as error:
                fail(error)
            line += (
                f": reward {score.reward:.3f} ± {score.error:.3f}, success {score.success:.1%}, "
                f"{score.turns:.1f} turns"
            )
        print(line, flush=True)
    if episodes:
        print("  (± is the standard error)")
