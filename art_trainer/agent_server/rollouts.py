"""Episodes that an agent plays which we do not control: its own code, talking to the policy over HTTP.

::

    def agent(base_url, api_key, task):
        client = openai.OpenAI(base_url=base_url, api_key=api_key)
        ...  # any loop, any framework, any number of requests
        return reward

    groups = run_agents(agent, tasks, policy, attempts=8)
    Learner(policy.model, config).update(groups)
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from art_trainer.agent_server.server import AgentServer
from art_trainer.agent_server.sessions import Outcome, Reward, Session
from art_trainer.episodes import Ending, Episode, Group
from art_trainer.timings import EpisodeTiming, Timings
from art_trainer.transformers_policy import TransformersPolicy

Agent = Callable[[str, str, Any], float | Awaitable[float | None] | None]
"""``agent(base_url, api_key, task)``: plays one attempt and returns its reward; or ``None``, where the reward
was or will be posted to the episode's URL. It may be a coroutine function."""

_QUIET = 60.0
"""Most seconds to wait for the sampling to stop after the last attempt."""


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """What an attempt may take."""

    timeout: float = 600.0
    """Most seconds an attempt may last, until its reward is known."""
    max_concurrent: int = 64
    """Most attempts under way at one time."""

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout}: set seconds, above 0")
        if self.max_concurrent < 1:
            raise ValueError(f"max_concurrent is {self.max_concurrent}: set at least 1")


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that wants to be played."""

    task: Any
    """What the agent is given."""
    task_id: str
    """What the task is called in the episode."""
    seed: int
    """What the episode says its seed is."""
    rng_seed: tuple[int, ...]
    """Seeds the policy's randomness."""


class AgentRollouts:
    """Has an agent attempt tasks with a policy, and makes groups of what it did; a context manager.

    An agent that crashes, hangs or gives no reward fails its attempt, and with it the whole group: see
    :class:`~art_trainer.agent_server.sessions.Outcome`, which is under ``outcome`` in the episode's facts. A
    Python function cannot be stopped from outside: one that outlives its time goes on in a thread of its
    own, but its URL answers no more.

    Between two calls of :meth:`play` nothing is sampled, and the policy's weights, version and sampling may
    change.

    Args:
        agent: The agent.
        policy: Who answers it.
        attempts: Attempts at each task, the group's size.
        limits: What an attempt may take.
        name: What episodes have for an environment's id; by default the agent's name.
        server: A server to use, which stays open; by default one on a free port of this machine.

    Attributes:
        name: As above.
        server: The server.
    """

    def __init__(
        self,
        agent: Agent,
        policy: TransformersPolicy,
        *,
        attempts: int = 8,
        limits: AgentLimits | None = None,
        name: str | None = None,
        server: AgentServer | None = None,
    ) -> None:
        if attempts < 1:
            raise ValueError(f"attempts is {attempts}: set at least 1")
        self._agent = agent
        self._attempts = attempts
        self._limits = limits or AgentLimits()
        self.name = str(name or getattr(agent, "__name__", type(agent).__name__))
        self._owns_server = server is None
        self.server = server or AgentServer(policy)

    def play(
        self,
        tasks: Sequence[Any],
        *,
        seed: int | Sequence[int] = 0,
        on_episode: Callable[[Episode], None] | None = None,
    ) -> list[Group]:
        """Play a group of attempts at each task.

        Args:
            tasks: Whatever the agent understands; an ``id``, as attribute or key, names a task in the
                episodes.
            seed: Seeds the policy's randomness; equal seeds and requests get equal replies.
            on_episode: Called with each episode as it ends, in this thread.

        Returns:
            The groups, in the order of their tasks.
        """
        root = (seed,) if isinstance(seed, int) else tuple(seed)
        attempts = [
            Attempt(task, task_name(task, place), root[0], (*root, place, member))
            for place, task in enumerate(tasks)
            for member in range(self._attempts)
        ]
        episodes = self.attempt(attempts, lambda _, episode: on_episode and on_episode(episode))
        size = self._attempts
        return [Group(tuple(episodes[start : start + size])) for start in range(0, len(episodes), size)]

    def attempt(
        self,
        attempts: Sequence[Attempt],
        on_episode: Callable[[int, Episode], object] | None = None,
        timings: Timings | None = None,
    ) -> list[Episode]:
        """Play attempts, as many at one time as the limits allow.

        Args:
            attempts: What is attempted.
            on_episode: Called with the place of each attempt and its episode as it ends, in this thread.
            timings: Where given, is told how long each reply took, and the agent between two of them.

        Returns:
            The episodes, in the order of the attempts.
        """
        over = threading.Event()
        workers = min(self._limits.max_concurrent, max(len(attempts), 1))
        with ThreadPoolExecutor(workers, thread_name_prefix="attempt") as pool:
            pending = {
                pool.submit(self._attempt, attempt, over): place for place, attempt in enumerate(attempts)
            }
            try:
                for future in as_completed(pending):
                    episode, timing = future.result()
                    if timings is not None:
                        timings.add(episode, timing)
                    if on_episode is not None:
                        on_episode(pending[future], episode)
                episodes = [future.result()[0] for future in pending]
            except BaseException:
                over.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        if not self.server.sampler.wait_idle(_QUIET):
            raise RuntimeError(f"the policy was still sampling {_QUIET:g} s after the last attempt")
        return episodes

    def close(self) -> None:
        """Stop the server, unless it was the caller's."""
        if self._owns_server:
            self.server.close()

    def __enter__(self) -> AgentRollouts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _attempt(self, attempt: Attempt, over: threading.Event) -> tuple[Episode, EpisodeTiming]:
        started = time.time()
        session = self.server.open(attempt.rng_seed)
        run = _AgentRun(self._agent, self.server.base_url(session), session, attempt.task)
        try:
            outcome, words = run.until(time.monotonic() + self._limits.timeout, over)
        finally:
            self.server.forget(session)
        episode = _episode(session, outcome, words, env_id=self.name, attempt=attempt)
        return episode, EpisodeTiming(started, session.recording.timings())


def run_agents(
    agent: Agent,
    tasks: Sequence[Any],
    policy: TransformersPolicy,
    *,
    attempts: int = 8,
    seed: int | Sequence[int] = 0,
    limits: AgentLimits | None = None,
) -> list[Group]:
    """Play a group of an agent's attempts at each task, with a server for as long as that takes.

    Args:
        agent: As in :class:`AgentRollouts`.
        tasks: As in :meth:`AgentRollouts.play`.
        policy: Who answers the agent.
        attempts: Attempts at each task, the group's size.
        seed: As in :meth:`AgentRollouts.play`.
        limits: What an attempt may take.

    Returns:
        The groups, in the order of their tasks.
    """
    with AgentRollouts(agent, policy, attempts=attempts, limits=limits) as rollouts:
        return rollouts.play(tasks, seed=seed)


def task_name(task: Any, place: int) -> str:
    """What a task is called: its ``id``, as key or attribute, or else its place."""
    found = task.get("id") if isinstance(task, Mapping) else getattr(task, "id", None)
    return f"task-{place}" if found is None else str(found)


class _AgentRun:
    """The agent's function in a thread of its own, which cannot be stopped but can be left behind."""

    def __init__(self, agent: Agent, base_url: str, session: Session, task: Any) -> None:
        self._agent = agent
        self._base_url = base_url
        self._session = session
        self._task = task
        self._fault: str | None = None
        self._returned = threading.Event()

    def until(self, deadline: float, over: threading.Event) -> tuple[Outcome, str | None]:
        """Run it until its reward is known, it has crashed or its time is over."""
        threading.Thread(target=self._run, name="agent", daemon=True).start()
        ended = self._session.ended
        while not ended.wait(min(0.2, max(0.0, deadline - time.monotonic()))):
            if over.is_set() or time.monotonic() >= deadline:
                break
        if self._session.reward is not None:
            return Outcome.REWARDED, None
        if self._fault is not None:
            return self._blame(self._fault)
        if self._returned.is_set():
            return Outcome.NO_REWARD, "the agent returned None, and no reward was posted in time"
        return Outcome.TIMED_OUT, "the agent was still at work when its time was over"

    def _blame(self, words: str) -> tuple[Outcome, str]:
        """Whose fault it is that the agent raised."""
        fault = self._session.fault
        return (Outcome.CRASHED, words) if fault is None else fault

    def _run(self) -> None:
        try:
            returned = self._agent(self._base_url, self._session.token, self._task)
            if inspect.isawaitable(returned):
                returned = asyncio.run(_awaited(returned))
            reward = _reward(returned)
        except BaseException as fault:  # an agent is its author's code: sys.exit() too is only its own end
            self._fault = f"{type(fault).__name__}: {fault}"
            self._session.ended.set()
            return
        self._returned.set()
        if reward is not None and not self._session.ended.is_set():
            self._session.pay(Reward(reward))


async def _awaited(returned: Awaitable[float | None]) -> float | None:
    return await returned


def _reward(returned: object) -> float | None:
    if returned is None:
        return None
    try:
        reward = float(returned)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        reward = math.nan
    if not math.isfinite(reward):
        raise ValueError(f"the agent returned {returned!r}: return its reward, a finite number, or None")
    return reward


_ENDINGS = {
    Outcome.REWARDED: Ending.TERMINATED,
    Outcome.CONTEXT_FULL: Ending.CONTEXT_FULL,
    Outcome.POLICY_FAILED: Ending.POLICY_ERROR,
}


def _episode(
    session: Session, outcome: Outcome, words: str | None, *, env_id: str, attempt: Attempt
) -> Episode:
    """What is left of a session that is closed."""
    recording = session.recording
    reward = session.reward or Reward(0.0)
    turns = recording.turns(reward.value)
    if not turns and outcome in (Outcome.REWARDED, Outcome.CONTEXT_FULL):
        outcome, words = Outcome.NO_REPLIES, "the agent got no reply from the policy"
    return Episode(
        env_id=env_id,
        task_id=attempt.task_id,
        seed=attempt.seed,
        observation=recording.first_words,
        turns=turns,
        histories=recording.histories(),
        ending=_ENDINGS.get(outcome, Ending.ENV_ERROR),
        success=reward.success,
        metrics=dict(reward.metrics),
        error=words,
        tools=recording.first_tools,
        facts={"outcome": outcome.value},
    )
