"""Flags that several commands of ``art-trainer`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EnvId = Annotated[str, typer.Option(help="Id of a Gymnasium environment with text in and out.")]
EnvArgs = Annotated[
    list[str],
    typer.Option(metavar="KEY=VALUE", help="Argument of the environment; a JSON value or text. Repeatable."),
]
MaxTokens = Annotated[
    int, typer.Option("--max-completion-length", min=1, help="Most tokens of one reply of a model.")
]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write every result, and what made it, here."),
]
