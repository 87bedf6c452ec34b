"""Training is the same with sinks as without, whatever they do; together they show what the folder has."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import torch

from art_trainer.config import GRPOConfig
from art_trainer.tracking.episode_store import iter_episodes
from art_trainer.tracking.sinks.backfill import events_after
from art_trainer.tracking.sinks.base import Cursor, RunInfo, Sink
from art_trainer.tracking.sinks.delivery import SinkDispatcher
from art_trainer.training.trainer import GRPOTrainer
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.tracking.sinks.sink_runs import QUICK, MemorySink
from tests.art_trainer.waiting import until

STEPS = 3


def trained(
    folder: Path, sinks: Sequence[Sink], ready_to_end: Callable[[], bool] = lambda: True
) -> tuple[SinkDispatcher, dict[str, torch.Tensor]]:
    """Train a little; return the dispatcher and the weights."""
    config = GRPOConfig(
        output_dir=str(folder), max_steps=STEPS, groups_per_step=2, num_generations=4,
        max_completion_length=2, save_steps=1,
    )  # fmt: skip
    info = RunInfo(folder, config.to_mapping(), project="art-tests")
    dispatcher = SinkDispatcher(info, sinks, **QUICK, close_seconds=1.0)
    ending = dispatcher.on_end

    def end_when_ready(outcome: Any) -> None:
        until(ready_to_end)
        ending(outcome)

    dispatcher.on_end = end_when_ready  # type: ignore[method-assign]
    trainer = GRPOTrainer(guess_policy(hidden=16), GuessEnv, config, callbacks=[dispatcher])
    trainer.train()
    trainer.close()
    return dispatcher, {name: value.clone() for name, value in trainer.policy.model.state_dict().items()}


def metrics(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    timed = ("time/", "tokens_per_second")
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(timed)} for line in lines]


def test_sinks_that_fail_in_every_way_change_nothing(tmp_path: Path) -> None:
    kept, stuck = MemorySink(), MemorySink(name="stuck")
    stuck.gate.clear()
    dead = MemorySink(name="dead", fail=range(1, 10_000))
    sinks = [dead, kept, stuck, MemorySink(name="absent", open_faults=repeat(ConnectionRefusedError()))]
    dispatcher, weights = trained(tmp_path / "run", sinks, lambda: len(kept.events) >= 3 * STEPS)
    stuck.gate.set()
    complete = {status.name: status.complete for status in dispatcher.statuses}
    assert complete == {"dead": False, "memory": True, "stuck": False, "absent": False}
    left = {Cursor.of(event) for event in events_after(tmp_path / "run")}  # but for pruned checkpoints
    assert left <= set(kept.cursors)
    played = [episode for event in kept.events for episode in getattr(event, "episodes", ())]
    assert played == [recorded.episode for recorded in iter_episodes(tmp_path / "run")]
    _, alone = trained(tmp_path / "alone", ())
    assert alone.keys() == weights.keys()
    assert all(torch.equal(alone[name], weights[name]) for name in alone)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "alone")
