"""``verifiers/Env-v0``: an environment written for verifiers, by the name of its module.

Its own code runs: the loop of its ``Env``, and the ``Task``'s hooks, stops, metrics and rewards. Written for
verifiers 0.4, which has ``verifiers.v1`` alone; https://github.com/PrimeIntellect-ai/verifiers.

Not supported, and refused when the environment is made: several seats, tools, judges that ask a model, a
program as player, containers, shared servers, hooks on requests. Pictures, and hooks that use the sandbox
(``runtime``), fail when they come up.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from art_gym.tools import Outcome
from art_gym.wrappers.adapters.common import FreeTextEnv, ReplayedAdapter, import_optional, split_tasks
from art_gym.wrappers.adapters.verifiers_seat import Seat, load
from art_gym.wrappers.text_adapter import DEFAULT_MAX_TURNS


class VerifiersEnv(FreeTextEnv):
    """verifiers' tasks with Gymnasium's interface: ``options={"item": i}`` plays task ``i``.

    Args:
        groups: What is loaded, one group of tasks after the other: see
            :func:`~art_gym.wrappers.adapters.verifiers_seat.load`.
    """

    def __init__(self, *groups: tuple[str, str, int]) -> None:
        super().__init__()
        self.groups = groups
        self.past: tuple[Any, ...] = ()
        self.task: Any = None
        self.items = [(env, task) for env, tasks in (load(*group) for group in groups) for task in tasks]
        systems = {task.data.system_prompt or "" for _, task in self.items}
        self.system = systems.pop() if len(systems) == 1 else ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._episode: asyncio.Task[Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.groups

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin a task; without ``options`` one drawn by the seed."""
        super().reset(seed=seed)
        self.close()
        place = int(self.np_random.integers(len(self.items))) if options is None else options["item"]
        env, self.task = self.items[place]
        self._loop = asyncio.new_event_loop()
        self._episode = self._loop.create_task(self._play(env, self.task))
        text, system = self._go_on(), self.task.data.system_prompt
        return text if not system or self.system else f"{system}\n\n{text}", {}

    def step(self, action: str | None) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Give a reply; ``None`` ends the conversation, as verifiers' turn limit does."""
        assert self._episode is not None
        self._answer.set_result(action)
        text = self._go_on()
        if not self._episode.done():
            return text, 0.0, False, False, {}
        trace = self._episode.result()
        self.close()
        terms = {name: float(reward.value) for name, reward in trace.rewards.items()}
        metrics = {name: float(value) for name, value in trace.metrics.items()}
        reward = sum(terms.values(), 0.0)
        info = {"success": metrics.get("success", reward) >= 1, "score_terms": terms, "metrics": metrics}
        return f"The episode is over; its reward is {reward:g}.", reward, True, False, info

    def close(self) -> None:
        """Cancel a running episode, so that its own clean-up runs, and close its event loop."""
        if self._loop is not None and self._episode is not None:
            self._episode.cancel()
            self._loop.run_until_complete(asyncio.wait({self._episode}))
            self._loop.close()
        self._loop = self._episode = None

    async def _play(self, env: Any, task: Any) -> Any:
        """One episode as verifiers plays it; its trace."""
        vf = import_optional("verifiers.v1", "verifiers")
        name, config = _seat(env)
        seat = Seat(config, self._ask)
        agents = SimpleNamespace(**{name: seat})
        await env.setup(agents)
        await env.run(task, agents)
        if (trace := seat.trace) is None:
            raise ValueError(f"{type(env).__name__}.run lets nobody play")
        about = vf.EnvInfo(id=env.config.env_id)
        await env.finalize(task, vf.Episode(env=about, task=trace.task, traces=[trace]))
        return trace

    async def _ask(self, text: str) -> str | None:
        self._answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._asked.set_result(text)
        return await self._answer

    def _go_on(self) -> str:
        """Let the episode run until it asks for a reply or ends; the question."""
        assert self._loop is not None
        assert self._episode is not None
        self._asked: asyncio.Future[str] = self._loop.create_future()
        either = asyncio.wait({self._episode, self._asked}, return_when=asyncio.FIRST_COMPLETED)
        self._loop.run_until_complete(either)
        if self._episode.done():
            self._episode.result()  # raises what the environment raised
        return self._asked.result() if self._asked.done() else ""


class VerifiersTextEnv(ReplayedAdapter):
    """Play an environment that was written for verifiers.

    The rewards of its task or its ``Env`` are score terms and come at the end. An episode is a success if
    they sum to 1 or more, or if its metric ``success`` is 1 where it has one.

    Args:
        env_id: The name of a taskset's module, as ``vf-eval`` takes it.
        settings: Of its taskset.
        test: Settings with which its taskset has held-out tasks, such as ``{"split": "test"}``. Without any,
            a fifth of the tasks is held out.
        most: The most tasks that are loaded; a taskset may be endless.
        split: ``"train"`` or ``"test"``.
        max_turns: Replies in an episode; by default the seat's own limit.
        render_mode: As in every ``TextEnv``.

    Raises:
        ModuleNotFoundError: If verifiers or the environment's module is missing.
        ValueError: If the environment needs what is not supported.
    """

    def __init__(
        self,
        env_id: str,
        *,
        settings: Mapping[str, Any] | None = None,
        test: Mapping[str, Any] | None = None,
        most: int = 1_000,
        split: str = "train",
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        kinds = [settings or {}] + ([] if test is None else [{**(settings or {}), **test}])
        env = VerifiersEnv(*((env_id, json.dumps(kind, sort_keys=True), most) for kind in kinds))
        order = np.arange(len(env.items))
        held_out = len(load(*env.groups[-1])[1])
        if test is None:
            held_out = len(order) // 5
            order = np.random.default_rng(0).permutation(order)
        single = isinstance(env.items[0][0], import_optional("verifiers.v1", "verifiers").SingleAgentEnv)
        limit = 1 if single else _seat(env.items[0][0])[1].max_turns
        super().__init__(
            env,
            instructions=env.system,
            tasks=split_tasks(
                {"train": len(order) - held_out, "test": held_out},
                lambda number: {"options": {"item": int(order[number])}},
            ),
            split=split,
            max_turns=max_turns or limit or DEFAULT_MAX_TURNS,
            isolated_random=True,
            render_mode=render_mode,
        )

    def facts(self) -> Mapping[str, Any]:
        """The right answer, if the task's data has one."""
        answer = getattr(self.env.task.data, "answer", None)
        return {} if answer is None else {"expected": str(answer)}

    def on_truncation(self) -> Outcome:
        """The turn limit: verifiers scores what there is."""
        return self._advance(None)

    def _advance(self, action: str | None) -> Outcome:
        outcome, info = super()._advance(action), self.played.info
        if not outcome.ends:
            return replace(outcome, score_terms={})
        return replace(outcome, score_terms=info["score_terms"], metrics=info["metrics"])


def _seat(env: Any) -> tuple[str, Any]:
    """The name and the settings of the one seat."""
    (name,) = env.config.agent_harnesses()
    return name, getattr(env.config, name)
