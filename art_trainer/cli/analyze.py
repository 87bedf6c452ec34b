"""``art-trainer analyze``: the analysis of runs as tables and as a file of numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from art_trainer.cli.options import Flag, JsonFile, command


@command(
    "analyze",
    "`art-trainer analyze runs/Email-v0-art-tiny-1`.",
    "`art-trainer analyze runs/honest runs/odd --compare`.",
    "`art-trainer analyze runs/Email-v0-art-tiny-1 --between step-000050 step-000100` shows which tasks "
    "were won and lost from one checkpoint to another, in a run with `--eval-steps 50`.",
)
def analyze(
    runs: Annotated[Sequence[Path], Flag(metavar="RUN…", exists=True, file_okay=False)],
    *,
    compare: bool = False,
    between: Annotated[tuple[str, str], Flag(metavar="FIRST SECOND")] | None = None,
    json_: JsonFile | None = None,
) -> None:
    """Analyze runs: did the model learn, where does it fail, is the reward hacked?

    Success over the steps, each part of the reward, actions by turn, errors, tasks won and lost, tokens, and
    signs of reward hacking, each with its numbers. The exit code is 1 if the records are damaged.

    Flags:
        runs: Folders of runs, finished or not.
        compare: Compare each later run's last evaluation with the first run's.
        between: Two evaluations of each run to compare, files of evaluations/, such as step-000010.
            [default: before after]
    """
    from art_trainer.analysis import analyze as analyze_runs
    from art_trainer.analysis.render import print_analysis
    from art_trainer.tracking.run_dir import require_writable, write_text

    if json_ is not None:
        require_writable(json_)
    analysis = analyze_runs(runs, compare=compare, between=between)
    print_analysis(analysis, Console())
    if json_ is not None:
        write_text(json_, json.dumps(analysis.to_json(), ensure_ascii=False, indent=1))
    if any(run.damage for run in analysis.runs):
        raise typer.Exit(1)
