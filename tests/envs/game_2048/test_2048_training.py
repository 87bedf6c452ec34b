"""MaskablePPO of sb3-contrib learns on the array environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from art_gym.envs.game_2048.array_env import Array2048Env

_Choice = Callable[[NDArray[Any], NDArray[np.bool_]], NDArray[Any]]


class OneVector(gym.Wrapper[NDArray[np.uint8], int, NDArray[np.uint8], int]):
    """A small board as one vector of planes, with rewards near 1: what a plain MLP policy takes well."""

    def __init__(self, split: str = "train") -> None:
        self.game = Array2048Env(board_size=3, observation="one_hot", split=split)
        super().__init__(self.game)
        self.observation_space = gym.spaces.flatten_space(self.game.observation_space)

    def reset(self, **kwargs: Any) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        observation, info = self.game.reset(**kwargs)
        return observation.ravel(), info

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.game.step(action)
        return observation.ravel(), reward / 32, terminated, truncated, info

    def action_masks(self) -> NDArray[np.bool_]:
        return self.game.action_masks()


def mean_score(choose: _Choice, games: int = 100) -> float:
    """Over whole games of the test split, which training never meets."""
    envs = [OneVector("test") for _ in range(games)]
    observations = [env.reset(seed=seed)[0] for seed, env in enumerate(envs)]
    running = list(range(games))
    while running:
        masks = np.array([envs[game].action_masks() for game in running])
        actions = choose(np.array([observations[game] for game in running]), masks)
        going = []
        for game, action in zip(running, actions.tolist(), strict=True):
            observations[game], _, terminated, truncated, _ = envs[game].step(action)
            if not terminated and not truncated:
                going.append(game)
        running = going
    return float(np.mean([env.game.score for env in envs]))


def test_maskable_ppo_learns_to_play_a_small_board() -> None:
    learner = pytest.importorskip("sb3_contrib")
    from stable_baselines3.common.vec_env import DummyVecEnv

    model = learner.MaskablePPO(
        "MlpPolicy",
        DummyVecEnv([OneVector] * 32),
        seed=1,
        device="cpu",
        n_steps=64,
        batch_size=512,
        n_epochs=4,
        learning_rate=2e-3,
        gamma=0.97,
    )
    rng = np.random.default_rng(0)
    by_chance = mean_score(lambda _, masks: (masks * rng.random(masks.shape)).argmax(1))

    def trained(observations: NDArray[Any], masks: NDArray[np.bool_]) -> NDArray[Any]:
        return np.asarray(model.predict(observations, action_masks=masks, deterministic=True)[0])

    before = mean_score(trained)
    model.learn(60_000)
    after = mean_score(trained)
    assert after > 1.5 * max(before, by_chance), f"{before:.0f} -> {after:.0f}, by chance {by_chance:.0f}"
