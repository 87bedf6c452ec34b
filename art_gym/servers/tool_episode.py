"""One episode played by calls of tools, as a server for somebody else's agent offers it.

Protocols that carry tool calls (such as MCP) give a name and arguments, but an environment takes a reply. The
call is written as a reply that the parser reads back exactly, unchecked: a wrong call gets the environment's
own error message and penalty, as it does without a protocol in between.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from art_gym.base import add_terms, env_name
from art_gym.env import truncate
from art_gym.parsing.formats import write_call

ENDED = "The episode is over."
"""Added after the observation that ends an episode."""

OVER = "The episode is over: nothing was done. Begin a new session to play another."
"""The answer to a call after the end."""

FAILED = "The environment failed, so the episode is over."
"""The answer if the environment raised; the exception is in the result."""

_GREETING = (
    "You play one episode of {name} by calling this server's tools. A call is a turn, also one that is "
    "refused. The episode ends when an answer says so; calls after that do nothing."
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a call.

    Attributes:
        text: The environment's observation, unchanged, while an episode runs.
        refused: Whether no tool did anything: an invalid call, or one after the end.
        ended: Whether this call ended the episode.
    """

    text: str
    refused: bool = False
    ended: bool = False


class ToolEpisode:
    """An episode that begins when this is made, and takes calls until it is over.

    Not for several threads at once. :meth:`close` closes the environment.

    Args:
        env: An environment that has its tools in the ``info`` of ``reset``, as every ``TextEnv``.
        seed: Given to ``reset``.
        options: Given to ``reset``, such as ``{"split": "test"}`` or ``{"task": id}``.

    Attributes:
        name: The environment's id.
        tools: The functions of the tools' schemas: ``name``, ``description`` and ``parameters``.
        observation: The latest observation; at first the whole text that ``reset`` gave.
        introduction: How to play, the author's instructions and the task, for an agent that is given the
            tools by other means than the text.
        over: Whether the episode is over.

    Raises:
        ValueError: If the environment has no tools in its ``info``, or refuses the options.
        UnknownTaskError: If the environment has not the task or split asked for.
    """

    def __init__(
        self, env: gym.Env[Any, Any], *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        self.name = env_name(env)
        self._env = env
        observation, info = env.reset(seed=seed, options=dict(options or {}))
        if not isinstance(observation, str) or not info.get("tools"):
            raise ValueError(
                f"{self.name} cannot be played by calls of tools: its reset gives no text, or no `tools` in "
                "its info, as an art_gym.TextEnv does"
            )
        self.tools: list[dict[str, Any]] = [schema["function"] for schema in info["tools"]]
        self.observation = observation
        self.introduction = self._introduce(str(info.get("system", "")))
        self.over = False
        self._seed = seed
        self._task_id = info.get("task_id")
        self._turns = 0
        self._terms: dict[str, float] = {}
        self._reward = 0.0
        self._ending: dict[str, Any] = {"ended_by": "leaving"}

    def call(self, name: str, arguments: Mapping[str, Any] | None) -> Answer:
        """Play a call as one turn. Never raises for a wrong call."""
        if self.over:
            return Answer(OVER, refused=True)
        try:
            observation, reward, terminated, truncated, info = self._env.step(
                write_call(name, arguments or {})
            )
        except Exception as fault:  # an environment is its author's code; what it raises ends the episode
            self._fail(fault)
            return Answer(FAILED, refused=True, ended=True)
        self.observation = str(observation)
        self._turns += 1
        self._reward += float(reward)
        if terminated or truncated:
            self.over = True
            self._ending = {"ended_by": "termination" if terminated else "truncation"}
        self._count(info)
        return Answer(self.observation, refused="error" in info, ended=self.over)

    def result(self) -> dict[str, Any]:
        """The result so far, JSON-able, for whoever runs the episode; an agent should not see it.

        ``env``, ``seed``, ``task_id``, ``turns``, ``reward`` (the sum over turns), ``score_terms`` (its
        parts), ``ended_by`` (``"termination"``, ``"truncation"``, ``"fault"``, or ``"leaving"`` if it is
        not over), and after the end ``success`` and ``metrics``.
        """
        played = {"turns": self._turns, "reward": self._reward, "score_terms": dict(self._terms)}
        return {"env": self.name, "seed": self._seed, "task_id": self._task_id, **played, **self._ending}

    def close(self) -> dict[str, Any]:
        """Close the environment, with all it holds (a sandbox, a mailbox); return the result.

        An agent that stops early gets the reward of an episode whose turns ran out. Never raises for what the
        environment raises: others may play on the same server.
        """
        try:
            if not self.over:
                self.over = True
                info = truncate(self._env)
                self._reward += sum(info.get("score_terms", {}).values())
                self._count(info)
        except Exception as fault:
            self._fail(fault)
        try:
            self._env.close()
        except Exception:
            _log.exception("%s failed when it was closed", self.name)
        return self.result()

    def _fail(self, fault: Exception) -> None:
        """End the episode because the environment raised."""
        _log.error("%s failed in the episode of %s", self.name, self._task_id, exc_info=fault)
        self.over = True
        self._ending = {"ended_by": "fault", "fault": f"{type(fault).__name__}: {fault}"}

    def _count(self, info: Mapping[str, Any]) -> None:
        """Add an outcome's terms, and keep what it says of the end."""
        add_terms(self._terms, info.get("score_terms", {}))
        self._ending |= {key: info[key] for key in ("success", "metrics") if key in info}

    def _introduce(self, system: str) -> str:
        """The first observation with its text about writing calls replaced by one about making them."""
        greeting = _GREETING.format(name=self.name)
        task = self.observation.removeprefix(system).strip()
        instructions = str(getattr(self._env.unwrapped, "instructions", "")).strip()
        return "\n\n".join(part for part in (greeting, instructions, task) if part)
