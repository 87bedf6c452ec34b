"""How a small model learns to cross frozen lakes: prints and draws what runs over several seeds left behind.

    for seed in 1 2 3; do
        art-trainer train --env toy/FrozenLake-v0 --threads 1 --seed $seed --output-dir runs/lake-$seed
    done
    python benchmarks/lake_curve.py runs/lake-1 runs/lake-2 runs/lake-3 --plot docs/figures/lake_curve.svg

Lines are training episodes, which start anywhere on the lakes of the split ``train``. Bars are the 200 lakes
of the split ``test``, crossed from the corner: before training, and after it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from curves import smoothed

from art_trainer.plots import COLOURS, Panel, page
from art_trainer.run_folder import AFTER, BEFORE, RunFolder, write_text
from art_trainer.statistics import Interval


@dataclass(frozen=True)
class Run:
    """What a run's folder says.

    Attributes:
        seed: The run's.
        training: The share of each step's episodes that reached the goal.
        before: The share of the test split before training.
        after: The same after training.
        baselines: The same of the players that use no model, where the run has them.
    """

    seed: int
    training: list[float]
    before: Interval
    after: Interval
    baselines: dict[str, float]


def read_run(path: Path) -> Run:
    """Read a run's folder."""
    folder = RunFolder(path)
    told = {name: found.success for name, found in folder.baselines().items()}
    return Run(
        seed=int(folder.settings()["seed"]),
        training=[row["success"] for row in folder.metrics().records if "success" in row],
        before=_success(folder, BEFORE),
        after=_success(folder, AFTER),
        baselines={name: success.value for name, success in told.items() if success is not None},
    )


def _success(folder: RunFolder, when: str) -> Interval:
    found = folder.evaluation(when)
    if found is None or found.success is None:
        sys.exit(f"{folder.path} has no evaluation {when} training that tells success")
    return found.success


def draw(runs: Sequence[Run]) -> str:
    """The curves, the test split's bars before and after them, and the baselines as dashed lines."""
    last = max(len(run.training) for run in runs)
    apart = last / 40
    panel = Panel("Frozen lakes crossed", "training step", "success", (0, last * 1.2), (0, 1))
    panel.legend([(f"seed {run.seed}", colour) for run, colour in zip(runs, COLOURS, strict=False)])
    for name, value in _baselines(runs).items():
        end = last + apart * (1 + len(runs))  # the names stand to the right of the bars
        panel.line([0, end], [value, value], COLOURS[-1], dashed=True)
        panel.label(end, value, name, COLOURS[-1])
    for place, (run, colour) in enumerate(zip(runs, COLOURS, strict=False)):
        panel.line(range(1, len(run.training) + 1), smoothed(run.training), colour)
        for at, rate in ((apart * place, run.before), (last + apart * (1 + place), run.after)):
            panel.interval(at, rate.low, rate.high, colour)
            panel.points([at], [rate.value], colour)
    return page([panel], columns=1)


def _baselines(runs: Sequence[Run]) -> dict[str, float]:
    return {name: value for run in runs for name, value in run.baselines.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of art-trainer train")
    parser.add_argument("--plot", type=Path, help="draw the curves here, as SVG")
    arguments = parser.parse_args()
    runs = [read_run(path) for path in arguments.runs]
    for run in runs:
        levels = smoothed(run.training)
        every = range(9, len(levels), 10)
        print(f"seed {run.seed}  training  " + "  ".join(f"{at + 1}: {levels[at]:.2f}" for at in every))
        for words, rate in (("before", run.before), ("after", run.after)):
            print(f"seed {run.seed}  {words:8}  {rate.value:.1%} ({rate.low:.0%} to {rate.high:.0%})")
    for name, value in _baselines(runs).items():
        print(f"baseline {name}: {value:.1%}")
    print(f"mean after training: {statistics.fmean(run.after.value for run in runs):.1%}")
    if arguments.plot:
        write_text(arguments.plot, draw(runs))


if __name__ == "__main__":
    main()
