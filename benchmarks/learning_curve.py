"""Does GRPO teach a small model? Trains over seeds and prints what it was worth before and after.

Each seed is one ``art-trainer train`` of its own: the model that training starts from, GRPO on the training
tasks, and an evaluation before and after on the same held-out tasks, beside the baselines that use no model.

    python benchmarks/learning_curve.py                       # email: success of art-tiny, difficulty 1
    python benchmarks/learning_curve.py email --env-args difficulty=2
    python benchmarks/learning_curve.py email-smollm2         # the same of a language model of 135M weights
    python benchmarks/learning_curve.py 2048                  # score of whole games
    python benchmarks/learning_curve.py 2048 --train-args "--set warm_start=null"
    python benchmarks/learning_curve.py coding                # success on level 0; coding-smollm2 too
    python benchmarks/learning_curve.py frozen-lake --plot FILE.svg   # held-out lakes crossed
    python benchmarks/learning_curve.py tests/environments/maze.py   # a scratch model on a file
    python benchmarks/learning_curve.py 2048 --check          # exits 1 if the README's claim does not hold
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import harness
import numpy as np
from charts import COLORS, Panel, page

from art_trainer.analysis.svg_charts import smoothed
from art_trainer.rollout.evaluate import Evaluation, compare
from art_trainer.tracking.run_dir import AFTER, BEFORE, RunFolder
from art_trainer.types import Interval


@dataclass(frozen=True)
class Claim:
    """A task, and what the README says of learning it."""

    env: str
    measure: str
    """``"success"`` (a share) or ``"reward"``."""
    baseline: str
    """The best player that uses no model."""
    rise: float
    """The measure rises by at least this much in every seed, …"""
    rise_low: float
    """… with a 95% interval above this, …"""
    mean_rise_low: float
    """… on average over the seeds with one above this, …"""
    above: float
    """… to this many times the baseline with an interval above the baseline, …"""
    seconds: float
    """… in less than this many seconds a seed."""
    invalid: float = 0.02
    """The largest share of replies that are no valid call, after training."""


CLAIMS = {
    "email": Claim("art/Email-v0", "success", "scripted", 0.6, 0.5, 0.6, above=2.5, seconds=300),
    # Imitation alone comes past the scripted searcher. An hour a seed on one core.
    "email-smollm2": Claim("art/Email-v0", "success", "scripted", 0.14, 0.08, 0.14, above=2.0, seconds=3600),
    # Two hours a seed on one core.
    "2048": Claim(
        "art/2048-v0", "reward", "left-down-right-down", 1000, 0, 1000, above=1.9, seconds=3 * 3600
    ),
    "coding": Claim("art/Coding-v0", "success", "hard_coded", 0.3, 0.2, 0.2, above=1.0, seconds=600),
    "coding-smollm2": Claim(
        "art/Coding-v0", "success", "hard_coded", 0.25, 0.18, 0.25, above=1.0, seconds=1200, invalid=0.05
    ),
    "frozen-lake": Claim(
        "toy/FrozenLake-v0", "success", "right-down", 0.7, 0.65, 0.8, above=5.0, seconds=600
    ),
}
"""By recipe; the numbers without a name are ``rise``, ``rise_low`` and ``mean_rise_low``."""
SCRATCH = Claim("", "success", "random", -np.inf, -np.inf, -np.inf, above=1.0, seconds=600, invalid=1.0)
"""Of any environment: a model of random weights and nothing but the defaults end above random calls."""


@dataclass(frozen=True)
class Outcome:
    """What one seed came to."""

    seed: int
    before: Interval
    after: Interval
    rise: Interval
    invalid_after: float
    turns_after: float
    seconds: float


def train(claim: Claim, seed: int, arguments: argparse.Namespace, folder: Path) -> tuple[Outcome, RunFolder]:
    """Run one seed in a process of its own, as a user would."""
    task = arguments.task
    named = ["--recipe", task] if task in CLAIMS else ["--env", task, "--model", "scratch"]
    words = [*named, "--seed", str(seed)]
    for pair in arguments.env_args or []:
        words += ["--env-args", pair]
    if arguments.quick:
        words += ["--max-steps", "2", "--eval-episodes", "8", "--set", "warm_start_episodes=10"]
    if seed != arguments.first_seed:
        words += ["--set", "baselines=[]"]  # they use no seed of training: once is enough
    started = time.perf_counter()
    harness.train([*words, *arguments.train_args], folder, arguments)
    seconds = time.perf_counter() - started
    run = RunFolder(folder)
    before, after = run.evaluation(BEFORE), run.evaluation(AFTER)
    assert before is not None
    assert after is not None
    return _outcome(claim, seed, before, after, seconds), run


def _measured(claim: Claim, evaluation: Evaluation) -> Interval:
    found: Interval | None = evaluation.success if claim.measure == "success" else evaluation.reward
    assert found is not None
    return found


def _outcome(claim: Claim, seed: int, before: Evaluation, after: Evaluation, seconds: float) -> Outcome:
    comparison = compare(before, after)
    difference = comparison.success if claim.measure == "success" else comparison.reward
    assert difference is not None
    measured = _measured(claim, before), _measured(claim, after)
    return Outcome(seed, *measured, difference, after.invalid_rate, after.turns, seconds)


def plot(
    claim: Claim, runs: Sequence[RunFolder], outcomes: Sequence[Outcome], baselines: dict[str, float]
) -> str:
    """Training curves, the held-out tasks as bars before and after, the best baseline as a dashed line."""
    curves = [[row[claim.measure] for row in run.metrics().records if claim.measure in row] for run in runs]
    last = max(map(len, curves))
    apart = last / 40
    values = [*baselines.values(), *(value for curve in curves for value in smoothed(curve))]
    values += [end for one in outcomes for end in (one.before.low, one.after.high)]
    y_range = (0, 1) if claim.measure == "success" else (min(values), max(values))
    panel = Panel(claim.env, "training step", claim.measure, (0, last * 1.2), y_range)
    panel.legend([(f"seed {one.seed}", colour) for one, colour in zip(outcomes, COLORS, strict=False)])
    if baselines:
        best = max(baselines, key=baselines.__getitem__)
        end = last + apart * (1 + len(runs))  # the name stands to the right of the bars
        panel.line([0, end], [baselines[best]] * 2, COLORS[-1], dashed=True)
        panel.label(end, baselines[best], best, COLORS[-1])
    for place, (curve, one, colour) in enumerate(zip(curves, outcomes, COLORS, strict=False)):
        panel.line(range(1, len(curve) + 1), smoothed(curve), colour)
        for at, found in ((apart * place, one.before), (last + apart * (1 + place), one.after)):
            panel.interval(at, found.low, found.high, colour)
            panel.points([at], [found.value], colour)
    return page(panel)


def main() -> int:
    """Command line."""
    parser = harness.parser(__doc__, quick="one seed and two steps: shows that it runs")
    parser.add_argument("task", nargs="?", default="email", help=f"{', '.join(CLAIMS)}, or an environment")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds to train")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    harness.training_flags(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the curves here")
    parser.add_argument("--env-args", action="append", metavar="KEY=VALUE", help="of the environment")
    parser.add_argument("--train-args", type=str.split, default=[], help="words for art-trainer train")
    arguments = parser.parse_args()
    claim = CLAIMS.get(arguments.task) or replace(SCRATCH, env=arguments.task)
    seeds = range(arguments.first_seed, arguments.first_seed + (1 if arguments.quick else arguments.seeds))
    outcomes: list[Outcome] = []
    runs: list[RunFolder] = []
    baselines: dict[str, float] = {}
    digits = 3 if claim.measure == "success" else 0
    with harness.trainings(arguments) as (root, pool):
        trained = pool.map(lambda seed: train(claim, seed, arguments, root / f"seed-{seed}"), seeds)
        for outcome, run in trained:
            outcomes.append(outcome)
            runs.append(run)
            baselines |= {name: _measured(claim, found).value for name, found in run.baselines().items()}
            print(f"seed {outcome.seed}: {outcome.after.value:.{digits}f}", flush=True)
        if arguments.plot:
            arguments.plot.write_text(plot(claim, runs, outcomes, baselines))
    rows = [
        [
            *(str(one.seed), f"{one.before.value:.{digits}f}", f"{one.after.value:.{digits}f}"),
            f"{one.rise.value:+.{digits}f} [{one.rise.low:+.{digits}f}, {one.rise.high:+.{digits}f}]",
            *(f"{one.invalid_after:.4f}", f"{one.turns_after:.1f}", f"{one.seconds:.0f}"),
        ]
        for one in outcomes
    ]
    headings = ("seed", "before", "after", "rise [95% interval]", "invalid", "turns", "seconds")
    harness.show(f"{claim.env}, {claim.measure}", headings, rows)
    for name, value in baselines.items():
        print(f"baseline {name}: {value:.{digits}f}")
    figures = {name: getattr(arguments, name) for name in ("task", "env_args", "train_args")}
    figures |= {"seeds": [asdict(one) for one in outcomes], "baselines": baselines}
    figures["cpu_seconds"] = harness.cpu_seconds()
    mean, low, high = mean_rise(outcomes)
    print(f"rise over {len(outcomes)} seeds: {mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]")
    means = [np.mean([getattr(one, when).value for one in outcomes]) for when in ("before", "after")]
    last = f"{claim.measure} {means[0]:.{digits}f} -> {means[1]:.{digits}f}"
    return harness.finish(arguments, figures, check(claim, outcomes, baselines[claim.baseline]), last)


def mean_rise(outcomes: Sequence[Outcome]) -> tuple[float, float, float]:
    """The mean of the seeds' rises and its 95% interval, over the episodes of the evaluations.

    The seeds' intervals are added up as independent ones: the luck of training is not in them, and shows in
    how far the seeds differ.
    """
    mean = float(np.mean([outcome.rise.value for outcome in outcomes]))
    halves = [(outcome.rise.high - outcome.rise.low) / 2 for outcome in outcomes]
    half = float(np.sqrt(np.sum(np.square(halves)))) / len(outcomes)
    return mean, mean - half, mean + half


def check(claim: Claim, outcomes: Sequence[Outcome], baseline: float) -> list[str]:
    """The claims that do not hold, as text."""
    failures = []
    mean, low, _ = mean_rise(outcomes)
    if low <= claim.mean_rise_low:
        failures.append(f"{claim.measure} rose by {mean:.3f} on average over the seeds (low {low:.3f})")
    for outcome in outcomes:
        rise, after, seed = outcome.rise, outcome.after, f"seed {outcome.seed}:"
        if rise.value < claim.rise or rise.low <= claim.rise_low:
            failures.append(f"{seed} {claim.measure} rose by {rise.value:.3f} (low {rise.low:.3f})")
        if after.value <= claim.above * baseline or after.low <= baseline:
            beaten = f"{claim.above} times {claim.baseline}'s {baseline:.3f}"
            failures.append(f"{seed} {after.value:.3f} (low {after.low:.3f}) is not above {beaten}")
        if outcome.invalid_after >= claim.invalid:
            failures.append(f"{seed} {outcome.invalid_after:.1%} of the actions are invalid")
        if outcome.seconds >= claim.seconds:
            failures.append(f"{seed} took {outcome.seconds:.0f} s")
    return failures


if __name__ == "__main__":
    sys.exit(main())
