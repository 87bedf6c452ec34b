"""An environment as OpenEnv serves it: over WebSocket and HTTP, for OpenEnv's clients and the loops on them.

    # app.py; run it with: uvicorn app:app
    from art_gym.servers.openenv import openenv_app

    app = openenv_app("art/2048-v0")

An action is the model's whole reply, ``{"reply": "…"}``; an observation has the ``text``. The same seed gives
the same episode as without OpenEnv. Written for openenv 0.10; https://github.com/huggingface/OpenEnv.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
from openenv.core.env_server import (  # type: ignore[import-not-found]
    Action,
    Environment,
    Observation,
    State,
    create_app,
)
from pydantic import Field

import art_gym
from art_gym.lookup import make_env
from art_gym.servers.tool_episode import OVER


class ReplyAction(Action):  # type: ignore[misc]  # openenv is not installed where types are checked
    """The model's reply."""

    reply: str = Field(description="The model's whole reply, with one call of a tool.")


class TextObservation(Observation):  # type: ignore[misc]
    """The environment's text; reward and end are OpenEnv's own fields."""

    text: str = Field(description="The observation's text.")


class OpenEnvEnvironment(Environment):  # type: ignore[misc]
    """One environment behind OpenEnv's interface.

    ``reset`` takes, beside ``seed``, ``split`` and ``task`` (an id), or ``split`` and ``index`` as OpenEnv's
    task routes count. ``metadata`` of an observation is the environment's ``info`` without ``facts``, which
    are for judges alone.

    Args:
        env_id: An id, or a file, as :func:`art_gym.lookup.find_env` takes it.
        env_args: Arguments of the environment.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env_id: str, **env_args: Any) -> None:
        super().__init__()
        self._env: gym.Env[str, str] = make_env(env_id, env_args)
        self._episode_id: str | None = None
        self._steps = 0
        self._over = True

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        *,
        split: str | None = None,
        task: str | None = None,
        index: int | None = None,
    ) -> TextObservation:
        """Begin an episode."""
        if index is not None:
            if split is None:
                raise ValueError(f"index {index} of which split? Give `split` as well, or a `task` id")
            task = self.get_task(split, index)["id"]
            split = None
        options = {name: value for name, value in (("split", split), ("task", task)) if value is not None}
        text, info = self._env.reset(seed=seed, options=options)
        self._episode_id, self._steps, self._over = episode_id, 0, False
        return TextObservation(text=text, metadata=dict(info))

    def step(self, action: ReplyAction, timeout_s: float | None = None) -> TextObservation:
        """Play a reply; after the end nothing happens, and nothing is paid."""
        if self._over:
            return TextObservation(text=OVER, done=True, reward=0.0)
        text, reward, terminated, truncated, info = self._env.step(action.reply)
        self._steps += 1
        self._over = terminated or truncated
        metadata = {name: value for name, value in info.items() if name != "facts"} | {"truncated": truncated}
        return TextObservation(text=text, reward=float(reward), done=self._over, metadata=metadata)

    @property
    def state(self) -> State:
        """The episode's id and how many steps it has had."""
        return State(episode_id=self._episode_id, step_count=self._steps)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def list_splits(self) -> list[str]:
        """The names of the splits."""
        return list(self._tasks().splits)

    def num_tasks(self, split: str) -> int:
        """How many tasks a split has."""
        return len(self._tasks().split(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """A task's id and place; not what it knows of the answer.

        Raises:
            IndexError: If the split has no such task.
        """
        tasks = self._tasks().split(split)
        if not 0 <= index < len(tasks):
            raise IndexError(f"split `{split}` has the tasks 0 to {len(tasks) - 1}, not {index}")
        return {"id": tasks[index].id, "index": index}

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        """The tasks of a slice of a split."""
        return [self.get_task(split, at) for at in range(*slice(start, stop).indices(self.num_tasks(split)))]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """All tasks of a split."""
        return self.get_task_range(split)

    def _tasks(self) -> art_gym.TaskSet:
        tasks = getattr(self._env.unwrapped, "tasks", None)
        if not isinstance(tasks, art_gym.TaskSet):
            raise NotImplementedError("this environment has no tasks to list")
        return tasks


def openenv_app(env_id: str, *, max_sessions: int = 16, **env_args: Any) -> Any:
    """OpenEnv's FastAPI application for an environment, one instance a session.

    Args:
        env_id: An id, or a file, as :func:`art_gym.lookup.find_env` takes it.
        max_sessions: The most sessions at once.
        env_args: Arguments of the environment.
    """
    factory = partial(OpenEnvEnvironment, env_id, **env_args)
    return create_app(
        factory,
        ReplyAction,
        TextObservation,
        env_name=env_id.replace("/", "-"),
        max_concurrent_envs=max_sessions,
    )
