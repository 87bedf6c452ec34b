"""GEM: its 2048 in words."""

from __future__ import annotations

import random

import timing
from gem.envs.game_env.game_2048 import Game2048Env

WORDS = ("\\boxed{up}", "\\boxed{right}", "\\boxed{down}", "\\boxed{left}")
env = Game2048Env(target_tile=2048, max_turns=100_000)
env.reset(seed=0)
rng = random.Random(0)


def play(steps: int) -> int:
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(rng.choice(WORDS))
        if terminated or truncated:
            env.reset()
    return steps


if __name__ == "__main__":
    timing.main({"text": play})
