"""Episodes of the players that environments bring along."""

from typing import Any

import numpy as np

from art_gym.env import TextEnv


def last_info(env: TextEnv, player: str, seed: int = 0, **options: Any) -> dict[str, Any]:
    """The ``info`` at the end of an episode without an invalid action."""
    observation, _ = env.reset(seed=seed, options=options)
    act = {**env.baselines, **env.teachers}[player](env, np.random.default_rng(seed))
    info: dict[str, Any] = {}
    while "metrics" not in info:
        observation, *_, info = env.step(act(observation))
    assert info["metrics"]["invalid_actions"] == 0
    return info
