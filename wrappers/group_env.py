"""``GroupEnv``: several attempts at one task, on PettingZoo's parallel interface.

GRPO and RULER compare attempts at the same task. Here the agents ``attempt_0``, ``attempt_1`` … each have an
environment of their own, all begun from one seed.

PettingZoo is optional: ``pip install "art-gym[pettingzoo]"``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import seeding

from art_gym.errors import ResetNeededError, did_you_mean
from art_gym.lookup import find_env
from art_gym.spaces import UnicodeText

try:
    from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        'GroupEnv needs PettingZoo, which is not installed: pip install "art-gym[pettingzoo]"',
        name=missing.name,
    ) from missing

_MOST_SEEDS = 2**31
# PettingZoo's own tests call reset(options={"options": 1}); it means nothing.
_MEANINGLESS = "options"

Observations = dict[str, dict[str, str]]
Infos = dict[str, dict[str, Any]]


class GroupEnv(ParallelEnv):  # type: ignore[misc]  # PettingZoo has no type hints
    """``size`` attempts at one task, each an agent with its own environment and history.

    All begin from the same seed: with the same task and the same first observation. Their environments draw
    from equal generators too, so attempts that act alike meet the same chance. Whether attempts that act
    differently do is up to the environment: ``art/2048-v0`` has the option ``shared_chance`` for it.

    An agent's observation is ``{"text": …}``, its action the whole reply. It leaves ``agents`` with the step
    at which its own episode ends; the others continue. Rewards, flags and ``infos`` are its environment's.

    Args:
        env: An id or a file, as :func:`art_gym.lookup.find_env` takes it, a spec, or a function that makes
            one new environment.
        size: How many attempts.
        make_kwargs: Passed on to ``gymnasium.make`` or to the function; ``render_mode`` among them.

    Raises:
        TypeError: If the environment's observations or actions are not text.
        ValueError: For a size below 1, or a function that gives the same environment twice.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (PettingZoo's own)
        "name": "GroupEnv",
        "render_modes": ["ansi", "human"],
        "is_parallelizable": True,
        "render_fps": 1,
    }

    def __init__(
        self, env: str | EnvSpec | Callable[..., gym.Env[str, str]], size: int, /, **make_kwargs: Any
    ) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"a group has at least 1 attempt: size must be a whole number, not {size!r}")
        members = [_made(env, make_kwargs) for _ in range(size)]
        if len({id(member.unwrapped) for member in members}) < size:
            raise ValueError("the function gave the same environment twice: make a new one at each call")
        one = members[0]
        for kind, space in (("observations", one.observation_space), ("actions", one.action_space)):
            if not isinstance(space, UnicodeText | spaces.Text):
                raise TypeError(f"a group plays environments in text, but the {kind} of {one} are in {space}")
        self.possible_agents = [f"attempt_{number}" for number in range(size)]
        self.agents: list[str] = []
        self.envs: Mapping[str, gym.Env[str, str]] = dict(zip(self.possible_agents, members, strict=True))
        self.render_mode = members[0].render_mode
        self.np_random, _ = seeding.np_random()
        self._observation_spaces = {
            name: spaces.Dict({"text": member.observation_space}) for name, member in self.envs.items()
        }

    def observation_space(self, agent: str) -> spaces.Dict:
        """An attempt's observation space, always the same object."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> gym.Space[str]:
        """An attempt's action space, always the same object."""
        return self.envs[agent].action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, Infos]:
        """Begin all attempts at one task.

        Args:
            seed: Goes to every attempt's environment. Without one, one is drawn for all of them, from a
                generator that the last seed given here has seeded.
            options: Goes to every attempt's environment, such as ``{"task": id}`` or ``{"split": name}``.

        Returns:
            Observations and ``infos`` by agent.

        Raises:
            RuntimeError: If the attempts begin differently although their seeds are equal.
        """
        if seed is not None:
            self.np_random, _ = seeding.np_random(seed)
        shared = int(self.np_random.integers(_MOST_SEEDS)) if seed is None else seed
        given = {key: value for key, value in (options or {}).items() if key != _MEANINGLESS}
        self.agents = []
        observations: Observations = {}
        infos: Infos = {}
        for name, member in self.envs.items():
            text, info = member.reset(seed=shared, options=dict(given))
            observations[name], infos[name] = {"text": text}, info
        first = observations[self.possible_agents[0]]
        for name, observation in observations.items():
            if observation != first:
                raise RuntimeError(
                    f"{name} began differently from {self.possible_agents[0]} with the same seed {shared}: "
                    "the environment must draw all its chance from np_random"
                )
        self.agents = list(self.possible_agents)
        return observations, infos

    def step(
        self, actions: Mapping[str, str]
    ) -> tuple[Observations, dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        """Let every attempt that has not ended reply.

        Args:
            actions: The whole reply of each agent in ``agents``.

        Returns:
            Observations, rewards, terminations, truncations and ``infos`` of these agents.

        Raises:
            ResetNeededError: Before ``reset`` or when every attempt has ended.
            ValueError: If an attempt's reply is missing, or a name is not that of a running attempt.
        """
        self._check_actions(actions)
        observations: Observations = {}
        rewards: dict[str, float] = {}
        terminations: dict[str, bool] = {}
        truncations: dict[str, bool] = {}
        infos: Infos = {}
        for name in self.agents:
            text, reward, terminated, truncated, info = self.envs[name].step(actions[name])
            observations[name], rewards[name], infos[name] = {"text": text}, float(reward), info
            terminations[name], truncations[name] = bool(terminated), bool(truncated)
        self.agents = [name for name in self.agents if not (terminations[name] or truncations[name])]
        return observations, rewards, terminations, truncations, infos

    def render(self) -> str | None:
        """Every attempt's latest exchange, returned in ``"ansi"`` mode; ``"human"`` prints as they come."""
        if self.render_mode != "ansi":
            return None
        return "\n\n".join(f"[{name}]\n{member.render()}" for name, member in self.envs.items())

    def close(self) -> None:
        """Close every attempt's environment."""
        self.agents = []
        for member in self.envs.values():
            member.close()

    def _check_actions(self, actions: Mapping[str, str]) -> None:
        if not self.agents:
            raise ResetNeededError("call reset() first: no attempt is running")
        for name in actions:
            if name not in self.envs:
                raise ValueError(f"no agent `{name}`{did_you_mean(str(name), self.possible_agents)}")
            if name not in self.agents:
                raise ValueError(f"{name} has ended and takes no action before the next reset()")
        missing = [name for name in self.agents if name not in actions]
        if missing:
            raise ValueError(f"an action is needed of every agent in `agents`, missing: {', '.join(missing)}")


def _made(
    env: str | EnvSpec | Callable[..., gym.Env[str, str]], make_kwargs: dict[str, Any]
) -> gym.Env[str, str]:
    if isinstance(env, str):
        env = find_env(env).id
    return gym.make(env, **make_kwargs) if isinstance(env, str | EnvSpec) else env(**make_kwargs)
