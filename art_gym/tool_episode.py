"""One episode played by calls of tools, as a server for somebody else's agent offers it.

Protocols that carry tool calls (MCP among them) give a name and arguments where an environment takes a reply.
The call is written as a reply that the parser reads back exactly, unchecked: what is wrong with a call is
said by the environment, in its own words and at its own price, as it is without a protocol in between.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

ENDED = "The episode is over."
"""Said after the observation that ends an episode."""

OVER = "The episode is over: nothing was done. Begin a new session to play another."
"""The answer to a call after the end."""

FAILED = "The environment failed, so the episode is over."
"""The answer where the environment raised; what it raised is in the account."""

_GREETING = (
    "You play one episode of {name} by calling this server's tools. A call is a turn, also one that is "
    "refused. The episode ends when an answer says so; calls after that do nothing."
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call is answered.

    Attributes:
        text: The words: the environment's observation, as it is, while an episode runs.
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
        env: An environment that tells its tools in the ``info`` of ``reset``, as every ``TextEnv`` does.
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
        ValueError: Where the environment tells no tools, or refuses the options.
        UnknownTask: Where the environment has not the task or split asked for.
    """

    def __init__(
        self, env: gym.Env[Any, Any], *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        self.name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
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
        """Play a call as one turn. Never raises for what it says."""
        if self.over:
            return Answer(OVER, refused=True)
        try:
            observation, reward, terminated, truncated, info = self._env.step(written(name, arguments or {}))
        except Exception as fault:  # an environment is its author's code; what it raises ends the episode
            _log.exception("%s failed in the episode of %s", self.name, self._task_id)
            self.over = True
            self._ending = {"ended_by": "fault", "fault": f"{type(fault).__name__}: {fault}"}
            return Answer(FAILED, refused=True, ended=True)
        self.observation = str(observation)
        self._turns += 1
        self._reward += float(reward)
        for term, value in info.get("score_terms", {}).items():
            self._terms[term] = self._terms.get(term, 0.0) + float(value)
        if terminated or truncated:
            self.over = True
            self._ending = {"ended_by": "termination" if terminated else "truncation"}
            self._ending |= {key: info[key] for key in ("success", "metrics") if key in info}
        return Answer(self.observation, refused="error" in info, ended=self.over)

    def account(self) -> dict[str, Any]:
        """What came of the episode so far, JSON-able, for whoever runs it: nothing that an agent should see.

        ``env``, ``seed``, ``task_id``, ``turns``, ``reward`` (the sum over turns), ``score_terms`` (its
        parts), ``ended_by`` (``"termination"``, ``"truncation"``, ``"fault"``, or ``"leaving"`` where it is
        not over), and of an episode that ran to its end ``success`` and ``metrics``.
        """
        played = {"turns": self._turns, "reward": self._reward, "score_terms": dict(self._terms)}
        return {"env": self.name, "seed": self._seed, "task_id": self._task_id, **played, **self._ending}

    def close(self) -> None:
        """Close the environment, and with it what it holds (a sandbox, a mailbox)."""
        self.over = True
        self._env.close()

    def _introduce(self, system: str) -> str:
        """The first observation with its text about writing calls replaced by one about making them."""
        greeting = _GREETING.format(name=self.name)
        task = self.observation.removeprefix(system).strip()
        instructions = str(getattr(self._env.unwrapped, "instructions", "")).strip()
        return "\n\n".join(part for part in (greeting, instructions, task) if part)


def written(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as a reply in the Hermes format, whatever its arguments hold."""
    # A reply that holds the end of its own markup, or a piece of thinking, would be read as such.
    said = json.dumps({"name": name, "arguments": dict(arguments)}).replace("<", "\\u003c")
    return f"<tool_call>\n{said}\n</tool_call>"
