"""Flags that several commands of ``art-trainer`` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

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

# Of what trains: train, serve, self-play.
TrainedEnv = Annotated[
    str | None,
    typer.Option("--env", help="Id of a Gymnasium environment with text in and out. [default: art/Email-v0]"),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Hugging Face name or folder of any causal LM; scratch for a small one of random weights. "
        "[default: art-tiny for mail, else scratch]",
    ),
]
LoraRank = Annotated[
    int | None,
    typer.Option("--lora", metavar="RANK", help="Train a LoRA adapter of this rank, not all weights."),
]
MaxSteps = Annotated[int | None, typer.Option(help="Training steps.")]
RunSeed = Annotated[int | None, typer.Option("--seed", help="Where all randomness starts.")]
HeldOut = Annotated[
    int | None,
    typer.Option("--eval-episodes", help="Held-out episodes of the evaluations before and after."),
]
SaveSteps = Annotated[int | None, typer.Option(help="Save a checkpoint every so many steps.")]
OutputDir = Annotated[Path | None, typer.Option(help="Folder of the run. [default: runs/ENV-MODEL-NUMBER]")]
Resume = Annotated[
    Path | None,
    typer.Option(metavar="RUN", help="Go on with the run in this folder.", exists=True, file_okay=False),
]
ResumeStep = Annotated[
    int | None,
    typer.Option(
        min=1, help="Go on from this step's checkpoint, not from the newest; later ones are deleted."
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE.yaml", help="Settings by name; flags override them."),
]
Overrides = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting of training. Repeatable."),
]


def given(flags: Mapping[str, Any], pairs: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The settings that were given as flags of their own.

    Args:
        flags: By the setting's name; ``None`` where a flag was left out.
        pairs: Those that are ``KEY=VALUE`` pairs, by the setting's name.
    """
    from art_trainer.commands.settings import parse_pairs

    values = {name: str(value) if isinstance(value, Path) else value for name, value in flags.items()}
    parsed = {
        name: parse_pairs(texts, f"--{name.replace('_', '-')}") for name, texts in pairs.items() if texts
    }
    return {**{name: value for name, value in values.items() if value is not None}, **parsed}
