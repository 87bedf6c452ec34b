"""Makes the page of the two commands from their own help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer.main
from docstrings import table

from art_gym.cli.app import app as gym_app
from art_trainer.cli.main import app as trainer_app


def commands() -> dict[str, Any]:
    """``art-gym`` and ``art-trainer`` as click sees them, by name."""
    made = {"art-gym": gym_app, "art-trainer": trainer_app}
    return {name: typer.main.get_command(app) for name, app in made.items()}


def page() -> str:
    """The page in Markdown."""
    parts = ["# Commands", "Each has a `--help`, which this page is made from."]
    for name, command in commands().items():
        for path, leaf in _leaves(name, command):
            parts += _describe(path, leaf)
    return "\n\n".join(parts) + "\n"


def _leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command that does something, with the words that call it."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, child in command.commands.items():
        yield from _leaves(f"{path} {name}", child)


def _describe(path: str, command: Any) -> list[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    usage = " ".join([path, *(_metavar(one) for one in arguments), "[OPTIONS]"])
    help_text = inspect.cleandoc(command.help or "")
    example = re.search(r"^Examples?: (.*)\Z", help_text, re.MULTILINE | re.DOTALL)
    parts = [f"## {path}", f"    {usage}", help_text[: example.start()].strip() if example else help_text]
    if example:
        parts.append(f"    {example[1].strip()}")
    rows = [(_names(one), " ".join((one.help or "").split())) for one in command.params if one.name != "help"]
    if rows:
        parts.append(table(("", ""), *rows))
    if command.epilog:
        parts.append(inspect.cleandoc(command.epilog))
    return parts


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_metavar(parameter)}`"
    return ", ".join(f"`{name}`" for name in parameter.opts)
