"""TextArena: its 2048 in words, without the wrapper that repeats the whole history in every observation."""

from __future__ import annotations

import random

import textarena as ta
import timing

WORDS = ("[Up]", "[Right]", "[Down]", "[Left]")
env = ta.make("2048-v0-raw")
env.reset(num_players=1, seed=0)
rng = random.Random(0)


def play(steps: int) -> int:
    for _ in range(steps):
        env.get_observation()
        done, _ = env.step(rng.choice(WORDS))
        if done:
            env.close()
            env.reset(num_players=1)
    return steps


if __name__ == "__main__":
    timing.main({"text": play})
