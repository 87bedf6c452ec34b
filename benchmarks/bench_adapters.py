"""What does a step cost more inside another library?

Each row is a way to play the same random moves: the plain environment, and the same environment under
wrappers or inside a library. Ways take turns for several rounds, and a row shows the median round in
CPU-microseconds a step, and what of it is more than the plain way of the same environment. CPU time counts
worker processes too.

    python benchmarks/bench_adapters.py
    python benchmarks/bench_adapters.py --json adapters.json --check
    python benchmarks/bench_adapters.py --quick        # few steps: shows that it runs

``--check`` exits with 1 if the wrappers, ``GymEnv`` or SB3's ``DummyVecEnv`` add more to an environment of
ours than to Gymnasium's own ``CartPole-v1``, and half as much again and 20 microseconds: what is paid
is then theirs, and nothing of ours makes it dearer. TorchRL carries a text as an object of its own, which no
text environment escapes: there the yardstick is ``CartPole-v1`` with its numbers as text.
"""

from __future__ import annotations

import resource
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium as gym
import harness
import numpy as np

import art_gym  # noqa: F401 (registers the environments)
from art_gym.spaces import UnicodeText

TEXT, ARRAY, THEIRS = "art/2048-v0", "art/2048Array-v0", "CartPole-v1"
WORDS = "CartPole-v1 as text"
VECTOR = 8
SLACK, SLACK_MICROSECONDS = 1.5, 20.0


@dataclass(frozen=True)
class Cost:
    """CPU-microseconds a step of one environment."""

    way: str
    env_id: str
    per_step: float
    more: float
    """Than the plain way."""


def action_of(env_id: str, rng: np.random.Generator) -> Any:
    if env_id == TEXT:
        return ("up", "right", "down", "left")[rng.integers(4)]
    move = int(rng.integers(4 if env_id == ARRAY else 2))
    return str(move) if env_id == WORDS else move


def make(env_id: str) -> Any:
    if env_id != WORDS:
        return gym.make(env_id)
    env = gym.wrappers.TransformObservation(gym.make(THEIRS), lambda seen: "left or right?", UnicodeText())
    return gym.wrappers.TransformAction(env, int, UnicodeText())


def plain(env_id: str) -> Callable[[int], None]:
    return stepping(make(env_id), env_id)


def wrapped(env_id: str) -> Callable[[int], None]:
    """Four of Gymnasium's wrappers at once."""
    from gymnasium import wrappers

    env: Any = wrappers.RecordEpisodeStatistics(make(env_id))
    env = wrappers.TransformReward(env, lambda reward: reward / 2)
    env = wrappers.FrameStackObservation(wrappers.TimeLimit(env, 1_000), 2)
    return stepping(env, env_id)


def stepping(env: Any, env_id: str) -> Callable[[int], None]:
    rng = np.random.default_rng(0)
    env.reset(seed=0)

    def play(steps: int) -> None:
        for _ in range(steps):
            _, _, terminated, truncated, _ = env.step(action_of(env_id, rng))
            if terminated or truncated:
                env.reset()

    return play


def torchrl(env_id: str) -> Callable[[int], None]:
    """What GymEnv is, driven as by one's own loop: `step_and_maybe_reset`."""
    import torch
    from torchrl.envs import GymWrapper

    from art_gym.servers.torchrl import register_text_space

    register_text_space()
    env = GymWrapper(make(env_id), categorical_action_encoding=True)
    rng = np.random.default_rng(0)
    data = env.reset(seed=0)

    def play(steps: int) -> None:
        nonlocal data
        for _ in range(steps):
            action = action_of(env_id, rng)
            data["action"] = action if isinstance(action, str) else torch.tensor(action)
            _, data = env.step_and_maybe_reset(data)

    return play


def sb3(env_id: str, kind: str) -> Callable[[int], None]:
    """So many environments in one of SB3's vector environments; a step of one of them is counted."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    makers = [lambda: make(env_id)] * VECTOR
    vector = DummyVecEnv(makers) if kind == "dummy" else SubprocVecEnv(makers, start_method="fork")
    rng = np.random.default_rng(0)
    vector.seed(0)
    vector.reset()

    def play(steps: int) -> None:
        for _ in range(steps // VECTOR):
            vector.step(np.array([action_of(env_id, rng) for _ in range(VECTOR)]))
        if kind == "subproc":
            vector.close()  # only then are the workers' CPU-seconds counted

    return play


WAYS: dict[str, tuple[Callable[[str], Callable[[int], None]], tuple[str, ...]]] = {
    "plain": (plain, (TEXT, WORDS, ARRAY, THEIRS)),
    "four Gymnasium wrappers": (wrapped, (TEXT, WORDS, ARRAY, THEIRS)),
    "TorchRL GymEnv": (torchrl, (TEXT, WORDS, ARRAY, THEIRS)),
    "SB3 DummyVecEnv": (lambda env_id: sb3(env_id, "dummy"), (ARRAY, THEIRS)),
    "SB3 SubprocVecEnv": (lambda env_id: sb3(env_id, "subproc"), (ARRAY, THEIRS)),
}
CHECKED = ("four Gymnasium wrappers", "TorchRL GymEnv", "SB3 DummyVecEnv")


def cpu_seconds() -> float:
    """Of this process and of the workers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def one_round(way: str, env_id: str, steps: int) -> float:
    """CPU-microseconds a step; building is not counted, but for workers, which are counted when they end."""
    play = WAYS[way][0](env_id)
    if way != "SB3 SubprocVecEnv":
        play(steps // 10)  # warm; the workers are gone after one call
    began = cpu_seconds()
    play(steps)
    return (cpu_seconds() - began) / steps * 1e6


def measure(rounds: int, steps: int) -> list[Cost]:
    met: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for way, (_, env_ids) in WAYS.items():
            for env_id in env_ids:
                met.setdefault((way, env_id), []).append(one_round(way, env_id, steps))
    middle = {key: statistics.median(found) for key, found in met.items()}
    return [
        Cost(way, env_id, spent, spent - middle["plain", env_id]) for (way, env_id), spent in middle.items()
    ]


def main() -> int:
    parser = harness.parser(__doc__, quick="1 round of 400 steps")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4_000, help="in a round")
    options = parser.parse_args()
    costs = measure(1, 400) if options.quick else measure(options.rounds, options.steps)
    rows = [[cost.way, cost.env_id, f"{cost.per_step:.1f}", f"{cost.more:.1f}"] for cost in costs]
    harness.show("Random moves", ("way", "environment", "CPU-µs a step", "more than plain"), rows)
    more = {(cost.way, cost.env_id): cost.more for cost in costs}
    failures = []
    for way in CHECKED:
        for ours, theirs in ((TEXT, WORDS), (ARRAY, THEIRS)):
            limit = SLACK * more.get((way, theirs), np.inf) + SLACK_MICROSECONDS
            if more.get((way, ours), 0.0) > limit:
                failures.append(
                    f"{way} adds {more[way, ours]:.1f} to {ours}, to {theirs} {more[way, theirs]:.1f}"
                )
    return harness.finish(options, {"costs": [asdict(cost) for cost in costs]}, failures)


if __name__ == "__main__":
    sys.exit(main())
