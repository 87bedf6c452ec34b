"""Stable-Baselines3 and sb3-contrib on the array environment."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import FlattenObservation, TransformReward

from tests.integrations.episodes import MOVES, mean_score_by_chance, played

pytest.importorskip("sb3_contrib", reason="pip install sb3-contrib")

from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack, VecMonitor

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
SEED, ENVS = 11, 2


def flat(**options: Any) -> gym.Env[Any, Any]:
    """A small board as one vector of planes, with rewards near 1: what a plain MLP policy takes well."""
    options = {"board_size": 3, "observation": "one_hot", **options}
    return TransformReward(
        FlattenObservation(gym.make("art/2048Array-v0", **options)), lambda paid: paid / 32
    )


def array() -> gym.Env[Any, Any]:
    return gym.make("art/2048Array-v0")


def test_the_checker_finds_nothing_wrong() -> None:
    """`check_env` without a warning on the flattened array environment"""
    check_env(flat())


@pytest.mark.parametrize("build", [DummyVecEnv, lambda makers: SubprocVecEnv(makers, start_method="fork")])
def test_the_same_seeds_give_the_same_games_in_vector_environments(build: Callable[..., VecEnv]) -> None:
    """the same seeds give the same games in DummyVecEnv and SubprocVecEnv, truncation distinguished"""
    makers = [lambda: gym.make("art/2048Array-v0", max_turns=len(MOVES))] * ENVS
    vector = build(makers)
    try:
        vector.seed(SEED)
        met = [(vector.reset(), np.zeros(ENVS), np.zeros(ENVS, bool), [{}] * ENVS)]
        met += [vector.step(np.full(ENVS, move)) for move in MOVES]
    finally:
        vector.close()
    for index in range(ENVS):
        expected = played(makers[index](), SEED + index, MOVES)
        for turn, (observation, reward, terminated, truncated) in enumerate(expected):
            seen, rewards, dones, infos = met[turn]
            if turn == len(MOVES):
                assert truncated
                assert infos[index]["TimeLimit.truncated"] is True
                seen = {index: infos[index]["terminal_observation"]}
            assert seen[index].tolist() == observation
            assert rewards[index] == reward
            assert dones[index] == (terminated or truncated)


def test_frames_stack() -> None:
    """VecFrameStack"""
    vector = VecFrameStack(DummyVecEnv([flat] * ENVS), 4)
    cells = flat().observation_space.shape
    assert cells is not None
    assert vector.reset().shape == (ENVS, 4 * cells[0])


@pytest.mark.parametrize("algorithm", [A2C, DQN])
def test_other_algorithms_take_their_steps(algorithm: Any) -> None:
    """A2C and DQN train for some steps"""
    model = algorithm("MlpPolicy", DummyVecEnv([flat]), seed=1, device="cpu")
    model.learn(200)
    assert model.num_timesteps == 200
    assert int(model.predict(flat().reset(seed=1)[0])[0]) in range(4)


@pytest.mark.e2e
def test_ppo_learns_to_play_a_small_board() -> None:
    """PPO without an action mask beats random legal moves on 3 x 3 after 60,000 steps"""
    vector = VecMonitor(DummyVecEnv([flat] * 32))
    model = PPO(
        "MlpPolicy",
        vector,
        seed=1,
        device="cpu",
        n_steps=64,
        batch_size=512,
        n_epochs=4,
        learning_rate=2e-3,
        gamma=0.97,
    )
    model.learn(60_000)
    assert model.ep_info_buffer is not None
    scores = [32 * episode["r"] for episode in model.ep_info_buffer]
    assert len(scores) == 100
    by_chance = mean_score_by_chance(200, board_size=3)
    assert np.mean(scores) > 1.15 * by_chance, f"{np.mean(scores):.0f}, by chance {by_chance:.0f}"


def test_limit_text_spaces_are_refused() -> None:
    """text observations and actions: its buffers hold arrays alone"""
    with pytest.raises((TypeError, NotImplementedError)):
        PPO("MlpPolicy", gym.make("art/2048-v0"), device="cpu")


def test_limit_a_board_in_planes_looks_like_a_picture() -> None:
    """`observation="one_hot"` unflattened: it is taken for a picture; wrap it in FlattenObservation"""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        check_env(gym.make("art/2048Array-v0", observation="one_hot"))
    assert any("is an image" in str(warning.message) for warning in warned)
