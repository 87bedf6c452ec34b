"""Random play of one implementation of 2048, in steps per CPU-second; `bench_2048.py` runs it.

    python peers_2048.py --child '{"name": "art-gym", "seconds": 2, "counts": [1, 1024]}'

prints the rates as JSON. Each peer has a virtual environment of its own, in which nothing else is installed;
only `art-gym` is measured on batches of so many boards.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

Run = Callable[[int], int]
"""``run(k)`` plays about ``k`` units (steps, or steps of a batch) and returns the steps of all games."""

_WORDS = ("up", "right", "down", "left")
_CHUNK = 64  # steps that JAX compiles together


def rate(run: Run, seconds: float) -> float:
    """Steps per CPU-second over about so many seconds, after a run that compiles and warms up."""
    run(2)
    units, spent, steps = 1, 0.0, 0
    while spent < seconds:
        begun = time.process_time()
        made = run(units)
        took = time.process_time() - begun
        steps, spent = steps + made, spent + took
        if took < seconds / 8:
            units *= 2
    return steps / spent


def gymnasium_like(env: Any, actions: Sequence[Any]) -> Run:
    """Random play of one Gymnasium environment."""
    env.reset(seed=0)
    following = cycle(actions)

    def play(steps: int) -> int:
        for _ in range(steps):
            _, _, terminated, truncated, _ = env.step(next(following))
            if terminated or truncated:
                env.reset()
        return steps

    return play


def moves(names: Sequence[Any] = range(4)) -> list[Any]:
    return random.Random(0).choices(names, k=4_096)


def ours(counts: Sequence[int]) -> dict[str, Run]:
    """In words and in arrays through ``gym.make``, and batches through ``gym.make_vec``."""
    import gymnasium as gym
    import numpy as np

    import art_gym  # noqa: F401  # registers the environments

    def batched(count: int) -> Run:
        envs = gym.make_vec("art/2048Array-v0", num_envs=count, vectorization_mode="vector_entry_point")
        envs.reset(seed=0)
        following = cycle(list(np.random.default_rng(0).integers(0, 4, (16, count))))

        def play(units: int) -> int:
            for _ in range(units):
                envs.step(next(following))
            return units * count

        play(150)  # games have begun to end at their usual pace
        return play

    single = {
        "text": gymnasium_like(gym.make("art/2048-v0"), moves(_WORDS)),
        "array": gymnasium_like(gym.make("art/2048Array-v0"), moves()),
    }
    return {**single, **{f"vector {count}": batched(count) for count in counts}}


def textarena(_: Sequence[int]) -> dict[str, Run]:
    """In words, without the wrapper that repeats the whole history in every observation."""
    import textarena as ta

    env = ta.make("2048-v0-raw")
    env.reset(num_players=1, seed=0)
    following = cycle(moves([f"[{word.capitalize()}]" for word in _WORDS]))

    def play(steps: int) -> int:
        for _ in range(steps):
            env.get_observation()
            done, _ = env.step(next(following))
            if done:
                env.close()
                env.reset(num_players=1)
        return steps

    return {"text": play}


def open_spiel(_: Sequence[int]) -> dict[str, Run]:
    """In C++, driven from Python, chance included. It builds no observation here."""
    import pyspiel

    game, rng = pyspiel.load_game("2048"), random.Random(0)
    state = game.new_initial_state()

    def play(steps: int) -> int:
        nonlocal state
        made = 0
        while made < steps:
            if state.is_terminal():
                state = game.new_initial_state()
            elif state.is_chance_node():
                outcomes, weights = zip(*state.chance_outcomes(), strict=True)
                state.apply_action(rng.choices(outcomes, weights)[0])
            else:
                state.apply_action(rng.choice(state.legal_actions()))
                made += 1
        return made

    return {"array": play}


def jumanji(_: Sequence[int]) -> dict[str, Run]:
    """Batches compiled by JAX for the CPU; legal moves by wishes drawn beforehand.

    The sums of the observations and rewards keep the compiler from leaving them out.
    """
    import jax
    import jax.numpy as jnp
    import jumanji
    from jumanji.wrappers import AutoResetWrapper

    env = AutoResetWrapper(jumanji.make("Game2048-v1"))

    @jax.jit
    def many(carry: Any, wishes: Any) -> Any:
        def one(carry: Any, wishes: Any) -> Any:
            state, seen = carry
            actions = jnp.argmax(seen.observation.action_mask * wishes, axis=-1)
            state, seen = jax.vmap(env.step)(state, actions)
            return (state, seen), (seen.observation.board.sum(), seen.reward.sum())

        carry, sums = jax.lax.scan(one, carry, wishes)
        return carry, jax.tree.map(lambda values: values.sum(), sums)

    def batched(count: int) -> Run:
        wishes = jax.random.uniform(jax.random.PRNGKey(2), (_CHUNK, count, 4))
        carry = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.PRNGKey(0), count))

        def play(units: int) -> int:
            nonlocal carry
            for _ in range(units):
                carry, sums = many(carry, wishes)
            jax.block_until_ready((carry, sums))
            return units * _CHUNK * count

        return play

    return {f"vector {count}": batched(count) for count in (1_024, 8_192)}


RUNS: Mapping[str, Callable[[Sequence[int]], dict[str, Run]]] = {
    "art-gym": ours, "textarena": textarena, "open_spiel": open_spiel, "jumanji": jumanji,
}  # fmt: skip


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    order = json.loads(sys.argv[2])
    runs = RUNS[order["name"]](order["counts"])
    print(json.dumps({kind: rate(run, order["seconds"]) for kind, run in runs.items()}))
