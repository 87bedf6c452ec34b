"""Does a model of random weights learn small environments, with nothing but the defaults?

Each run is one ``art-trainer train --env FILE --model scratch`` in a process of its own: the environments of
tests/environments, README's own, and the one that ``art-gym new`` writes. Tasks of the evaluations are held
out; an environment without tasks has other seeds there.

    python benchmarks/small_environments.py                     # all, three seeds
    python benchmarks/small_environments.py maze my_env.py --seeds 1
    python benchmarks/small_environments.py --check             # exits 1 if one does not beat random calls
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import harness

from art_trainer.formatting import percent
from art_trainer.tracking.run_dir import AFTER, BEFORE, RunFolder
from art_trainer.types import Interval

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / "tests" / "environments"
README, SCAFFOLD = "readme", "new"
MOST_SECONDS = 300.0
"""CPU-seconds of a run, evaluations of the baselines included."""


@dataclass(frozen=True)
class Outcome:
    """What one run came to: shares of solved tasks, with their 95% intervals."""

    name: str
    seed: int
    random: Interval
    before: Interval
    after: Interval
    invalid: float
    cpu_seconds: float

    @property
    def learned(self) -> bool:
        """Whether the model solves more than random calls do, beyond both intervals."""
        return self.after.low > self.random.high


def environment_names() -> list[str]:
    """All that there are."""
    return [README, SCAFFOLD, *sorted(file.stem for file in ENVIRONMENTS.glob("*.py"))]


def prepare(name: str, folder: Path) -> tuple[str, Path]:
    """What ``--env`` gets for an environment, and the folder where the command runs."""
    if name == README:
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        (folder / "guess.py").write_text(next(block for block in blocks if "class GuessEnv" in block))
        return "guess.py", folder
    if name == SCAFFOLD:
        command = Path(sys.executable).with_name("art-gym")
        subprocess.run([command, "new", "mine/largest"], check=True, cwd=folder, stdout=subprocess.DEVNULL)
        return "mine_largest:mine/Largest-v0", folder / "mine-largest"
    file = Path(name) if name.endswith(".py") else ENVIRONMENTS / f"{name}.py"
    return str(file.resolve()), folder


def train(name: str, seed: int, root: Path, more: Sequence[str]) -> Outcome:
    """Train on one environment from one seed."""
    folder = root / f"{Path(name).stem}-{seed}"
    folder.mkdir(parents=True)
    env, place = prepare(name, folder)
    run = RunFolder(folder / "run")
    words = ["train", "--env", env, "--model", "scratch", "--seed", str(seed), "--output-dir", str(run.path)]
    harness.art_trainer([*words, *more], folder / "log", cwd=place, threads=1)
    before, after, random = run.evaluation(BEFORE), run.evaluation(AFTER), run.baselines()["random"]
    shares = [one.success for one in (random, before, after) if one is not None and one.success is not None]
    assert after is not None
    assert len(shares) == 3, "an evaluation is missing, or has no success"
    return Outcome(name, seed, *shares, after.invalid_rate, run.cost()["cpu_seconds"])


def main() -> int:
    """Command line."""
    parser = harness.parser(__doc__, quick="three environments, one seed, ten steps: shows that it runs")
    parser.add_argument("names", nargs="*", help=f"files, or {', '.join(environment_names())}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="runs at the same time")
    harness.add_train_args(parser)
    options = parser.parse_args()
    names, seeds, more = options.names or environment_names(), options.seeds, options.train_args
    if options.quick:
        names, seeds, more = names[:3], 1, ["--max-steps", "10", "--eval-episodes", "32", *more]
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.at_once) as pool:
        jobs = [(name, seed) for name in names for seed in range(seeds)]
        running = [pool.submit(train, name, seed, Path(temporary), more) for name, seed in jobs]
        outcomes = []
        for job in running:
            outcomes.append(one := job.result())
            print(f"{one.name}, seed {one.seed}: {one.after.value:.0%}", flush=True)
    headings = "environment,seed,random calls,after imitation,after GRPO,invalid,CPU-seconds".split(",")
    rows = []
    for one in outcomes:
        shares = map(percent, (one.random, one.before, one.after))
        rows.append([one.name, str(one.seed), *shares, f"{one.invalid:.1%}", f"{one.cpu_seconds:.0f}"])
    harness.show("share of held-out tasks solved [95% interval]", headings, rows)
    failures = []
    for one in outcomes:
        run = f"{one.name}, seed {one.seed}"
        if not one.learned:
            failures.append(f"{run}: {percent(one.after)}, random {percent(one.random)}")
        if one.cpu_seconds > MOST_SECONDS:
            failures.append(f"{run}: {one.cpu_seconds:.0f} CPU-seconds")
    learned = sum(one.learned for one in outcomes)
    figures = {"runs": [asdict(one) for one in outcomes]}
    return harness.finish(options, figures, failures, f"{learned} of {len(outcomes)} runs beat random calls")


if __name__ == "__main__":
    sys.exit(main())
