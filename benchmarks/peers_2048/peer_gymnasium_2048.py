"""gymnasium-2048: one array environment through ``gym.make``."""

from __future__ import annotations

import gymnasium as gym
import gymnasium_2048  # noqa: F401  # registers the environment
import timing

env = gym.make("gymnasium_2048/TwentyFortyEight-v0")
env.action_space.seed(0)
env.reset(seed=0)


def play(steps: int) -> int:
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    return steps


if __name__ == "__main__":
    timing.main({"array": play})
