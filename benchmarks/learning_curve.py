"""Does GRPO teach art-tiny to search a mailbox? Trains over seeds and prints success before and after.

Each seed is one ``art-trainer train`` of its own: the base model, GRPO on the training questions, and an
evaluation before and after on the same held-out test questions, beside the baselines that use no model.

    python benchmarks/learning_curve.py                  # the README's table: difficulty 1, three seeds
    python benchmarks/learning_curve.py --difficulty 2   # look-alikes
    python benchmarks/learning_curve.py --mailbox enron.db
    python benchmarks/learning_curve.py --check          # exits 1 where the README's claim does not hold
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from art_trainer.evaluation import Evaluation, compare
from art_trainer.run_folder import AFTER, BEFORE, RunFolder

# The claim: success rises by at least this much, with a 95% interval that excludes the second number.
_RISE, _RISE_LOW = 0.35, 0.25
_MOST_INVALID = 0.02
_MOST_SECONDS = 300


@dataclass(frozen=True)
class Outcome:
    """What one seed came to."""

    seed: int
    before: float
    after: float
    rise: float
    rise_low: float
    rise_high: float
    invalid_after: float
    turns_after: float
    seconds: float


def train(seed: int, arguments: argparse.Namespace, folder: Path) -> tuple[Outcome, RunFolder]:
    """Run one seed in a process of its own, as a user would."""
    env_args = {"difficulty": arguments.difficulty}
    if arguments.mailbox is not None:
        env_args = {"mailbox": str(Path(arguments.mailbox).resolve())}
    command = [sys.executable, "-m", "art_trainer", "train", "--seed", str(seed), "--output-dir", str(folder)]
    for name, value in env_args.items():
        command += ["--env-args", f"{name}={json.dumps(value)}"]
    if arguments.quick:
        command += ["--max-steps", "8", "--eval-episodes", "64"]
    if seed != arguments.first_seed:
        command += ["--set", "baselines=[]"]  # they use no seed of training: once is enough
    started = time.perf_counter()
    with (folder.parent / f"{folder.name}.log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    seconds = time.perf_counter() - started
    run = RunFolder(folder)
    before, after = run.evaluation(BEFORE), run.evaluation(AFTER)
    assert before is not None
    assert after is not None
    return _outcome(seed, before, after, seconds), run


def _outcome(seed: int, before: Evaluation, after: Evaluation, seconds: float) -> Outcome:
    difference = compare(before, after).success
    assert difference is not None
    assert before.success is not None
    assert after.success is not None
    return Outcome(
        seed=seed,
        before=before.success.value,
        after=after.success.value,
        rise=difference.value,
        rise_low=difference.low,
        rise_high=difference.high,
        invalid_after=after.invalid_rate,
        turns_after=after.turns,
        seconds=seconds,
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds to train")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    parser.add_argument(
        "--difficulty", type=int, default=1, choices=(1, 2, 3, 4), help="level of the questions"
    )
    parser.add_argument("--mailbox", help="an imported mailbox instead of the generated one")
    parser.add_argument("--quick", action="store_true", help="one seed and eight steps: shows that it runs")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--check", action="store_true", help="exit 1 where the claim does not hold")
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + (1 if arguments.quick else arguments.seeds))
    outcomes, baselines = [], {}
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.keep or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        print("seed  before  after   rise [95% interval]      invalid  turns  seconds", flush=True)
        for seed in seeds:
            outcome, run = train(seed, arguments, root / f"seed-{seed}")
            outcomes.append(outcome)
            baselines |= {
                name: found.success.value for name, found in run.baselines().items() if found.success
            }
            interval = f"{outcome.rise:+.3f} [{outcome.rise_low:+.3f}, {outcome.rise_high:+.3f}]"
            print(
                f"{seed:4d}  {outcome.before:.3f}   {outcome.after:.3f}   {interval}"
                f"   {outcome.invalid_after:.4f}   {outcome.turns_after:.2f}   {outcome.seconds:.0f}",
                flush=True,
            )
    for name, success in baselines.items():
        print(f"baseline {name}: {success:.3f}")
    figures = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "difficulty": None if arguments.mailbox else arguments.difficulty,
        "seeds": [asdict(outcome) for outcome in outcomes],
        "baselines": baselines,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    failures = check(outcomes, baselines.get("bm25", 0.0))
    for failure in failures:
        print(failure)
    print(
        f"success {np.mean([o.before for o in outcomes]):.3f} -> {np.mean([o.after for o in outcomes]):.3f}"
    )
    return 1 if arguments.check and failures else 0


def check(outcomes: list[Outcome], bm25: float) -> list[str]:
    """What of the README's claim does not hold, in words."""
    failures = []
    for outcome in outcomes:
        if outcome.rise < _RISE or outcome.rise_low <= _RISE_LOW:
            failures.append(
                f"seed {outcome.seed}: success rose by {outcome.rise:.3f} (low {outcome.rise_low:.3f})"
            )
        if outcome.after <= bm25:
            failures.append(f"seed {outcome.seed}: {outcome.after:.3f} is not above BM25's {bm25:.3f}")
        if outcome.invalid_after >= _MOST_INVALID:
            failures.append(f"seed {outcome.seed}: {outcome.invalid_after:.1%} of the actions are invalid")
        if outcome.seconds >= _MOST_SECONDS:
            failures.append(f"seed {outcome.seed}: took {outcome.seconds:.0f} s")
    return failures


if __name__ == "__main__":
    sys.exit(main())
