"""``art-trainer replay`` and ``art-trainer export-data``: use a run's recorded episodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast, get_args

import typer
from rich.console import Console

from art_gym.errors import did_you_mean
from art_trainer.cli.options import Amount, Count, RunDir, command
from art_trainer.errors import ConfigError
from art_trainer.tracking.run_dir import RunFolder

_ALWAYS_SHOWN = ("loss", "policy_loss", "kl", "grad_norm", "reward")


@command(
    "replay",
    "`art-trainer replay runs/Email-v0-art-tiny-1 --step 60`.",
    "`art-trainer replay runs/Email-v0-art-tiny-1 --step 60 --tolerance 1e-5` on a machine that rounds sums "
    "differently.",
)
def replay(run: RunDir, *, step: Count, tolerance: Amount = 0.0) -> None:
    """Repeat a run's updates from its records, and check that the numbers are those it logged.

    Starts from the newest checkpoint before the step, or from the start of the run if there is none. Prints
    what differs; the exit code is 1 if anything does.

    Flags:
        step: The step whose update is repeated.
        tolerance: Largest relative difference that is equal; 0 requires the same bits.
    """
    from art_trainer.cli.console import make_table
    from art_trainer.training.replay import ReplayedStep
    from art_trainer.training.replay import replay as replay_updates
    from art_trainer.training.run_setup import model_builder

    def on_step(done: ReplayedStep) -> None:
        if done.step < step:
            found = f"{len(done.differences)} numbers differ" if done.differences else "equal"
            typer.echo(f"step {done.step}: {found}")

    build = model_builder(RunFolder(run))
    result = replay_updates(run, step, build=build, tolerance=tolerance, on_step=on_step)
    table = make_table(f"Replay of {run}", ["step", "number"], ["logged", "replayed", "difference"])
    for done in result.steps:
        for number in done.numbers:
            if not number.equal or (done.step == step and number.name in _ALWAYS_SHOWN):
                figures = (f"{number.logged:.9g}", f"{number.replayed:.9g}")
                table.add_row(str(done.step), number.name, *figures, f"{number.replayed - number.logged:.3g}")
    Console().print(table)
    start = "the start of the run" if result.start is None else str(result.start)
    compared = sum(len(done.numbers) for done in result.steps)
    different = sum(len(done.differences) for done in result.steps)
    typer.echo(f"From {start}: {compared} numbers of {len(result.steps)} steps compared, {different} differ.")
    if different:
        first = next(done.step for done in result.steps if done.differences)
        typer.echo(f"Differs from the logged run from step {first} on.")
        raise typer.Exit(1)


@command(
    "export-data",
    "`art-trainer export-data runs/Email-v0-art-tiny-1 won.jsonl --min-reward 1`: replies with what was "
    "read before them, for TRL's SFTTrainer.",
    "`art-trainer export-data runs/Email-v0-art-tiny-1 pairs.parquet --format dpo --min-gap 0.5`: pairs for "
    "its DPOTrainer.",
    "`art-trainer export-data runs/Email-v0-art-tiny-1 all.jsonl --format openpipe`.",
)
def export_data(
    run: RunDir,
    file: Path,
    *,
    format_: str = "sft",
    min_reward: float | None = None,
    min_gap: Amount = 0.0,
    from_step: Count = 1,
    duplicates: bool = False,
) -> None:
    """Write a run's training episodes as a data set for supervised or preference training.

    Flags:
        file: Where to write: ….jsonl or ….parquet.
        format_: sft or dpo, TRL's formats, or openpipe.
        min_reward: Smallest reward of an attempt; of a pair: of the better one.
        min_gap: dpo: smallest difference of rewards in a pair.
        from_step: Leave out episodes from before this step.
        duplicates: Keep attempts that equal another one word for word.
    """
    from art_trainer.tracking.datasets import DataFormat
    from art_trainer.tracking.datasets import export_data as export_episodes
    from art_trainer.training.run_setup import system_message

    formats = get_args(DataFormat)
    if format_ not in formats:
        hint = did_you_mean(format_, formats)
        raise ConfigError(f"no format {format_!r}{hint}: there are {', '.join(formats)}")
    count = export_episodes(
        run,
        file,
        cast(DataFormat, format_),
        min_reward=min_reward,
        steps=range(from_step, sys.maxsize),
        duplicates=duplicates,
        min_gap=min_gap,
        system=system_message(RunFolder(run)),
    )
    typer.echo(f"{file}: {count} row{'' if count == 1 else 's'}")
