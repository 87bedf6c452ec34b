"""Which method learns best? Trains tasks with each of several settings, over seeds, and compares.

Each training is one ``art-trainer train`` of its own. The methods are compared with the first one, seed by
seed, on the same held-out episodes.

    python benchmarks/compare_methods.py credit       # advantage estimators, on three environments
    python benchmarks/compare_methods.py dynamic      # new groups for those that teach nothing, mixed levels
    python benchmarks/compare_methods.py credit --keep FOLDER    # goes on there, after Ctrl-C too
    python benchmarks/compare_methods.py credit --check    # exits 1 if a method beats the first one for sure
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np

from art_trainer.tracking.run_dir import AFTER, BEFORE, RunFolder


def settings(first: str, methods: Mapping[str, str]) -> dict[str, str]:
    """For each method words for ``art-trainer train``, from settings between blanks."""
    return {
        name: " ".join([first, *(f"--set {one}" for one in given.split())]) for name, given in methods.items()
    }


CREDIT = {
    "group": "advantage_estimator=group",
    "leave_one_out": "advantage_estimator=leave_one_out",
    "gigpo": "advantage_estimator=gigpo gamma=0.95",
    "reward_to_go": "advantage_estimator=reward_to_go",
    "gae": "advantage_estimator=gae",
}
# Windows of 64 moves of games that snake began, after an imitation of snake's own games alone.
GAME = (
    "--recipe 2048 --env-args max_turns=10000 --eval-episodes 96 --set eval_temperature=0.3 "
    "--learning-rate 3e-4 --set gamma=0.97 --set num_generations=8 "
    "--set vf_coef=0.1 --set value_learning_rate=null "
    "--train-env-args max_turns=64 --train-env-args opening_moves=500 --train-env-args opening_player=snake "
    "--set groups_per_step=16 --set max_steps=16 --set warm_start_rounds=1 --set warm_start_episodes=130 "
    "--set warm_start_noise=0.5 --set warm_start_batch_size=32"
)
# The same discount and scaling, where an estimator takes them. Leaving one out would multiply by 8/7.
TO_GO = "advantage_estimator=reward_to_go scale_rewards=batch"
CREDIT_2048 = {
    "gigpo": "advantage_estimator=gigpo scale_rewards=group",
    "gigpo_unscaled": "advantage_estimator=gigpo scale_rewards=none",
    "reward_to_go": TO_GO,
    "reward_to_go_by_group": "advantage_estimator=reward_to_go scale_rewards=group",
    "group": "advantage_estimator=group gamma=1.0 scale_rewards=batch",
    "gae": "advantage_estimator=gae scale_rewards=batch",
}
MAIL = "--recipe email --env-args difficulty=2"
MIXED = "--recipe email --env-args difficulty=[1,2,3] --eval-episodes 512"
# Dynamic sampling plays more groups in a step: fewer steps for as many tokens.
DYNAMIC = {
    "uniform": "max_steps=40",
    "dynamic": "max_steps=26 dynamic_sampling=true",
}
EXPERIMENTS = {
    "credit": {
        "email": settings(MAIL, CREDIT),
        "coding": settings("--recipe coding", CREDIT),
        "2048": settings(GAME, CREDIT_2048),
    },
    "dynamic": {"mixed": settings(MIXED, DYNAMIC)},
}
"""By name, for each task the methods as words for ``art-trainer train``; the first is compared with."""
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""By the number of seeds the 97.5% point of Student's distribution."""


def train(words: Sequence[str], folder: Path, arguments: argparse.Namespace) -> RunFolder:
    """Train in a process of its own, unless the folder holds the finished run."""
    run = RunFolder(folder)
    if run.evaluation(AFTER) is None:
        harness.train(words, folder, arguments)
    print(f"{folder.name}: {_measured(run, AFTER):.3f}", flush=True)
    return run


def _measured(run: RunFolder, name: str) -> float:
    """The success of an evaluation, or the reward of games that are played for points."""
    evaluation = run.evaluation(name)
    assert evaluation is not None
    found = evaluation.reward if "2048" in evaluation.env_id else evaluation.success
    assert found is not None
    return found.value


def difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """How much better the second is: the mean over seeds on equal episodes, and Student's 95% interval.

    The interval is over seeds, so the luck of training is in it.
    """
    found = np.subtract(second, first)
    mean, half = float(found.mean()), _T[len(found)] * float(found.std(ddof=1)) / len(found) ** 0.5
    return mean, mean - half, mean + half


def report(task: str, runs: Mapping[str, Sequence[RunFolder]]) -> tuple[dict[str, Any], list[str]]:
    """Print a task's table; return its figures, and the methods that are better than the first for sure."""
    first, rows, figures, beaten = next(iter(runs)), [], dict[str, Any](), list[str]()
    for method, of_seeds in runs.items():
        before, after = ([_measured(run, when) for run in of_seeds] for when in (BEFORE, AFTER))
        shown = "{:,.0f}".format if max(after) > 1 else "{:.1%}".format
        figures[method] = {"before": before, "after": after}
        mean, low, high = difference(figures[first]["after"], after)
        tokens = [sum(row.get("num_tokens", 0.0) for row in run.metrics().records) for run in of_seeds]
        figures[method] |= {"difference": [mean, low, high], "tokens": float(np.mean(tokens))}
        versus = f"{shown(mean)} [{shown(low)}, {shown(high)}]"
        cells = [" ".join(map(shown, before)), " ".join(map(shown, after)), shown(float(np.mean(after)))]
        rows.append([method, *cells, "" if method == first else versus, f"{np.mean(tokens):,.0f}"])
        if method != first and low > 0:
            beaten.append(f"{task}: {method} is better than {first}, by {versus}")
    headings = ("method", "before, by seed", "after, by seed", "mean", f"against {first} [95%]", "tokens")
    harness.show(task, headings, rows)
    return figures, beaten


def main() -> int:
    """Command line."""
    parser = harness.parser(__doc__, quick="two seeds and two steps: shows that it runs")
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--seeds", type=int, default=3, choices=list(_T), help="how many seeds to train")
    harness.training_flags(parser)
    arguments = parser.parse_args()
    experiment = EXPERIMENTS[arguments.experiment]
    seeds = range(2 if arguments.quick else arguments.seeds)
    small = "--max-steps 2 --eval-episodes 8 --set warm_start_episodes=10" if arguments.quick else ""
    with harness.trainings(arguments) as (root, pool):
        # Seeds first, so that an interrupted comparison has all methods of some seeds.
        plan = [(seed, task, method) for seed in seeds for task in experiment for method in experiment[task]]

        def one(job: tuple[int, str, str]) -> RunFolder:
            seed, task, method = job
            words = f"{experiment[task][method]} --set baselines=[] {small}"
            folder = root / f"{arguments.experiment}-{task}-{method}-{seed}"
            return train([*words.split(), "--seed", str(seed)], folder, arguments)

        runs = dict(zip(plan, pool.map(one, plan), strict=True))
        figures: dict[str, Any] = {"experiment": arguments.experiment}
        beaten: list[str] = []
        for task, methods in experiment.items():
            by_method = {name: [runs[seed, task, name] for seed in seeds] for name in methods}
            figures[task], found = report(task, by_method)
            beaten += found
    figures["cpu_seconds"] = harness.cpu_seconds()
    return harness.finish(arguments, figures, beaten, f"{len(runs)} trainings compared")


if __name__ == "__main__":
    sys.exit(main())
