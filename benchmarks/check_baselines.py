"""Has a figure of a benchmark fallen by more than its noise? Quick runs beside ``baselines/NAME.json``.

Compared are figures that a busy machine does not change, or changes little: counts, launches, memory beside
its plan, and ratios of two things that took turns; never raw seconds. ``--update`` runs a benchmark five
times and stores each figure, with commit, command and machine; ``--add`` adds the runs of another hour, as
runs in a row differ less than those of two hours. The noise of a figure is twice the largest minus the
smallest, and at least 2% unless all are whole numbers. A benchmark without a baseline is named and left out.

    python benchmarks/check_baselines.py                    # those that have a baseline; exits 1 if one fell
    python benchmarks/check_baselines.py launches
    python benchmarks/check_baselines.py --update sandbox   # on a machine that has nothing else to do
    python benchmarks/check_baselines.py --add sandbox      # an hour later
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import harness

HERE = Path(__file__).parent
BASELINES = HERE / "baselines"
LOWER, HIGHER = "lower", "higher"
COMPARED: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "launches": ("bench_launches.py", LOWER, ("counts",)),
    "memory": ("bench_memory.py", LOWER, ("ratios",)),
    "agents": ("bench_agents.py", LOWER, ("loads/0/lost", "loads/0/kib_an_attempt")),
    "sandbox": ("bench_sandbox.py", HIGHER, ("judging",)),
    "learner": ("bench_learner.py", HIGHER, ("ratios",)),
    "2048": ("bench_2048.py", HIGHER, ("ratios",)),
}
"""The script, which way its figures are better, and where they stand in its ``--json``."""


def figures_in(found: Any, paths: Sequence[str]) -> dict[str, float]:
    """All numbers at or below some places of a benchmark's figures, by path."""
    numbers: dict[str, float] = {}
    for path in paths:
        value = found
        for part in path.split("/"):
            value = value[int(part) if isinstance(value, list) else part]
        if isinstance(value, Mapping):
            numbers |= figures_in(found, [f"{path}/{name}" for name in value])
        else:
            numbers[path] = float(value)
    return numbers


def measure(name: str) -> dict[str, float]:
    """Run a benchmark's quick form; a CalledProcessError if it fails."""
    script, _, paths = COMPARED[name]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        command = [sys.executable, str(HERE / script), "--quick", "--json", str(file)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return figures_in(json.loads(file.read_text(encoding="utf-8")), paths)


def current_commit() -> str:
    """The commit of this checkout, marked if files differ from it."""
    git = ["git", "-C", str(HERE), "describe", "--always", "--abbrev=40", "--dirty"]
    return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()


def make_baseline(
    name: str, commit: str, runs: Sequence[Mapping[str, float]], earlier: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Put several runs of a benchmark together, with those of an earlier baseline if there is one."""
    script, better, _ = COMPARED[name]
    before = earlier or {"commits": [], "figures": {}}
    return {
        "commits": [*before["commits"], commit],
        "command": f"python benchmarks/{script} --quick",
        **harness.machine(),
        "better": better,
        "figures": {one: [*before["figures"].get(one, ()), *(run[one] for run in runs)] for one in runs[0]},
    }


def median_and_noise(values: Sequence[float]) -> tuple[float, float]:
    """The median of a figure's runs, and how far from it chance can bring another."""
    median, noise = statistics.median(values), 2 * (max(values) - min(values))
    least = 0.0 if all(value == round(value) for value in values) else 0.02 * abs(median)
    return median, max(noise, least)


def has_fallen(better: str, values: Sequence[float], found: float | None) -> bool:
    """Whether a figure is missing, or worse than the median of some values by more than their noise."""
    median, noise = median_and_noise(values)
    return found is None or (1 if better == LOWER else -1) * (found - median) > noise + 1e-9


def check(name: str, baseline: Mapping[str, Any]) -> list[str]:
    """Measure, print the table, and return what fell."""
    found, better = measure(name), baseline["better"]
    bad, rows = [], []
    for figure, values in baseline["figures"].items():
        fell = has_fallen(better, values, found.get(figure))
        numbers = *median_and_noise(values), found.get(figure, float("nan"))
        rows.append([figure, *(f"{number:.3g}" for number in numbers), "fell" if fell else ""])
        bad += [f"{name}: {figure}"] if fell else []
    title = f"{name}, {better} is better; baseline of {baseline['commits'][-1][:12]}"
    harness.show(title, ("", "baseline", "noise", "now", ""), rows)
    return bad


def main() -> int:
    """Compare, or write baselines."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(COMPARED)}; all by default")
    parser.add_argument("--update", action="store_true", help="write the baselines of these")
    parser.add_argument("--add", action="store_true", help="add runs to the baselines of these")
    parser.add_argument("--runs", type=int, default=5, help="of which a baseline is made")
    options = parser.parse_args()
    if unknown := set(options.names) - set(COMPARED):
        parser.error(f"no {', '.join(sorted(unknown))}: choose among {', '.join(COMPARED)}")
    bad: list[str] = []
    commit = current_commit()  # before a baseline is written, which would be a difference
    for name in options.names or COMPARED:
        file = BASELINES / f"{name}.json"
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        if options.update or options.add:
            runs = [measure(name) for _ in range(options.runs)]
            made = make_baseline(name, commit, runs, known if options.add else None)
            file.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        elif known is not None:
            bad += check(name, known)
        else:
            print(f"\n{name} has no baseline: python benchmarks/check_baselines.py --update {name}")
    for figure in bad:
        print(f"fell by more than its noise: {figure}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
