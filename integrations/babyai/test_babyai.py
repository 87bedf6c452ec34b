"""BabyAI's levels as text here."""

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("minigrid")

import minigrid

from art_gym.wrappers.adapters.babyai_env import ACTIONS, BabyAITextEnv
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.episodes import group_specs, rollout_groups

LEVELS = ("BabyAI-GoToLocal-v0", "BabyAI-PickupLoc-v0", "BabyAI-OpenDoor-v0", "BabyAI-PutNextLocal-v0")


@pytest.mark.parametrize("level", LEVELS)
def test_same_episode(level):
    """A seed gives the mission that it gives in MiniGrid, and the same actions give the same rewards."""
    raw, env = gym.make(level), BabyAITextEnv(level)
    rng = np.random.default_rng(0)
    for seed in range(3):
        seen, _ = raw.reset(seed=seed)
        told, _ = env.reset(seed=seed)
        assert f"mission: {seen['mission']}" in told
        for _ in range(40):
            action = int(rng.integers(len(ACTIONS)))
            _, reward, terminated, truncated, _ = raw.step(action)
            _, paid, *flags, info = env.step(ACTIONS[action])
            assert (paid, flags) == (reward, [terminated, truncated])
            if terminated or truncated:
                assert info["success"] is (reward > 0)
                break


def test_what_is_seen():
    """Objects are described by steps forward and to the side, relative to the agent's direction."""
    env = BabyAITextEnv()
    told, _ = env.reset(seed=3)
    assert told.splitlines()[-4:] == [
        "a red key 3 steps forward and 2 steps right",
        "a red ball 4 steps forward and 3 steps right",
        "a wall 6 steps forward",
        "a wall 1 step left",
    ]
    env.step("turn right")
    assert "a red key 2 steps forward and 3 steps left" in env.describe(env.env.unwrapped.gen_obs())


def test_what_is_carried():
    """An object that was picked up is described as carried."""
    env = BabyAITextEnv("BabyAI-PickupLoc-v0")
    env.reset(seed=0)
    grid = env.env.unwrapped
    ball = minigrid.core.world_object.Ball("blue")
    grid.grid.set(*grid.front_pos, ball)
    assert "you carry a blue ball" in env.step("pick up")[0]


def test_rollout():
    """Groups of episodes are played by this trainer's rollout; near misses are named."""
    groups = rollout_groups(ScriptedPolicy("random"), BabyAITextEnv, group_specs([1, 2], 3))
    assert all(group.whole for group in groups)
    env = BabyAITextEnv()
    env.reset(seed=0)
    assert "did you mean `go forward`" in env.step("go forwad")[0]


def test_wrong_level():
    """A wrong level is named with the nearest right one."""
    with pytest.raises(ValueError, match="did you mean `BabyAI-GoToLocal-v0`"):
        BabyAITextEnv("BabyAI-GoToLocl-v0")
