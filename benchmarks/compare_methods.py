"""Which method learns best? Trains a recipe with each of several settings, over seeds, on held-out tasks.

Each training is one ``art-trainer train`` of its own. The first method is the recipe's; the others are compared
with it, seed by seed, on the same held-out tasks.

    python benchmarks/compare_methods.py credit                 # which advantage estimator, on three tasks
    python benchmarks/compare_methods.py tasks                  # which training tasks, on mixed levels of mail
    python benchmarks/compare_methods.py branching              # attempts that branch from others
    python benchmarks/compare_methods.py credit --keep FOLDER   # continues there: what is finished is not repeated
    python benchmarks/compare_methods.py credit --check         # exits 1 if a method beats the recipe's
"""

from __future__ import annotations

import argparse
import itertools
import resource
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import harness
import numpy as np

from art_trainer.rollout.evaluate import Evaluation, compare
from art_trainer.tracking.run_dir import AFTER, BEFORE, RunFolder


@dataclass(frozen=True)
class Task:
    """What is learned."""

    words: str
    """For ``art-trainer train``."""
    measure: str = "success"
    """``"success"`` (a share) or ``"reward"``."""
    skipped: tuple[str, ...] = ()
    """Methods that make no sense for it."""


@dataclass(frozen=True)
class Experiment:
    """Methods to compare on some tasks."""

    tasks: Mapping[str, Task]
    methods: Mapping[str, str]
    """By name words for ``art-trainer train``; the first is the one that others are compared with."""
    seeds: int


MAIL = Task("--recipe email --env-args difficulty=2")
EXPERIMENTS = {
    "credit": Experiment(
        {"email, level 2": MAIL, "coding, level 0": Task("--recipe coding")},
        {
            "group": "--set advantage_estimator=group",
            "leave_one_out": "--set advantage_estimator=leave_one_out",
            "gigpo": "--set advantage_estimator=gigpo --set gamma=0.95",
            "reward_to_go": "--set advantage_estimator=reward_to_go",
            "gae": "--set advantage_estimator=gae",
        },
        seeds=3,
    ),
}
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""By seeds the 97.5% point of Student's distribution, for the interval of a mean over so many."""


@dataclass(frozen=True)
class Trained:
    """One training."""

    before: Evaluation
    after: Evaluation
    tokens: float
    """Sampled in training."""

    def value(self, measure: str) -> float:
        """The measure after training."""
        found = self.after.success if measure == "success" else self.after.reward
        assert found is not None
        return found.value


def train(words: Sequence[str], seed: int, folder: Path, threads: int | None) -> Trained:
    """Train in a process of its own, unless the folder holds the finished run."""
    run = RunFolder(folder)
    if run.evaluation(AFTER) is None:
        log = folder.with_name(f"{folder.name}.log")
        command = ["train", *words, "--seed", str(seed), "--set", "baselines=[]", "--output-dir", str(folder)]
        harness.art_trainer(command, log, threads=threads)
    before, after = run.evaluation(BEFORE), run.evaluation(AFTER)
    assert before is not None
    assert after is not None
    tokens = sum(row.get("num_tokens", 0.0) for row in run.metrics().records)
    return Trained(before, after, tokens)
