"""Writes every finished episode of a text environment to a JSONL file."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from art_gym.base import env_name


class RecordEpisodes(gym.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Append each episode, when it ends, as one line of JSON: its observations, replies and rewards.

    A line holds ``env_id``, ``task_id``, ``seed``, the first ``observation``, ``turns`` (each with ``reply``,
    ``observation``, ``reward``, ``score_terms``, and ``call`` or ``error``), the episode's ``reward``,
    ``terminated``, ``truncated``, ``success``, ``metrics`` and ``facts``. Keys that the environment's
    ``info`` lacks are ``null``. An episode that is abandoned by ``reset`` or ``close`` is written too, with
    both flags false.

    Args:
        env: Any environment with text observations and actions.
        path: The file; lines are appended, and its folder is made.
    """

    def __init__(self, env: gym.Env[str, str], path: str | PathLike[str]) -> None:
        RecordConstructorArgs.__init__(self, path=str(path))
        gym.Wrapper.__init__(self, env)
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._episode: dict[str, Any] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode and its record."""
        self._write()
        observation, info = self.env.reset(seed=seed, options=options)
        self._episode = {
            "env_id": env_name(self.env),
            "task_id": info.get("task_id"),
            "seed": seed,
            "observation": observation,
            "turns": [],
            "reward": 0.0,
            "terminated": False,
            "truncated": False,
            "success": None,
            "metrics": None,
            "facts": None,
        }
        return observation, info

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step and record it; the episode's last one writes the line."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._episode is not None:
            turn = {"reply": action, "observation": observation, "reward": float(reward)}
            self._episode["turns"].append(
                turn | {key: info.get(key) for key in ("score_terms", "call", "error")}
            )
            self._episode["reward"] += float(reward)
            if terminated or truncated:
                self._episode |= {"terminated": bool(terminated), "truncated": bool(truncated)}
                self._episode |= {key: info.get(key) for key in ("success", "metrics", "facts")}
                self._write()
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Write what is unfinished and close the environment."""
        self._write()
        super().close()

    def _write(self) -> None:
        if self._episode is not None and self._episode["turns"]:
            self.path.touch(0o600)  # observations may hold mail
            with self.path.open("a", encoding="utf-8") as file:
                # Lone surrogates are legal in a str and not in UTF-8: ASCII escapes keep them.
                file.write(json.dumps(self._episode) + "\n")
        self._episode = None
