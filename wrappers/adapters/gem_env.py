"""``gem/Env-v0``: an environment of GEM (``gem-llm``), by its id there.

GEM's ``reset`` seeds the global ``random`` and ``numpy.random``, and its ``step`` draws from them, so that a
second environment changes the first one's episode. Here each keeps a random state of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from art_gym.baselines import Act, Baseline
from art_gym.wrappers.adapters.common import FreeTextEnv, import_optional, require_known
from art_gym.wrappers.isolated_random import IsolatedRandom
from art_gym.wrappers.text_adapter import DEFAULT_MAX_TURNS, TextAdapter, random_player


class GemEnv(FreeTextEnv):
    """A GEM environment with Gymnasium's interface.

    Its time limit truncates; GEM itself sets both flags; ``info["success"]`` says whether GEM paid its full
    reward, 1, in one step or in parts.
    """

    def __init__(self, env: Any) -> None:
        super().__init__()
        self.gem = env
        self._paid = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode; the global random state is seeded, as GEM does."""
        self._paid = 0.0
        observation, info = self.gem.reset(seed)
        return _with_suffix(observation, info), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a reply."""
        observation, reward, terminated, truncated, info = self.gem.step(action)
        ended = terminated or truncated
        self._paid += float(reward)
        text = observation if ended else _with_suffix(observation, info)
        success = {"success": self._paid > 1 - 1e-9} if ended else {}
        return text, float(reward), terminated and not truncated, bool(truncated), success


def _sampled(env: GemTextEnv, rng: np.random.Generator) -> Act:
    """GEM's own random policy, if the environment has one."""
    chance = IsolatedRandom()
    try:
        with chance.active(int(rng.integers(2**31))):
            env.env.gem.sample_random_action()
    except NotImplementedError:  # what GEM's base class has
        return random_player(env, rng)

    def act(observation: str) -> str:
        with chance.active():
            reply: str = env.env.gem.sample_random_action()
            return reply

    return act


class GemTextEnv(TextAdapter):
    """Play an environment of GEM.

    Args:
        env_id: GEM's id, such as ``"game:GuessTheNumber-v0-easy"``.
        max_turns: Replies in an episode; by default GEM's own limit, if the environment has one.
        render_mode: As in every ``TextEnv``.
        arguments: For ``gem.make``.

    Raises:
        ModuleNotFoundError: If GEM is missing.
        ValueError: If GEM has no such environment.
    """

    baselines: ClassVar[Mapping[str, Baseline]] = {"random": _sampled}

    def __init__(
        self,
        env_id: str = "game:GuessTheNumber-v0-easy",
        *,
        max_turns: int | None = None,
        render_mode: str | None = None,
        **arguments: Any,
    ) -> None:
        gem = import_optional("gem", "gem-llm")
        registry = import_optional("gem.envs.registration", "gem-llm").ENV_REGISTRY
        require_known("GEM", "environment", env_id, registry)
        with IsolatedRandom().active(0):  # GEM's games play a first episode when they are made
            env = gem.make(env_id, **arguments)
        limit = getattr(env, "max_turns", None) or DEFAULT_MAX_TURNS
        super().__init__(
            GemEnv(env),
            max_turns=limit if max_turns is None else max_turns,
            isolated_random=True,
            render_mode=render_mode,
        )


def _with_suffix(observation: str, info: Mapping[str, Any]) -> str:
    """What GEM's own wrappers show: the observation, and what to reply next."""
    suffix = info.get("suffix")
    return f"{observation.rstrip()}\n{suffix}" if suffix else observation
