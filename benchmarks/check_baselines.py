"""Has a figure of a benchmark fallen by more than its noise? Quick runs beside ``baselines/NAME.json``.

Compared are figures that a busy machine does not change, or changes little: counts, launches, memory beside
its plan, and ratios of two things that took turns; never raw seconds. ``--update`` runs a benchmark five
times and stores each figure's median and its noise, with commit, command and machine: twice the largest minus
the smallest of the five, and at least 2% unless all are whole numbers, as few runs show less noise than there
is. One without a baseline is named and left out.

    python benchmarks/check_baselines.py                    # those that have a baseline; exits 1 if one fell
    python benchmarks/check_baselines.py launches
    python benchmarks/check_baselines.py --update sandbox   # on a machine that has nothing else to do
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


def make_baseline(name: str, runs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Put several runs of a benchmark together."""
    script, better, _ = COMPARED[name]
    git = ["git", "-C", str(HERE), "describe", "--always", "--abbrev=40", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    command, figures = f"python benchmarks/{script} --quick", {}
    for figure in runs[0]:
        values = [run[figure] for run in runs]
        median, noise = statistics.median(values), 2 * (max(values) - min(values))
        least = 0.0 if all(value == round(value) for value in values) else 0.02 * abs(median)
        figures[figure] = {"median": median, "noise": max(noise, least)}
    facts = {"commit": commit, "command": command, "runs": len(runs), **harness.machine()}
    return {**facts, "better": better, "figures": figures}


def fallen(baseline: Mapping[str, Any], found: Mapping[str, float]) -> list[str]:
    """The figures that are missing, or worse than the median by more than the noise."""
    sign = 1 if baseline["better"] == LOWER else -1
    return [
        figure
        for figure, known in baseline["figures"].items()
        if figure not in found or sign * (found[figure] - known["median"]) > known["noise"] + 1e-9
    ]


def check(name: str, baseline: Mapping[str, Any]) -> list[str]:
    """Measure, print the table, and return what fell."""
    found = measure(name)
    bad = fallen(baseline, found)
    rows = []
    for figure, known in baseline["figures"].items():
        cells = f"{known['median']:.4g}", f"{known['noise']:.2g}", f"{found.get(figure, float('nan')):.4g}"
        rows.append([figure, *cells, "fell" if figure in bad else ""])
    title = f"{name}, {baseline['better']} is better; baseline of {baseline['commit'][:12]}"
    harness.show(title, ("", "baseline", "noise", "now", ""), rows)
    return [f"{name}: {figure}" for figure in bad]


def main() -> int:
    """Compare, or write baselines."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(COMPARED)}; all by default")
    parser.add_argument("--update", action="store_true", help="write the baselines of these")
    parser.add_argument("--runs", type=int, default=5, help="of which a baseline is made")
    options = parser.parse_args()
    if unknown := set(options.names) - set(COMPARED):
        parser.error(f"no {', '.join(sorted(unknown))}: choose among {', '.join(COMPARED)}")
    bad: list[str] = []
    for name in options.names or COMPARED:
        file = BASELINES / f"{name}.json"
        if options.update:
            made = make_baseline(name, [measure(name) for _ in range(options.runs)])
            BASELINES.mkdir(exist_ok=True)
            file.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        elif file.exists():
            bad += check(name, json.loads(file.read_text(encoding="utf-8")))
        else:
            print(f"\n{name} has no baseline: python benchmarks/check_baselines.py --update {name}")
    for figure in bad:
        print(f"fell by more than its noise: {figure}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
