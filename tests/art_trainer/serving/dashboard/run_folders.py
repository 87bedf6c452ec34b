"""Run folders made by the trainer's own writers, for the dashboard's tests."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import art_trainer.models.art_tiny
from art_trainer.rollout.evaluate import EpisodeResult, Evaluation
from art_trainer.tracking.health import RunWarning
from art_trainer.tracking.run_dir import RunFolder
from art_trainer.types import Ending, Episode, Group, Judgement, Span, TokenHistory, Turn

MARKUP = '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">'
TOKENIZER = Path(art_trainer.models.art_tiny.__file__).parent / "weights" / "tokenizer.json"
REPLY = 'search("tea")'


def tokens_of(text: str) -> tuple[int, ...]:
    """A text's tokens, by the embedded model's tokenizer."""
    from tokenizers import Tokenizer

    return tuple(Tokenizer.from_file(str(TOKENIZER)).encode(text, add_special_tokens=False).ids)


def episode(task: int, reward: float, *, words: str = "", version: int = 0, **fields: Any) -> Episode:
    """Two turns; the second one ends the episode."""
    searched = tokens_of(REPLY)
    history = TokenHistory(
        (
            Span((5, 6, 7)),
            Span(searched, 0, tuple(-0.5 * k for k in range(len(searched))), version),
            Span((8, 9)),
            Span((10, 11), 1, (-0.25, float("-inf")), version),
        )
    )
    turns = (
        Turn(
            REPLY, f"Found 2 mails. {words}", 0.25, {"found": 0.25}, call={"name": "search", "arguments": {}}
        ),
        Turn(f"select(m{task})", "", reward - 0.25, call={"name": "select", "arguments": {}}),
    )
    made = Episode(
        "toy/Mail-v0", f"task-{task}", task, f"Who wrote about tea? {words}", turns, (history,),
        Ending.TERMINATED, success=reward > 0.5, metrics={"turns": 2.0},
    )  # fmt: skip
    return dataclasses.replace(made, **fields)


def group(task: int, rewards: Sequence[float], **fields: Any) -> Group:
    """Attempts at one task."""
    return Group(tuple(episode(task, reward, **fields) for reward in rewards))


def metrics(step: int, **more: float) -> dict[str, float]:
    """A line of metrics."""
    return {
        "step": float(step), "reward": step / 10, "success": min(1.0, step / 8), "kl": 0.01 / step,
        "entropy": 1 / step, "loss": -0.1, "tokens_per_second": 900.0 + step, "time/rollout": 2.0,
        "time/update": 1.0, "staleness/mean": 0.5,
    } | more  # fmt: skip


class DashRun:
    """Writes a run's folder, a step at a time."""

    def __init__(self, folder: Path, *, max_steps: int = 10, begin: bool = True) -> None:
        self.folder = folder
        self.log = RunFolder(folder)
        if begin:
            self.log.begin({"max_steps": max_steps}, 0)
            settings = {"env": "toy/Mail-v0", "model": "art-tiny", "max_steps": max_steps}
            self.log.write_settings(settings)

    def step(self, step: int, groups: Sequence[Group] | None = None, **more: float) -> None:
        """Do a step: two groups of two attempts unless told otherwise."""
        if groups is None:
            groups = [group(2 * step + k, (1.0, 0.25 * k), version=step - 1) for k in range(2)]
        self.log.write_metrics(metrics(step, **more))
        self.log.write_episodes(step, groups)

    def warn(self, step: int) -> None:
        """Give a warning."""
        words = f"step {step}: the entropy fell {MARKUP}"
        self.log.write_warning(RunWarning(step, "entropy", 0.1, 0.2, words))

    def evaluate(self, name: str, wins: int) -> None:
        """Write an evaluation of 20 episodes."""
        results = tuple(EpisodeResult.of(episode(k, float(k < wins))) for k in range(20))
        evaluation = Evaluation(name, "toy/Mail-v0", "test", 0, results, 1.0)
        RunFolder(self.folder).write_evaluation(name, evaluation, [])

    def save_tokenizer(self) -> None:
        """What a checkpoint leaves of a tokenizer."""
        model = self.folder / "checkpoints" / "step-000002" / "model"
        model.mkdir(parents=True)
        shutil.copy(TOKENIZER, model / "tokenizer.json")


def judged(task: int) -> Episode:
    """An episode that a judge had words for, with markup in everything that is text."""
    judgement = Judgement(0.75, f"Well done {MARKUP}", {"brevity": 0.5})
    return episode(
        task, 1.0, words=MARKUP, judgements={"ruler": judgement}, independent_reward=0.5,
        facts={"note": MARKUP}, tools=({"type": "function", "function": {"name": MARKUP}},),
    )  # fmt: skip
