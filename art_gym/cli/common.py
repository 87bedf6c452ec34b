"""What the sub-commands share: one-line errors, and arguments of an environment."""

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Annotated, Any, NoReturn

import typer
from gymnasium.error import Error as GymnasiumError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from art_gym.errors import ArtGymError, described, user_line
from art_gym.terminal import visible


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"art-gym {metadata.version('art-gym')}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
]
EnvId = Annotated[str, typer.Argument(help="Its id, MODULE:ID, or a Python file.", show_default=False)]
EnvArgs = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="Argument of the environment. Repeatable.")
]


def fail(reason: object) -> NoReturn:
    """Print what is wrong in one line and exit with code 2."""
    print(f"art-gym: {visible(str(reason))}", file=sys.stderr)
    raise typer.Exit(2) from None


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Report the errors that a user can cause (wrong ids, arguments, files) in one line."""
    try:
        yield
    except (ArtGymError, GymnasiumError) as error:
        fail(error)
    except Exception as error:  # the author's code may raise anything
        if user_line(error) is not None:
            fail(described(error))
        if not isinstance(error, ValueError | TypeError | OSError | ImportError):
            raise
        fail(re.sub(r"^\[Errno \d+\] ", "", str(error)))


def progress() -> Progress:
    """A bar that says how much is done (its field ``amount``) and how long it takes, on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))


def parse_env_args(pairs: list[str] | None) -> dict[str, Any]:
    """Read ``["difficulty=1", "reward=shaped"]`` as arguments: values are JSON if they can be, else text."""
    arguments: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"--env-args {pair}: write it as name=value, as in difficulty=1")
        try:
            arguments[name] = json.loads(text)
        except json.JSONDecodeError:
            arguments[name] = text
    return arguments
