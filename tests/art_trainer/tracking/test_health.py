"""Health warnings, and what is left of a run that diverged."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from art_trainer.config import GRPOConfig
from art_trainer.errors import DivergedError
from art_trainer.tracking.health import FIRST_STEPS, WINDOW, HealthMonitor, RunWarning
from art_trainer.tracking.run_dir import list_checkpoints
from art_trainer.training.learner import Learner
from art_trainer.training.trainer import GRPOTrainer
from art_trainer.types import Ending, Group
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.made_episodes import made_groups
from tests.art_trainer.tiny_models import tiny_model
from tests.art_trainer.updates import config, weights_of, with_logprobs

QUIET: dict[str, float] = {
    "trained_tokens": 100.0, "kl": 0.001, "ratio/max": 1.5, "ratio/min": 0.7,
    "entropy": 2.0, "grad_norm": 1.0, "skipped_updates": 0.0,
}  # fmt: skip


def monitor(**settings: Any) -> HealthMonitor:
    """A monitor that has seen enough quiet steps to compare with."""
    made = HealthMonitor(GRPOConfig(**settings))
    for step in range(FIRST_STEPS):
        assert made.check(step + 1, QUIET) == []
    return made


def test_an_agent_whose_requests_begin_anew_is_told_once() -> None:
    (group,) = made_groups(tiny_model(), groups=1)
    agents = replace(group, episodes=tuple(replace(e, facts={"outcome": "rewarded"}) for e in group.episodes))
    forked = QUIET | {"turns": 4.0, "histories_per_episode": 3.0}
    health = monitor()
    (warning,) = health.check(6, forked, [agents])
    assert (warning.name, warning.value) == ("histories_per_episode", 3.0)
    assert health.check(7, forked, [agents]) == []
    assert monitor().check(6, forked, [group]) == []  # an environment's history window
    assert monitor().check(6, forked | {"histories_per_episode": 2.0}, [agents]) == []


def test_the_first_step_with_a_failed_group_is_told_and_every_step_of_failed_groups() -> None:
    (whole,) = made_groups(tiny_model(), groups=1)
    fault = {"ending": Ending.ENV_ERROR, "error": "KeyError: 'title' (desk.py, line 11)"}
    failed = replace(whole, episodes=(replace(whole.episodes[0], **fault), *whole.episodes[1:]))
    health = monitor()
    (warning,) = health.check(6, QUIET, [whole, failed])
    assert (warning.name, warning.value, warning.threshold) == ("failed_groups", 1.0, 0.0)
    assert warning.message == (
        "step 6: 1 of 2 groups failed, and nothing is learned from them. "
        "The first fault: KeyError: 'title' (desk.py, line 11)"
    )
    assert health.check(7, QUIET, [whole, failed]) == []
    (warning,) = health.check(8, QUIET, [failed, failed])
    assert "nothing was learned, every group failed (2)" in warning.message


@pytest.mark.parametrize(
    ("name", "setting", "metrics", "value", "threshold"),
    [
        ("sampling_kl", "kl_warning", {"kl": 0.3}, 0.3, 0.2),
        ("sampling_kl", "kl_warning", {"kl": 0.001, "sampling_kl": math.inf}, math.inf, 0.2),
        ("ratio/max", "ratio_warning", {"ratio/max": 310.0}, 310.0, 100.0),
        ("ratio/min", "ratio_warning", {"ratio/min": 0.001}, 0.001, 0.01),
        ("entropy", "entropy_warning", {"entropy": 0.09}, 0.09, 0.1),
        ("grad_norm", "grad_norm_warning", {"grad_norm": 10.5}, 10.5, 10.0),
    ],
)
def test_a_number_beyond_its_threshold_is_named_unless_that_is_zero(
    name: str, setting: str, metrics: dict[str, float], value: float, threshold: float
) -> None:
    (warning,) = monitor().check(6, QUIET | metrics)
    assert (warning.step, warning.name, warning.value) == (6, name, value)
    assert warning.threshold == pytest.approx(threshold)
    assert warning.message.startswith("step 6: ")
    assert f"{value:.3g}" in warning.message
    assert monitor(**{setting: 0.0}).check(6, QUIET | metrics) == []


def test_replies_that_do_not_end_are_told_although_they_succeed() -> None:
    cut = QUIET | {"completions/clipped_ratio": 0.7, "success": 1.0}
    (warning,) = monitor().check(6, cut)
    assert (warning.name, warning.value) == ("completions/clipped_ratio", 0.7)
    assert "70% of replies were cut off at max_completion_length" in warning.message
    assert monitor().check(6, cut | {"completions/clipped_ratio": 0.5}) == []


def test_a_kl_to_the_reference_is_no_alarm() -> None:
    # With beta, `kl` is how far training has come since its start: that may well be far.
    assert monitor().check(6, QUIET | {"kl": 3.0, "sampling_kl": 0.001}) == []


def test_what_is_not_a_number_is_beyond_any_threshold() -> None:
    names = {warning.name for warning in monitor().check(6, QUIET | {"kl": math.nan, "ratio/max": math.nan})}
    assert names == {"sampling_kl", "ratio/max"}


def test_it_warns_once_until_the_number_has_come_back() -> None:
    made = monitor()
    high = QUIET | {"kl": 0.5}
    counts = [len(made.check(6 + i, metrics)) for i, metrics in enumerate([high, high, QUIET, high])]
    assert counts == [1, 0, 0, 1]


def test_gradients_are_compared_with_the_last_ones_once_there_are_some() -> None:
    made = HealthMonitor(GRPOConfig())
    norms = [1.0, 1.0, 500.0]  # a run's first gradients differ a lot
    assert not any(made.check(i + 1, QUIET | {"grad_norm": norm}) for i, norm in enumerate(norms))
    made = monitor()
    for step in range(WINDOW + 1):  # grown step by step, without a jump
        assert made.check(6 + step, QUIET | {"grad_norm": 1.2**step}) == []


def test_skipped_steps_warn_every_time_and_steps_without_training_never() -> None:
    made = monitor()
    nothing = {"trained_tokens": 0.0, "kl": 0.0, "entropy": 0.0, "grad_norm": 0.0, "skipped_updates": 0.0}
    assert made.check(6, nothing) == []
    for step in (7, 8):
        (warning,) = made.check(step, nothing | {"skipped_updates": 2.0})
        assert (warning.name, warning.value) == ("skipped_updates", 2.0)
        assert "2 optimizer steps skipped" in warning.message


def test_a_resumed_monitor_gives_the_same_warnings() -> None:
    first, second = monitor(), HealthMonitor(GRPOConfig())
    first.check(6, QUIET | {"kl": 0.5})
    second.restore(json.loads(json.dumps(first.state())))
    bad = QUIET | {"kl": 0.5, "grad_norm": 40.0}
    assert [warning.name for warning in second.check(7, bad)] == ["grad_norm"]
    assert second.state() == (first.check(7, bad) and first.state())


def test_an_update_reports_the_extreme_ratios_and_the_divergence_from_the_sampler() -> None:
    model = tiny_model()
    groups = [with_logprobs(group, -math.log(20)) for group in made_groups(model)]
    metrics = Learner(model, config(beta=0.01)).update(groups)
    assert metrics["ratio/max"] == pytest.approx(20, rel=1e-4)
    assert metrics["ratio/min"] == pytest.approx(20, rel=1e-4)
    # k3 of a ratio r is r - 1 - log r, here of what the update made of the sampler's probabilities.
    assert metrics["sampling_kl"] == pytest.approx(20 - 1 - math.log(20), rel=1e-4)
    assert "sampling_kl" not in Learner(tiny_model(), config()).update(made_groups(model))


class Poisoned(GRPOTrainer):
    """From its second batch on, the sampler's log-probs are not numbers."""

    def collect_episodes(self) -> list[Group]:
        groups = super().collect_episodes()
        return groups if self.step == 0 else [with_logprobs(group, math.nan) for group in groups]


def make_trainer(kind: type[GRPOTrainer], folder: Path, **settings: Any) -> tuple[GRPOTrainer, Mock]:
    listener = Mock(spec=["on_step", "on_episode", "on_warning"])
    settings = {
        "output_dir": str(folder), "learning_rate": 2e-3, "groups_per_step": 4, "num_generations": 4,
        "max_completion_length": 1, "max_steps": 9, **settings,
    }  # fmt: skip
    return kind(guess_policy(hidden=16), GuessEnv, GRPOConfig(**settings), callbacks=[listener]), listener


def warned(listener: Mock) -> list[RunWarning]:
    return [call.args[0] for call in listener.on_warning.call_args_list]


def test_a_run_that_diverges_leaves_its_last_finite_weights(tmp_path: Path) -> None:
    trainer, listener = make_trainer(Poisoned, tmp_path, max_skipped_updates=3)
    with pytest.raises(
        DivergedError, match=r"3 optimizer steps in a row.*lower learning_rate.*\. The checkpoint is"
    ):
        trainer.train()
    (saved,) = list_checkpoints(trainer.log.checkpoints)
    once, _ = make_trainer(GRPOTrainer, tmp_path / "once", max_steps=9)
    once.update_policy(once.collect_episodes())
    resumed, _ = make_trainer(GRPOTrainer, tmp_path / "resumed")
    resumed.load_checkpoint(saved)
    assert torch.equal(weights_of(resumed.policy.model), weights_of(once.policy.model))
    skipped = [warning.step for warning in warned(listener) if warning.name == "skipped_updates"]
    assert skipped == [2, 3]  # the third ended the run
    resumed.train()  # from there on
    assert resumed.step == 9


def test_warnings_reach_the_file_and_the_callbacks(tmp_path: Path) -> None:
    trainer, listener = make_trainer(GRPOTrainer, tmp_path, learning_rate=0.5, num_iterations=3, max_steps=2)
    trainer.train()
    assert {"sampling_kl", "ratio/min"} <= {warning.name for warning in warned(listener)}
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [warning.to_json() for warning in warned(listener)]
