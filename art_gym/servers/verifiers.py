"""An environment as verifiers plays it: tasks by seed, and the environment as the run's user.

verifiers finds a taskset by the name of a top-level module, so a module of one's own names it:

    # art_tasks.py, somewhere on the path; then: eval art_tasks --env.taskset.env art/2048-v0
    from art_gym.servers.verifiers import *
    from art_gym.servers.verifiers import __all__

The model's whole reply is the action and the observation is the next user turn, so no tools, containers or
programs take part: the harness asks the model in this process. All attempts at one task begin from one seed,
and an episode goes as it does without verifiers. Written for verifiers 0.4;
https://github.com/PrimeIntellect-ai/verifiers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium as gym
import httpx
import verifiers.v1 as vf  # type: ignore[import-not-found]
from pydantic import Field
from verifiers.v1.dialects.chat import message_to_wire  # type: ignore[import-not-found]

import art_gym  # noqa: F401 - registers the environments
from art_gym.base import add_terms
from art_gym.env import truncate
from art_gym.lookup import find_env, make_env

__all__ = ["ArtEnv", "ArtHarness", "ArtTaskset"]


class ArtTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]  # verifiers is not installed where types are checked
    """Which episodes there are."""

    env: str = "art/Email-v0"
    """An id, or a file, as `art_gym.lookup.find_env` takes it."""
    env_args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment."""
    split: str | None = None
    """The split that tasks come from (None = the environment's own choice)."""
    seed: int = 0
    """The seed of the first task; the next has the next, without end."""


class ArtTaskData(vf.TaskData):  # type: ignore[misc]
    """What begins an episode anew."""

    env: str
    env_args: dict[str, Any]
    split: str | None
    seed: int


class ArtTask(vf.Task[ArtTaskData]):  # type: ignore[misc]
    """One episode's beginning; its score is what the environment paid."""


class ArtTaskset(vf.Taskset[ArtTask, ArtTasksetConfig]):  # type: ignore[misc]
    """A task a seed."""

    INFINITE = True

    def load(self) -> Iterator[ArtTask]:
        """The tasks, each with its first observation as the prompt."""
        chosen = self.config
        name = find_env(chosen.env).name  # tasks may be played in another folder
        env = make_env(name, chosen.env_args)
        try:
            for seed in itertools.count(chosen.seed):
                observation, info = env.reset(seed=seed, options=_options(chosen.split))
                data = ArtTaskData(
                    id=f"{info.get('task_id', chosen.env)}#{seed}",
                    prompt=observation,
                    env=name,
                    env_args=chosen.env_args,
                    split=chosen.split,
                    seed=seed,
                )
                yield ArtTask(data, chosen.task)
        finally:
            env.close()


class ArtHarnessConfig(vf.HarnessConfig):  # type: ignore[misc]
    """Nothing to choose."""


class ArtHarness(vf.Harness[ArtHarnessConfig]):  # type: ignore[misc]
    """One completion a turn, asked for in this process."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """Ask the model for the next reply; verifiers records it on the way."""
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += map(message_to_wire, prompt)
        # Without a limit of its own: verifiers has one for the whole rollout.
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=None) as client:
            request = {"model": ctx.model, "messages": messages}
            (await client.post(f"{endpoint}/chat/completions", json=request)).raise_for_status()
        return vf.ProgramResult(0, "", "")


class ArtEnvConfig(vf.EnvConfig):  # type: ignore[misc]
    """One seat."""

    player: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    """Who plays; its runtime stays idle, as the harness runs in this process."""


class ArtEnv(vf.Env[ArtEnvConfig]):  # type: ignore[misc]
    """The environment as the user of the conversation."""

    async def run(self, task: Any, agents: Any) -> None:
        """Play one episode; its score terms become rewards, its metrics metrics."""
        data, loop = task.data, asyncio.get_running_loop()
        terms: dict[str, float] = {}
        info: dict[str, Any] = {}
        # One thread an episode: an environment may not like to be stepped from several.
        with ThreadPoolExecutor(1, thread_name_prefix="episode") as thread:
            env = await loop.run_in_executor(thread, _begin, data)
            try:
                async with agents.player.interaction(task) as interaction:
                    segment = await interaction.turn()
                    while not segment.terminated:
                        observation, reward, terminated, truncated, info = await loop.run_in_executor(
                            thread, env.step, segment.last_reply
                        )
                        add_terms(terms, info.get("score_terms", {"reward": reward}))
                        if terminated or truncated:
                            break
                        segment = await interaction.turn(observation)
                # verifiers' own limits may end a rollout before the episode.
                ended = await loop.run_in_executor(thread, truncate, env)
                add_terms(terms, ended.get("score_terms", {}))
                info = ended or info
            finally:
                await loop.run_in_executor(thread, env.close)
        trace = interaction.trace
        for name, value in terms.items():
            trace.record_reward(name, value)
        trace.record_metrics(info.get("metrics", {}))
        if "success" in info:
            trace.record_metric("success", float(info["success"]))


def _options(split: str | None) -> dict[str, Any]:
    return {} if split is None else {"split": split}


def _begin(data: ArtTaskData) -> gym.Env[Any, Any]:
    env = make_env(data.env, data.env_args)
    env.reset(seed=data.seed, options=_options(data.split))
    return env
