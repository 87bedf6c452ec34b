"""pgx: batches compiled by JAX for the CPU; legal moves by wishes drawn beforehand.

The sums of the observations and rewards keep the compiler from leaving them out."""

from __future__ import annotations

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import jax.numpy as jnp
import pgx
import timing
from pgx.experimental import auto_reset

env = pgx.make("2048")
CHUNK = 64


def batched(count: int) -> timing.Run:
    init, step = jax.vmap(env.init), jax.vmap(auto_reset(env.step, env.init))

    def one(state, key):
        key, wishes = key
        actions = jnp.argmax(state.legal_action_mask * wishes, axis=-1)
        state = step(state, actions, jax.random.split(key, count))
        return state, (state.observation.sum(), state.rewards.sum())

    wishes = jax.random.uniform(jax.random.PRNGKey(2), (CHUNK, count, 4))

    @jax.jit
    def many(state, key):
        state, sums = jax.lax.scan(one, state, (jax.random.split(key, CHUNK), wishes))
        return state, jax.tree.map(jnp.sum, sums)

    state = jax.jit(init)(jax.random.split(jax.random.PRNGKey(0), count))
    keys = iter(jax.random.split(jax.random.PRNGKey(1), 100_000))

    def play(units: int) -> int:
        nonlocal state
        for _ in range(units):
            state, sums = many(state, next(keys))
        jax.block_until_ready((state, sums))
        return units * CHUNK * count

    return play


if __name__ == "__main__":
    timing.main({f"vector {count}": batched(count) for count in (1_024, 8_192)})
