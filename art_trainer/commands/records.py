"""``art-trainer replay`` and ``art-trainer export-data``: what they do, and how it is shown."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

import typer
from rich.console import Console
from rich.table import Table

from art_gym.errors import did_you_mean
from art_trainer.commands.policies import env_maker
from art_trainer.commands.settings import Layer, merge_settings
from art_trainer.errors import ConfigError
from art_trainer.records.dataset_file import DataFormat, ExportedData, export_data
from art_trainer.records.datasets import Selection
from art_trainer.run_folder import RunFolder

_DIFFERENT = 1
_ALWAYS_SHOWN = ("loss", "policy_loss", "kl", "grad_norm", "reward")


@dataclass(frozen=True, slots=True)
class ExportDataRequest:
    """What ``art-trainer export-data`` was asked for."""

    run: Path
    file: Path
    data_format: str
    min_reward: float | None
    top_fraction: float | None
    min_gap: float
    from_step: int
    split: float
    duplicates: bool


def run_replay(run: Path, step: int, tolerance: float, console: Console) -> None:
    """Replay and show the numbers of the step, and of every step before it that differ.

    Raises:
        TrainerError: Where something is missing or damaged.
        typer.Exit: With code 1 where a number is not the one logged.
    """
    # Torch takes seconds to import, which who exports data need not wait for.
    from art_trainer.records.replay import ReplayedStep, replay

    def told(done: ReplayedStep) -> None:
        if done.step < step:
            words = f"{len(done.differences)} numbers differ" if done.differences else "equal"
            console.print(f"step {done.step}: {words}", highlight=False)

    result = replay(run, step, tolerance=tolerance, on_step=told)
    table = Table("step", "number", "logged", "replayed", "difference", title=f"Replay of {run}")
    compared = 0
    for done in result.steps:
        compared += len(done.numbers)
        for number in done.numbers:
            if not number.equal or (done.step == step and number.name in _ALWAYS_SHOWN):
                table.add_row(str(done.step), number.name, *_shown(number.logged, number.replayed))
    console.print(table)
    start = "the start of the run" if result.start is None else str(result.start)
    different = sum(len(done.differences) for done in result.steps)
    console.print(
        f"From {start}: {compared} numbers of {len(result.steps)} steps compared, {different} differ.",
        highlight=False,
        soft_wrap=True,
    )
    if different:
        first = next(done.step for done in result.steps if done.differences)
        console.print(f"Not the run that was logged, from step {first} on.", highlight=False)
        raise typer.Exit(_DIFFERENT)


def _shown(logged: float, replayed: float) -> tuple[str, str, str]:
    return f"{logged:.9g}", f"{replayed:.9g}", f"{replayed - logged:.3g}"


def run_export_data(request: ExportDataRequest, console: Console) -> ExportedData:
    """Write the data set and say what is in it.

    Raises:
        ConfigError: For a format or a share that does not exist.
        RecordError: Where a record is damaged.
    """
    formats = get_args(DataFormat)
    if request.data_format not in formats:
        hint = did_you_mean(request.data_format, formats)
        raise ConfigError(f"no format {request.data_format!r}{hint}: there are {', '.join(formats)}")
    written = export_data(
        request.run,
        request.file,
        cast(DataFormat, request.data_format),
        selection=Selection(
            request.min_reward,
            request.top_fraction,
            range(request.from_step, sys.maxsize),
            request.duplicates,
        ),
        min_gap=request.min_gap,
        held_out=request.split,
        system=standing_instructions(RunFolder(request.run)),
    )
    for file, count in written.rows.items():
        console.print(f"{file}: {count} row{'' if count == 1 else 's'}", highlight=False, soft_wrap=True)
    return written


def standing_instructions(folder: RunFolder) -> str:
    """What a run's environment tells its policies before anything else; nothing for a run without settings.

    Raises:
        ConfigError: Where the environment cannot be made.
    """
    if not folder.settings_file.exists():
        return ""
    run = merge_settings([Layer(folder.settings_file.name, folder.settings())]).run
    env = env_maker(run.env, {**run.env_args, **run.train_env_args})()
    try:
        _, info = env.reset(seed=0)
    finally:
        env.close()
    return str(info.get("system") or "")
