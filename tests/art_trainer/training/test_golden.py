"""Three updates of every algorithm have the loss, the divergence and the gradient norm that are written down;
and no gradient depends on how a batch is computed.

To write them again: ``python -m tests.art_trainer.training.test_golden``.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from art_trainer.training.learner import Learner
from tests.art_trainer.made_episodes import made_groups
from tests.art_trainer.tiny_models import tiny_model
from tests.art_trainer.updates import config, gradient_of_update, weights_of, with_logprobs, with_rewards

FILE = Path(__file__).with_name("golden.json")
ALGORITHMS: dict[str, dict[str, Any]] = {
    "dapo": {},
    "grpo": {"loss_type": "grpo", "scale_rewards": "group"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "bnpo": {"loss_type": "bnpo", "scale_rewards": "batch"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.3},
    "gspo": {
        **{"loss_type": "grpo", "importance_sampling_level": "sequence"},
        **{"epsilon": 0.1, "epsilon_high": 0.1},
    },
    "two-sided": {"delta": 1.4},
    "rloo": {"advantage_estimator": "leave_one_out"},
    "reward to go": {"advantage_estimator": "reward_to_go", "gamma": 0.9},
    "gigpo": {"advantage_estimator": "gigpo", "gamma": 0.95},
    "gspo of turns": {"advantage_estimator": "gigpo", "importance_sampling_level": "sequence"},
}
"""Settings of each algorithm by its name."""


CASES: dict[str, dict[str, Any]] = {
    **ALGORITHMS,
    "ppo": {"advantage_estimator": "gae", "gamma": 0.9, "lam": 0.9},
    "with a reference": {"beta": 0.1, "num_iterations": 2},
    "with an entropy bonus": {"entropy_coef": 0.05},
    "several parts": {"steps_per_generation": 3, "num_iterations": 2, "max_grad_norm": 0.1},
    "with a schedule": {"max_steps": 3, "lr_scheduler_type": "linear", "warmup_steps": 1},
    "another sampler": {"importance_sampling_correction": True},
}


def trajectory(settings: dict[str, Any]) -> dict[str, list[float]]:
    model = tiny_model()
    learner = Learner(model, config(**{"learning_rate": 1e-3, "num_iterations": 2, **settings}))
    steps = [learner.update(made_groups(tiny_model(), seed=step)) for step in range(3)]
    names = ("loss", "kl", "grad_norm", "learning_rate")
    return {name: [float(f"{step[name]:.7g}") for step in steps] for name in names}


@pytest.mark.parametrize("name", CASES)
def test_three_updates_are_those_written_down(name: str) -> None:
    wanted = json.loads(FILE.read_text(encoding="utf-8"))[name]
    found = trajectory(CASES[name])
    assert found.keys() == wanted.keys()
    for metric, values in found.items():
        assert values == pytest.approx(wanted[metric], rel=1e-3, abs=1e-6), metric


@pytest.mark.parametrize("how", [{"share_prefixes": False}, {"tokens_per_microbatch": 120}])
@pytest.mark.parametrize("name", ["grpo", "cispo", "gspo", "gigpo"])
def test_how_a_batch_is_computed_changes_no_gradient(name: str, how: dict[str, Any]) -> None:
    groups = [with_logprobs(group, 0.1) for group in made_groups(tiny_model())]
    settings = {"max_grad_norm": 0.0, "entropy_coef": 0.01, "beta": 0.1, **ALGORITHMS[name]}
    wanted = gradient_of_update(tiny_model(), groups, config(**settings))
    found = gradient_of_update(tiny_model(), groups, config(**settings, **how))
    assert (found - wanted).norm() <= 5e-6 * wanted.norm()


@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("name", ["dapo", "grpo", "cispo", "gspo", "rloo", "reward to go"])
def test_equal_rewards_change_no_weight(name: str, drop: bool) -> None:
    model = tiny_model()
    # The same number of turns for all: a discounted reward is worth more to who earned it sooner.
    groups = [with_rewards(group, [0.1] * 4) for group in made_groups(model, turns=1)]
    stale = [with_logprobs(group, 0.1) for group in groups]
    before = weights_of(model)
    metrics = Learner(model, config(drop_zero_variance_groups=drop, **ALGORITHMS[name])).update(stale)
    assert torch.equal(weights_of(model), before)
    assert metrics["frac_reward_zero_std"] == 1
    assert (metrics["trained_tokens"] == 0) == drop


if __name__ == "__main__":
    found = {name: trajectory(settings) for name, settings in CASES.items()}
    lines = [f' "{name}": {json.dumps(metrics)}' for name, metrics in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
