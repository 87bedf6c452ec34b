"""jumanji: batches compiled by JAX for the CPU; legal moves by wishes drawn beforehand.

The sums of the observations and rewards keep the compiler from leaving them out."""

from __future__ import annotations

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import jax.numpy as jnp
import jumanji
import timing
from jumanji.wrappers import AutoResetWrapper

env = AutoResetWrapper(jumanji.make("Game2048-v1"))
CHUNK = 64


def batched(count: int) -> timing.Run:
    def one(carry, wishes):
        state, step = carry
        actions = jnp.argmax(step.observation.action_mask * wishes, axis=-1)
        state, step = jax.vmap(env.step)(state, actions)
        return (state, step), (step.observation.board.sum(), step.reward.sum())

    wishes = jax.random.uniform(jax.random.PRNGKey(1), (CHUNK, count, 4))

    @jax.jit
    def many(carry):
        carry, sums = jax.lax.scan(one, carry, wishes)
        return carry, jax.tree.map(jnp.sum, sums)

    carry = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.PRNGKey(0), count))

    def play(units: int) -> int:
        nonlocal carry
        for _ in range(units):
            carry, sums = many(carry)
        jax.block_until_ready((carry, sums))
        return units * CHUNK * count

    return play


if __name__ == "__main__":
    timing.main({f"vector {count}": batched(count) for count in (1_024, 8_192)})
