"""Runs that cannot learn: what is said after three steps, what stops after ten, and what is left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from art_trainer.config import GRPOConfig
from art_trainer.errors import StalledError
from art_trainer.tracking.health import HealthMonitor, RunWarning
from art_trainer.tracking.run_dir import list_checkpoints
from art_trainer.tracking.stalls import STOP_AFTER, WARN_AFTER, Stall, StallDetector
from art_trainer.training.trainer import GRPOTrainer
from tests.art_trainer.guess import GuessEnv, guess_policy

LEARNING: dict[str, float] = {
    "reward": 0.4, "reward_std": 0.2, "success": 0.4, "turns": 3.0, "invalid_actions": 0.1, "cut_off": 0.2,
    "completions/clipped_ratio": 0.0, "frac_reward_zero_std": 0.5, "failed_groups": 0.0,
    "trained_tokens": 90.0, "grad_norm": 1.0, "skipped_updates": 0.0,
}  # fmt: skip
FLAT = LEARNING | {
    "reward": 0.0, "success": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0,
    "trained_tokens": 0.0, "grad_norm": 0.0,
}  # fmt: skip
FAILED = {"failed_groups": 8.0, "reward_std": 0.0, "frac_reward_zero_std": 0.0, "trained_tokens": 0.0}
MASKED = {"frac_reward_zero_std": 0.0, "cut_off": 1.0}


def found(steps: list[dict[str, float]], replies: tuple[str, ...] = (), **settings: Any) -> Stall | None:
    detector = StallDetector({"max_completion_length": 24, "model": "art-tiny", **settings})
    for step, metrics in enumerate(steps, start=1):
        detector.add(step, metrics)
    return detector.find(replies)


@pytest.mark.parametrize(
    ("name", "metrics", "words"),
    [
        ("no_valid_reply", {"invalid_actions": 0.985}, ("98%", "no tool call", "--model", "--warm-start")),
        ("replies_cut_off", {"completions/clipped_ratio": 1.0}, ("100%", "24", "max_completion_length")),
        ("episodes_cut_off", {"cut_off": 1.0}, ("100%", "3.0 turns", "max_turns", "`Outcome`")),
        ("already_solved", {"success": 1.0, "reward": 1.0}, ("100%", "--env-args")),
        ("reward_never_moves", {}, ("mean is 0 ", "`Outcome`")),
        ("no_gradient", MASKED, ("trained_tokens is 0", "mask_truncated_completions")),
        ("all_groups_failed", FAILED, ("failed_groups 8", "art-trainer analyze")),
    ],
)
def test_a_cause_is_named_with_its_numbers_and_what_to_change(
    name: str, metrics: dict[str, float], words: tuple[str, ...]
) -> None:
    stalled = FLAT | metrics
    assert found([stalled] * (WARN_AFTER - 1)) is None
    stall = found([stalled] * WARN_AFTER)
    assert stall is not None
    assert (stall.name, stall.first, stall.last, stall.dead) == (name, 1, 3, True)
    assert stall.message.startswith("no step from 1 to 3 had a gradient: ")
    for word in words:
        assert word in stall.message


def test_rewards_that_differ_between_tasks_alone_are_told_from_one_that_never_moves() -> None:
    stall = found([FLAT | {"reward": reward} for reward in (0.1, 0.2, 0.3)])
    assert stall is not None
    assert stall.name == "no_difference"
    assert "--num-generations" in stall.message


def test_replies_are_quoted_and_the_remedy_is_that_of_the_model() -> None:
    silent = [FLAT | {"invalid_actions": 1.0, "completions/clipped_ratio": 1.0}] * 3
    pretrained = found(silent, ("I would\nsearch for", "", "x" * 99))
    assert pretrained is not None
    assert "the first three were “I would search for”, “”, “xx" in pretrained.message
    assert "Raise --set max_completion_length" in pretrained.message
    scratch = found(silent, model="scratch")
    assert scratch is not None
    assert "warm_start_epochs=8" in scratch.message


def test_invalid_replies_are_reported_even_if_some_steps_have_a_gradient() -> None:
    stall = found([LEARNING | {"invalid_actions": 0.99}] * 20)
    assert stall is not None
    assert (stall.name, stall.dead, stall.first) == ("no_valid_reply", False, 18)


def test_ten_steps_without_success_and_hardly_a_difference_are_reported() -> None:
    hopeless = LEARNING | {"success": 0.0, "frac_reward_zero_std": 0.97}
    assert found([hopeless] * (STOP_AFTER - 1)) is None
    stall = found([LEARNING, *[hopeless] * STOP_AFTER])
    assert stall is not None
    assert (stall.name, stall.dead, stall.first) == ("no_success", False, 2)
    assert "in 97% of groups" in stall.message


HEALTHY: dict[str, tuple[list[dict[str, float]], dict[str, Any]]] = {
    "two steps without luck": ([FLAT, FLAT, LEARNING] * 9, {}),
    "four steps without luck after learning": ([LEARNING] * 3 + [FLAT] * 4, {}),
    "windows of games, all cut off": (
        [LEARNING | {"cut_off": 1.0, "completions/clipped_ratio": 1.0}] * 9,
        {},
    ),
    "solved after learning": ([LEARNING] + [FLAT | {"success": 0.97, "reward": 1.0}] * 20, {}),
    "a value head": ([FLAT | {"trained_tokens": 9.0, "grad_norm": 1.0}] * 9, {"advantage_estimator": "gae"}),
    "updates that are not finite": ([LEARNING | {"grad_norm": 0.0, "skipped_updates": 1.0}] * 9, {}),
    "an evaluation without an update": ([{"eval_reward": 0.0}] * 9, {}),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_a_run_that_learns_is_left_alone(case: str) -> None:
    steps, settings = HEALTHY[case]
    assert found(steps, **settings) is None


def test_a_gradient_of_the_kl_term_alone_is_none() -> None:
    stall = found([FLAT | {"trained_tokens": 90.0, "grad_norm": 0.01}] * 3)
    assert stall is not None
    assert stall.dead


def test_a_slow_run_gets_as_many_more_steps_as_it_has_few_with_a_gradient() -> None:
    detector = StallDetector({})
    for step in range(1, 41):
        detector.add(step, FLAT if step % 4 else LEARNING)
    stops = []
    for step in range(41, 41 + 4 * STOP_AFTER):
        detector.add(step, FLAT)
        stops.append(detector.must_stop)
    assert stops == [False] * (4 * STOP_AFTER - 1) + [True]


def test_it_warns_once_for_each_cause_and_stops_after_ten_steps_in_a_row() -> None:
    monitor = HealthMonitor(GRPOConfig())
    silent = FLAT | {"invalid_actions": 1.0}
    warned, stops = [], []
    for step, metrics in enumerate([silent] * 4 + [FLAT] * 4 + [silent] * 2, start=1):
        warned += [(step, one.name) for one in monitor.check(step, metrics)]
        stops.append(monitor.stop_reason is not None)
    assert warned == [(3, "no_valid_reply"), (5, "reward_never_moves")]
    assert stops == [False] * (STOP_AFTER - 1) + [True]


def test_a_resumed_run_counts_on_and_a_stopped_one_gets_as_many_steps_again() -> None:
    def resumed(steps: int) -> HealthMonitor:
        first, second = HealthMonitor(GRPOConfig()), HealthMonitor(GRPOConfig())
        for step in range(steps):
            first.check(step + 1, FLAT)
        second.restore(json.loads(json.dumps(first.state())))
        return second

    for before, more in ((4, 6), (STOP_AFTER, STOP_AFTER)):
        monitor, stopped = resumed(before), []
        for step in range(before, before + more):
            assert monitor.check(step + 1, FLAT) == []  # it was said before
            stopped.append(monitor.stop_reason is not None)
        assert stopped == [False] * (more - 1) + [True]


class Unpaid(GuessEnv):
    """A game that pays nothing and whose replies are all refused."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "BAD", 0.0, True, False, {"success": False, "error": {"kind": "no call", "message": action}}


def make_trainer(folder: Path, **settings: Any) -> tuple[GRPOTrainer, Mock]:
    listener = Mock(spec=["on_step", "on_episode", "on_warning"])
    settings = {
        "output_dir": str(folder), "groups_per_step": 2, "num_generations": 2, "max_completion_length": 1,
        "max_steps": STOP_AFTER + 2, **settings,
    }  # fmt: skip
    return GRPOTrainer(
        guess_policy(hidden=16), Unpaid, GRPOConfig(**settings), callbacks=[listener]
    ), listener


def test_a_dead_run_warns_stops_with_a_checkpoint_and_can_be_told_to_keep_going(tmp_path: Path) -> None:
    trainer, listener = make_trainer(tmp_path / "a")
    with pytest.raises(StalledError, match=r"no step from 1 to 10 had a gradient.*keep_going.*checkpoint is"):
        trainer.train()
    (warning,) = (call.args[0] for call in listener.on_warning.call_args_list)
    assert isinstance(warning, RunWarning)
    assert (warning.step, warning.name) == (3, "no_valid_reply")
    assert "the first three were “" in warning.message
    assert json.loads((tmp_path / "a/events.jsonl").read_text()) == warning.to_json()
    (saved,) = list_checkpoints(trainer.log.checkpoints)

    resumed, _ = make_trainer(tmp_path / "a", keep_going=True)
    resumed.load_checkpoint(saved)
    resumed.train()
    assert resumed.step == STOP_AFTER + 2


def test_a_loop_of_ones_own_warns_and_stops_too(tmp_path: Path) -> None:
    trainer, listener = make_trainer(tmp_path / "own")
    for _ in range(STOP_AFTER):
        trainer.update_policy(trainer.collect_episodes())
    with pytest.raises(StalledError, match="no step from 1 to 10 had a gradient"):
        trainer.collect_episodes()
    assert [call.args[0].step for call in listener.on_warning.call_args_list] == [3]
    assert not (tmp_path / "own").exists()
