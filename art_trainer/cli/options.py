"""The ``art-trainer`` app, and the decorator that makes a command of a function.

Parameters of the function are the command's arguments, keyword-only parameters its flags. The section
``Flags:`` of its docstring has their help texts. Training settings become flags by their names.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import typer
from rich.console import Console
from rich.text import Text

from art_gym.cli.common import Version
from art_gym.terminal import visible
from art_trainer.cli.run_config import (
    claimed_folder,
    gather_settings,
    parse_pairs,
    setting_default,
    setting_doc,
    setting_type,
)
from art_trainer.recipes import DEFAULT_RECIPE
from art_trainer.training.run_settings import Settings

app = typer.Typer(
    help="Train LLM agents on text environments with GRPO, evaluate them, watch them play.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


class ConsoleHandler(logging.Handler):
    """Prints log records as plain lines on the console; warnings and errors in yellow."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        style = "yellow" if record.levelno >= logging.WARNING else ""
        # A new console each time: it finds the stream that is standard output now.
        Console().print(Text(visible(self.format(record)), style), soft_wrap=True)


def show_logs(level: int = logging.INFO) -> None:
    """Show what the libraries log, from a level on."""
    for name in ("art_trainer", "art_gym"):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        if not any(isinstance(handler, ConsoleHandler) for handler in logger.handlers):
            logger.addHandler(ConsoleHandler())


@app.callback()
def _begin(version: Version = False) -> None:
    show_logs()


# ----------------------------------------------------------------------
# Types of flags. One with a help text means the same in every command.


class Flag:
    """What typer needs to know of a flag beside its name and type: keywords of ``typer.Option``."""

    def __init__(self, **options: Any) -> None:
        self.options = options


NO_PAIRS: Mapping[str, Any] = types.MappingProxyType({})
Count = Annotated[int, Flag(min=1)]
Whole = Annotated[int, Flag(min=0)]
Amount = Annotated[float, Flag(min=0)]
Port = Annotated[int, Flag(min=0, max=65535)]
File = Annotated[Path, Flag(metavar="FILE")]
RunDir = Annotated[
    Path, Flag(metavar="RUN", exists=True, file_okay=False, help="Folder of a run, finished or not.")
]
EnvId = Annotated[
    str,
    Flag(
        help="Environment with text observations and actions: its id, MODULE:ID, or a Python file. "
        f"[default: that of a policy's run, or of the recipe {DEFAULT_RECIPE}]"
    ),
]
EnvArgs = Annotated[Mapping[str, Any], Flag(help="Argument of the environment: a JSON value or text.")]
Split = Annotated[str, Flag(help="Split of the tasks. [default: test if there is one]")]
MaxTokens = Annotated[int, Flag(min=1, help="Largest number of tokens in one reply.")]
JsonFile = Annotated[Path, Flag(metavar="FILE", help="Write all numbers, and how they were made, here.")]
Host = Annotated[str, Flag(help="Address to listen on. Non-loopback addresses require a token.")]
TokenFile = Annotated[
    Path, Flag(metavar="FILE", help="File that holds the access token. [default: $ART_SERVER_TOKEN]")
]
AllowedHost = Annotated[
    Sequence[str],
    Flag(metavar="NAME", help="Another host name that clients may use for this server, without a port."),
]
TlsCert = Annotated[Path, Flag(metavar="FILE.pem", help="Certificate; with it the server uses TLS.")]
TlsKey = Annotated[Path, Flag(metavar="FILE.pem", help="Key of the certificate.")]

SHARED_FLAGS: Mapping[str, tuple[Any, str]] = {
    "recipe": (str | None, "Start from the settings of this recipe; flags override them."),
    "resume": (RunDir | None, "Resume the run in this folder."),
    "resume_step": (
        Count | None,
        "Resume from this step's checkpoint, not from the newest; later ones are deleted.",
    ),
    "config": (Annotated[Path, Flag(metavar="FILE.yaml")] | None, "Settings by name; flags override them."),
    "set_": (Mapping[str, Any], "Any other setting."),
    "verbose": (bool | None, "Show all settings, not only those that were set."),
    "quiet": (bool | None, "Print only warnings, errors and the table of results at the end."),
}
"""Flags of every command that trains: their types and help texts."""

# ----------------------------------------------------------------------

T = TypeVar("T", bound=Callable[..., None])
INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells: 128 plus the signal's number."""


def command(
    name: str,
    *examples: str,
    settings: Sequence[str] = (),
    defaults: Mapping[str, Any] = NO_PAIRS,
    default_recipe: str = DEFAULT_RECIPE,
    app: typer.Typer = app,
) -> Callable[[T], T]:
    """Add a command to the app. The function is returned as it is.

    Args:
        name: The command's name.
        examples: The end of its help text, a paragraph each.
        settings: Training settings that are flags of their own; ``--set`` sets the others. A function with a
            parameter ``settings`` gets all as :class:`~art_trainer.training.run_settings.Settings`.
        defaults: Settings that the command sets if nobody else does.
        default_recipe: The recipe if no environment is named.
        app: The app or the group of commands that it belongs to.
    """

    def add(function: T) -> T:
        about, _, section = inspect.getdoc(function).partition("\nFlags:\n")  # type: ignore[union-attr]
        texts = dict(re.findall(r"^    (\w+): ((?:.|\n     )+)", section, re.MULTILINE))
        hints = get_type_hints(function, include_extras=True)
        own = {
            one.name: _parameter(one.name, hints[one.name], texts.get(one.name, ""), one.default, one.kind)
            for one in inspect.signature(function).parameters.values()
            if one.name != "settings"
        }
        shared = SHARED_FLAGS if settings else {}

        def run(**values: Any) -> None:
            given = {name: _given(name, values.pop(name), hints[name]) for name in own}
            try:
                if not settings:
                    return function(**given)
                found = settings_of(values, defaults=defaults, default_recipe=default_recipe)
                with nullcontext(found) if given.get("dry_run") else claimed_folder(found) as claimed:
                    function(**given, settings=claimed)
            except KeyboardInterrupt:  # typer would end without a word
                Console(stderr=True).print("Stopped.")
                raise typer.Exit(INTERRUPTED) from None

        parameters = [
            *map(_setting_flag, settings),
            *(_parameter(name, *declared) for name, declared in shared.items()),
            *own.values(),
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.__doc__ = about.strip()
        title = "Examples:" if len(examples) > 1 else "Example:"
        app.command(name, epilog="\n\n".join((title, *examples)))(run)
        return function

    return add


def settings_of(
    values: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any] = NO_PAIRS,
    default_recipe: str = DEFAULT_RECIPE,
) -> Settings:
    """Merge the settings that the values of a training command's flags give."""
    flags = {
        name: _given(name, value, setting_type(name))
        for name, value in values.items()
        if name not in SHARED_FLAGS and value not in (None, [])
    }
    shared = {name: values[name] for name in SHARED_FLAGS if name != "set_"}
    overrides = parse_pairs(values["set_"], "--set", as_yaml=True)
    if shared["quiet"]:
        show_logs(logging.WARNING)
    return gather_settings(
        flags, overrides=overrides, **shared, defaults=defaults, default_recipe=default_recipe
    )


def first_sentence(text: str) -> str:
    """The first sentence of a setting's text: without reStructuredText marks and references."""
    plain = re.sub(r", see :\w+:`[^`]+`", "", " ".join(text.split()))
    plain = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", plain).replace("``", "`")
    return re.split(r"(?<=[.]) (?=[A-Z`(])", plain.replace("; `None`: ", "; default: "))[0]


def _setting_flag(name: str) -> inspect.Parameter:
    kind, default, text = setting_type(name), setting_default(name), first_sentence(setting_doc(name))
    if name == "output_dir":
        kind, default = Annotated[str, Flag(metavar="DIR")], None
        text = "Folder of the run. [default: runs/ENV-MODEL-NUMBER]"
    if get_origin(kind) is Literal:
        text += f" One of {', '.join(get_args(kind))}."
    if default not in (None, "", (), False):
        text += f" [default: {default}]"
    return _parameter(name, kind, text)


def _parameter(
    name: str,
    hint: Any,
    text: str,
    default: Any = None,
    kind: Any = inspect.Parameter.KEYWORD_ONLY,
) -> inspect.Parameter:
    """Declare a parameter of a command as typer reads it."""
    read, options = _unwrapped(hint)
    repeatable = get_origin(read) is list
    text = " ".join((text or options["help"]).split())
    if kind is inspect.Parameter.KEYWORD_ONLY:
        options = {**options, "help": f"{text} Repeatable." if repeatable else text}
        info = typer.Option(flag_name(name), **options)
        if repeatable and default is not inspect.Parameter.empty:
            default = list(default or ())
    else:
        info = typer.Argument(**{**options, "help": text})
    optional = read | None if default is None else read
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[optional, info]
    )


def flag_name(name: str) -> str:
    """The flag of a parameter."""
    return f"--{name.strip('_').replace('_', '-')}"


def flag_words(given: Mapping[str, Any]) -> list[str]:
    """The flags, with their values, that give a command these parameters; ``None`` gives none."""
    words = []
    for name, value in given.items():
        if isinstance(value, Mapping):
            value = [f"{key}={json.dumps(one)}" for key, one in value.items()]
        for one in value if isinstance(value, list | tuple) else (value,):
            words += [] if one is None else [flag_name(name), str(one)]
    return words


def _unwrapped(hint: Any) -> tuple[Any, Mapping[str, Any]]:
    """The type that typer reads, without ``None``, and the options of a flag's type."""
    options: Mapping[str, Any] = {}
    while (origin := get_origin(hint)) in (Annotated, Union, types.UnionType):
        if origin is Annotated:
            hint, flag = get_args(hint)
            options = getattr(flag, "options", options)
        else:
            (hint,) = (one for one in get_args(hint) if one is not types.NoneType)
    if origin in (dict, Mapping):
        return list[str], {"metavar": "KEY=VALUE", **options}
    if origin is Sequence:
        return list[get_args(hint)[0]], options  # type: ignore[misc]
    return (str if origin is Literal or get_args(hint)[-1:] == (...,) else hint), options


def _given(name: str, value: Any, hint: Any) -> Any:
    """What a command's function gets for the value that typer read."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (dict, Mapping):
        return parse_pairs(value, flag_name(name))
    return tuple(value) if isinstance(value, list) else value
