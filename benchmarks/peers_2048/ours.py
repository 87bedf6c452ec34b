"""ART Gym's own 2048: in words and in arrays through ``gym.make``, and batches through ``gym.make_vec``.

python ours.py SECONDS [COUNT ...]             # text, array, and batches of these sizes
python ours.py SECONDS COUNT ... --no-numba    # batches alone, on the NumPy engine
"""

from __future__ import annotations

import sys
from itertools import cycle

if "--no-numba" in sys.argv:
    sys.modules["numba"] = None  # type: ignore[assignment]  # what an import then finds is "not installed"

import gymnasium as gym
import numpy as np
import timing

import art_gym  # noqa: F401  # registers the environments

_WORDS = ("up", "right", "down", "left")
_rng = np.random.default_rng(0)


def single(env_id: str, actions: list[object]) -> timing.Run:
    env = gym.make(env_id)
    env.reset(seed=0)
    following = cycle(actions)

    def play(steps: int) -> int:
        for _ in range(steps):
            _, _, terminated, truncated, _ = env.step(next(following))
            if terminated or truncated:
                env.reset()
        return steps

    return play


def batched(env_id: str, count: int, actions: list[object]) -> timing.Run:
    envs = gym.make_vec(env_id, num_envs=count, vectorization_mode="vector_entry_point")
    envs.reset(seed=0)
    following = cycle(actions)

    def play(units: int) -> int:
        for _ in range(units):
            envs.step(next(following))
        return units * count

    play(150)  # games have begun to end at their usual pace
    return play


def main() -> None:
    counts = [int(argument) for argument in sys.argv[2:] if argument.isdigit()]
    moves = _rng.integers(0, 4, 4_096).tolist()
    runs: dict[str, timing.Run] = {}
    if "--no-numba" not in sys.argv:
        words = [_WORDS[move] for move in moves]
        batch = [tuple(words[at : at + 256]) for at in range(0, 4_096, 256)]
        runs |= {
            "text": single("art/2048-v0", list(words)),
            "array": single("art/2048Array-v0", list(moves)),
            "text vector 256": batched("art/2048-v0", 256, list(batch)),
        }
    for count in counts:
        runs[f"vector {count}"] = batched("art/2048Array-v0", count, list(_rng.integers(0, 4, (16, count))))
    timing.main(runs)


if __name__ == "__main__":
    main()
