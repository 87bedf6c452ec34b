"""Runs of scripted policies that drift, written as a trainer leaves them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from art_trainer.rollout.evaluate import EpisodeResult, Evaluation
from art_trainer.tracking.episode_store import append_episodes, begin_episodes
from art_trainer.tracking.run_dir import RunFolder
from art_trainer.types import Ending, Episode, Group, Judgement, Turn

WORDS = "the quick brown fox jumps over a lazy dog while seven wise men build boats".split()


@dataclass
class Play:
    """What one attempt does; ``chance`` and ``rng`` may be used to decide it."""

    success: bool | None
    replies: Sequence[str]
    terms: Mapping[str, float]
    ending: Ending = Ending.TERMINATED
    invalid: int = 0
    own: float | None = None
    judged: float | None = None
    error: tuple[str, str] = ("no_call", "There is no call in the reply.")


Script = Callable[[float, np.random.Generator], Play]
"""From how far training is, in [0, 1], and randomness to an attempt."""


def episode_of(play: Play, task: int, seed: int) -> Episode:
    kind, message = play.error
    turns = []
    for number, reply in enumerate(play.replies):
        terms = dict(play.terms) if number == len(play.replies) - 1 else {}
        wrong = number < play.invalid
        call = None if wrong else {"name": "say", "arguments": {"text": reply}}
        error = {"kind": kind, "message": message} if wrong else None
        turns.append(Turn(reply, "seen", sum(terms.values()), terms, call, error))
    judgements = {} if play.judged is None else {"ruler": Judgement(play.judged)}
    return Episode(
        "toy/Env-v0", f"train-{task}", seed, "start", tuple(turns), (), play.ending, play.success,
        independent_reward=play.own, judgements=judgements,
    )  # fmt: skip


def write_run(
    folder: Path,
    script: Script,
    *,
    steps: int = 24,
    groups: int = 6,
    size: int = 6,
    tasks: int = 50,
    seed: int = 0,
) -> Path:
    """Write a run's records; nothing is logged, so that every curve comes from the episodes."""
    rng = np.random.default_rng(seed)
    records = {}
    for step in range(1, steps + 1):
        progress = (step - 1) / max(1, steps - 1)
        records[step] = [
            [episode_of(script(progress, rng), *start) for _ in range(size)]
            for start in [(int(rng.integers(tasks)), int(rng.integers(2**31))) for _ in range(groups)]
        ]
    return write_records(folder, records)


def write_records(folder: Path, records: Mapping[int, Sequence[Sequence[Episode]]]) -> Path:
    """Write groups of episodes by step."""
    folder.mkdir(parents=True, exist_ok=True)
    begin_episodes(folder, {}, 0)
    for step, groups in records.items():
        append_episodes(folder, step, [Group(tuple(members)) for members in groups])
    return folder


def write_metrics(folder: Path, curves: Mapping[str, Sequence[float]]) -> None:
    """Write logged curves, one value a step from 1."""
    length = len(next(iter(curves.values())))
    lines = [
        json.dumps({"step": float(k + 1), **{name: values[k] for name, values in curves.items()}}) + "\n"
        for k in range(length)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(lines))


def write_evaluation(folder: Path, name: str, wins: Sequence[float], env: str = "toy/Env-v0") -> Evaluation:
    """Write an evaluation of one attempt a task, each with its reward: 1 is a success."""
    results = tuple(
        EpisodeResult(f"test-{k}", k, Ending.TERMINATED, win == 1, float(win), {}, {}, 2, 0, 10)
        for k, win in enumerate(wins)
    )
    evaluation = Evaluation(name, env, "test", 0, results, 1.0)
    RunFolder(folder).write_evaluation(name, evaluation, [])
    return evaluation


def words(count: int, rng: np.random.Generator) -> str:
    """So many words at random."""
    return " ".join(WORDS[i] for i in rng.integers(len(WORDS), size=max(1, count)))


def honest(progress: float, rng: np.random.Generator) -> Play:
    """Success rises from 20% to 80%, and the reward with it; a penalty for wrong calls fades."""
    success = bool(rng.random() < 0.2 + 0.6 * progress)
    invalid = int(rng.random() < 0.4 * (1 - progress))
    replies = [words(int(rng.integers(4, 9)), rng) for _ in range(1 + invalid)]
    return Play(
        success, replies, {"correct": float(success), "invalid_action": -0.1 * invalid}, invalid=invalid
    )


def pays_length(progress: float, rng: np.random.Generator) -> Play:
    """Success stays at 40%; a term pays for length, and replies grow."""
    success = bool(rng.random() < 0.4)
    reply = words(int(rng.integers(3, 7) + 25 * progress * rng.random()), rng)
    return Play(success, [reply], {"correct": float(success), "thoroughness": 0.02 * len(reply)})
