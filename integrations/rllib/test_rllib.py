"""RLlib's new API stack on the array environment, without a cluster of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import ray
from gymnasium.wrappers import DtypeObservation, FlattenObservation, TransformReward
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.tune.registry import register_env

from tests.integrations.episodes import mean_score_by_chance, played

SEED = 11


def flat(options: dict[str, Any]) -> gym.Env[Any, Any]:
    """A small board as one vector of planes, with rewards near 1."""
    env = gym.make("art/2048Array-v0", board_size=3, observation="one_hot", **options)
    return TransformReward(DtypeObservation(FlattenObservation(env), np.float32), lambda paid: paid / 32)


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    """Ray on this machine alone, for the tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray writes one into the user's home
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
        register_env("art-2048-flat", flat)
        yield
        ray.shutdown()


def config(**env_config: Any) -> PPOConfig:
    """PPO in this process alone: no remote workers."""
    made = PPOConfig().environment("art-2048-flat", env_config=env_config)
    made = made.env_runners(num_env_runners=0, num_envs_per_env_runner=8).learners(num_learners=0)
    rates = {"lr": 2e-3, "gamma": 0.97, "entropy_coeff": 0.01}
    sizes = {"train_batch_size_per_learner": 2048, "minibatch_size": 512, "num_epochs": 4}
    return made.training(**rates, **sizes).debugging(seed=1)


def test_the_same_seed_gives_the_same_game_in_an_env_runner() -> None:
    """The same seed gives the same game in `SingleAgentEnvRunner`, episode by episode."""
    short = config(max_turns=20).env_runners(num_envs_per_env_runner=1).debugging(seed=SEED)
    runner = SingleAgentEnvRunner(config=short)
    (episode,) = runner.sample(num_episodes=1, random_actions=True)
    runner.stop()
    moves = [int(move) for move in episode.get_actions()]
    first = np.asarray(episode.get_observations(0))
    seeds = [seed for seed in range(SEED + 2) if np.array_equal(flat({}).reset(seed=seed)[0], first)]
    assert SEED in seeds
    expected = played(flat({"max_turns": 20}), SEED, moves)
    assert [np.asarray(seen).tolist() for seen in episode.get_observations()] == [row[0] for row in expected]
    assert [float(paid) for paid in episode.get_rewards()] == [row[1] for row in expected[1:]]
    assert (episode.is_terminated, episode.is_truncated) == expected[-1][2:]


def test_ppo_learns_to_play_a_small_board() -> None:
    """PPO of the new API stack beats random legal moves on 3 x 3 after 60,000 steps."""
    algorithm = config().build_algo()
    try:
        for _ in range(30):
            found = algorithm.train()
    finally:
        algorithm.stop()
    score = 32 * found["env_runners"]["episode_return_mean"]
    by_chance = mean_score_by_chance(200, board_size=3)
    assert score > 1.15 * by_chance, f"{score:.0f}, by chance {by_chance:.0f}"


def test_limit_boards_of_bytes_are_not_cast() -> None:
    """Boards of bytes: its default network wants floats; wrap in DtypeObservation(env, np.float32)."""
    register_env("art-2048-bytes", lambda _: FlattenObservation(gym.make("art/2048Array-v0")))
    algorithm = config().environment("art-2048-bytes").build_algo()
    try:
        with pytest.raises(RuntimeError, match="same dtype"):
            algorithm.train()
    finally:
        algorithm.stop()


def test_limit_text_spaces_have_no_network() -> None:
    """Text observations: its default networks take arrays alone."""
    register_env("art-2048-text", lambda _: gym.make("art/2048-v0"))
    texts = PPOConfig().environment("art-2048-text").env_runners(num_env_runners=0).learners(num_learners=0)
    with pytest.raises((ValueError, TypeError, NotImplementedError, AttributeError)):
        texts.build_algo()
