"""Makes the page of every setting of a training run from the two classes that declare them."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from docstrings import in_line, table

from art_trainer.cli.run_config import SMALL_MODELS, setting_default, setting_doc, setting_type
from art_trainer.config import GRPOConfig
from art_trainer.training.run_settings import SETTINGS, RunSettings

_INTRO = (
    "`--set NAME=VALUE` of `art-trainer train`, `self-play` and `serve` sets any of these, as does a YAML "
    "file with `--config`; many have a flag of their own, see [Commands](commands.md). "
    "A `--set` value is read as YAML: "
    "`--set log_episodes=0`, `--set warm_start=null`, `--set 'scratch={layers: 3}'`. "
    "`null` there is `None` in Python. "
    "[A model from scratch](../guides/scratch.md) explains those that matter for small models."
)


def page() -> str:
    """The page in Markdown."""
    parts = ["# Settings", _INTRO]
    for title, holder in (("The run", RunSettings), ("Training: `GRPOConfig`", GRPOConfig)):
        rows = [_row(name) for name, declared in SETTINGS.items() if declared is holder]
        parts += [f"## {title}", table(("setting", "type", "default", ""), *rows)]
    parts += ["## Defaults of small models", "They replace the defaults above for `--model` of that name."]
    for model, values in SMALL_MODELS.items():
        parts.append(
            f"- `{model}`: " + ", ".join(f"`{name}={_value(value)}`" for name, value in values.items())
        )
    return "\n\n".join(parts) + "\n"


def _row(name: str) -> tuple[str, ...]:
    types_of = " or ".join(_types(setting_type(name)))
    default = "{}" if types_of == "mapping" else _value(setting_default(name))
    return f"`{name}`", types_of, f"`{default}`", in_line(setting_doc(name))


def _value(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)


def _types(declared: Any) -> Iterator[str]:
    """A type in words, its alternatives one by one."""
    kind = get_origin(declared)
    if kind in (Union, types.UnionType):
        for one in get_args(declared):
            yield from _types(one)
    elif kind is Annotated:
        [plain] = _types(declared.__origin__)
        yield f"{plain} ({declared.__metadata__[0].wanted})"
    elif kind is Literal:
        yield ", ".join(f"`{choice}`" for choice in get_args(declared))
    else:
        yield {types.NoneType: "`null`", tuple: "list", dict: "mapping"}.get(
            kind or declared
        ) or declared.__name__
