"""The single-file example of the documentation learns."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.integrations.episodes import mean_score_by_chance

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "ppo_2048.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ppo_2048", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.e2e
def test_one_file_of_ppo_learns_on_make_vec(example: ModuleType) -> None:
    """PPO in one file (docs/examples/ppo_2048.py, torch alone) beats twice the score of random legal moves"""
    scores = example.train(updates=50)
    by_chance = mean_score_by_chance(200, board_size=3)
    assert np.mean(scores[-5:]) > 2 * by_chance, f"{scores[-5:]}, by chance {by_chance:.0f}"


@pytest.mark.e2e
def test_the_same_seed_gives_the_same_training(example: ModuleType) -> None:
    """the same seed gives the same training"""
    assert example.train(updates=2, seed=5) == example.train(updates=2, seed=5)
    assert example.train(updates=2, seed=5) != example.train(updates=2, seed=6)
