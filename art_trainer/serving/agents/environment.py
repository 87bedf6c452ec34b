"""An environment that a program plays through MCP, while its words come from the policy."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from art_gym.servers.mcp import AsyncEpisode
from art_gym.servers.mcp_http import PATH, EpisodeSessions, Limits
from art_gym.servers.tool_episode import ToolEpisode
from art_trainer.rollout.envs import MakeEnv
from art_trainer.serving.agents.command import Program, failed_attempt
from art_trainer.serving.agents.sessions import Reward
from art_trainer.serving.http.server import ServerThread

MCP_URL, MCP_TOKEN = "MCP_URL", "MCP_TOKEN"
"""The environment variables with the address of the environment's MCP server, and its bearer token."""

_MOST_SESSIONS, _IDLE = 64, 3600.0


@dataclass(frozen=True, slots=True)
class EnvTask:
    """A start of an environment."""

    seed: int
    options: dict[str, Any]

    @property
    def id(self) -> str:
        """Its name."""
        return f"{self.options.get('split', 'seed')}-{self.seed}"


class SeededTasks(Sequence[EnvTask]):
    """A start of an environment for every seed.

    Args:
        options: For the environment's ``reset``, such as the split.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, place: int) -> EnvTask:  # type: ignore[override]
        return EnvTask(place, self._options)


class EnvCommandAgent:
    """An agent that runs a program, which plays an environment's episode through MCP.

    Reward, end and success are the environment's; an agent that stops early gets the reward of an episode
    whose turns ran out. All sessions of an attempt play the same episode.

    Args:
        program: The program. Its ``{task}`` is the environment's introduction to the episode.
        make_env: Makes the environment.
        name: The environment's name.
    """

    posts_reward = False

    def __init__(self, program: Program, make_env: MakeEnv, name: str) -> None:
        self.__name__ = name
        self._program = program
        self._make_env = make_env

    def __call__(self, base_url: str, api_key: str, task: EnvTask) -> Reward:
        """Play one attempt.

        Raises:
            RuntimeError: The environment failed, or the program ended with an error before its first call.
        """

        def begin() -> ToolEpisode:
            return ToolEpisode(self._make_env(), seed=task.seed, options=task.options)

        with _served(begin, api_key) as (episode, url):
            given = {MCP_URL: url, MCP_TOKEN: api_key}
            attempt = self._program.run(base_url, api_key, episode.introduction, given)
        result = episode.result()
        if not result["turns"] and attempt.exit_code:
            raise failed_attempt(attempt)
        return episode_reward(result)


def episode_reward(result: Mapping[str, Any]) -> Reward:
    """The reward of an episode, from what :meth:`.ToolEpisode.result` gives.

    Raises:
        RuntimeError: The environment failed.
    """
    if result["ended_by"] == "fault":
        raise RuntimeError(f"the environment failed: {result['fault']}")
    metrics = {"turns": result["turns"], **result.get("metrics", {})}
    return Reward(
        reward=result["reward"],
        success=result.get("success"),
        truncated=result["ended_by"] != "termination",
        metrics={name: float(value) for name, value in metrics.items() if isinstance(value, int | float)},
    )


@contextmanager
def _served(begin: Callable[[], ToolEpisode], token: str) -> Iterator[tuple[ToolEpisode, str]]:
    """Serve one episode through MCP; gives the episode and the URL, and closes both at the end."""
    played = asyncio.run(AsyncEpisode.begin(begin))
    try:
        sessions = EpisodeSessions(played, token=token, limits=Limits(sessions=_MOST_SESSIONS, idle=_IDLE))
        server = ServerThread(sessions.app(), "127.0.0.1", 0, name="episode", lifespan="on")
        try:
            yield played.episode, f"{server.url}{PATH}"
        finally:
            server.stop()
    finally:
        asyncio.run(played.close())
