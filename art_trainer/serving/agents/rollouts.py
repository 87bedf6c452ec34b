"""Rollouts of agents whose code is not ours and that talk to the policy over HTTP.

::

    def agent(base_url, api_key, task):
        client = openai.OpenAI(base_url=base_url, api_key=api_key)
        ...  # any loop, any framework, any number of requests
        return reward

    backend = AgentBackend(agent, tasks, policy, eval_tasks=held_out)
    GRPOTrainer(policy, None, config, backend=backend).train()

To write the loop yourself::

    groups = run_agents(agent, tasks, policy, attempts=8)
    Learner(policy.model, config).update(groups)
"""

from __future__ import annotations

import inspect
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Unpack

import numpy as np

from art_trainer.errors import ConfigError
from art_trainer.inference.engines.http import BackgroundLoop
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.rollout.backend import CollectCallbacks, SelfContainedBackend
from art_trainer.rollout.episodes import GroupCollector
from art_trainer.rollout.evaluate import EpisodeResult, Evaluation
from art_trainer.serving.agents.server import AgentServer
from art_trainer.serving.agents.sessions import Outcome, Reward, Session
from art_trainer.types import Ending, Episode, EpisodeSpec, Group, GroupSpec

Result = float | Reward | None
Agent = Callable[[str, str, Any], Result | Awaitable[Result]]
"""``agent(base_url, api_key, task)``: plays one attempt and returns its reward, a number or a :class:`Reward`
with success and metrics; ``None`` if the reward was or will be posted to the episode's URL. It may be a
coroutine function: all attempts of a process run in one event loop, so they may share a client, and slow
calls that do not await belong in :func:`asyncio.to_thread`.
"""

_IDLE_SECONDS = 60.0
"""How long the sampling may take to stop after the last attempt."""
_POLL_SECONDS = 0.2
_log = logging.getLogger(__name__)
_ENDINGS = {
    Outcome.REWARDED: Ending.TERMINATED,
    Outcome.CONTEXT_FULL: Ending.CONTEXT_FULL,
    Outcome.POLICY_FAILED: Ending.POLICY_ERROR,
}


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """Limits of attempts."""

    timeout: float = 600.0
    """Seconds until an attempt's reward must be known."""
    max_concurrent: int = 64
    """Most attempts at one time."""

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout}: set seconds, above 0")
        if self.max_concurrent < 1:
            raise ValueError(f"max_concurrent is {self.max_concurrent}: set at least 1")


class _Task(NamedTuple):
    id: str
    task: Any


def _task_at(tasks: Sequence[Any], place: int) -> _Task:
    """One of the tasks, in a circle, named by its ``id``, a key or an attribute, or else by its place."""
    place %= len(tasks)
    task = tasks[place]
    own = task.get("id") if isinstance(task, Mapping) else getattr(task, "id", None)
    return _Task(f"task-{place}" if own is None else str(own), task)


class AgentBackend(SelfContainedBackend):
    """Rollout backend of a trainer without an environment: an agent plays its tasks and evaluations.

    A group plays the task ``tasks[seed % len(tasks)]``. An agent that crashes, hangs or returns no reward
    fails its attempt, and with it the whole group; how it ended (:class:`Outcome`) is stored as ``outcome``
    in the episode's facts. A coroutine that exceeds the timeout is cancelled. Another function cannot be
    stopped from outside: it continues in its thread, but its URL no longer answers.

    Between two calls of :meth:`collect` nothing is sampled, and the policy's weights, version and sampling
    parameters may change.

    Args:
        agent: The agent, see :data:`Agent`. With an attribute ``posts_reward`` that is false, only what it
            returns is its reward.
        tasks: What it is trained on: anything the agent understands; an ``id``, as attribute or key, names a
            task.
        policy: The policy in training, which answers it.
        eval_tasks: What it is evaluated on; none of them should be among ``tasks``.
        limits: Limits of attempts.
        server: A server to use, which stays open; by default one on a free port of this machine.

    Raises:
        ConfigError: There is no task to train on.

    Attributes:
        name: The episodes' environment id: the agent's name.
        server: The server.
    """

    def __init__(
        self,
        agent: Agent,
        tasks: Sequence[Any],
        policy: TransformersPolicy,
        *,
        eval_tasks: Sequence[Any] = (),
        limits: AgentLimits | None = None,
        server: AgentServer | None = None,
    ) -> None:
        if not tasks:
            raise ConfigError("tasks is empty: the agent needs at least one to be trained on")
        self._agent = agent
        self._tasks = tasks
        self._eval_tasks = eval_tasks
        self._policy = policy
        self._limits = limits or AgentLimits()
        self._loop = _event_loop()
        self.name = str(getattr(agent, "__name__", type(agent).__name__))
        self._told = False
        self._owns_server = server is None
        self.server = server or AgentServer(policy)

    def collect(self, tasks: Sequence[GroupSpec], **callbacks: Unpack[CollectCallbacks]) -> list[Group]:
        """Play groups, see :meth:`~art_trainer.rollout.backend.RolloutBackend.collect`."""
        collector = GroupCollector(tasks, callbacks.get("on_group"))

        def add(index: int, episode: Episode) -> None:
            callbacks["on_episode"](episode)
            collector.add(index, episode)

        self._play_all([(_task_at(self._tasks, spec.seed), spec) for spec in collector.episodes], add)
        return collector.groups()

    def evaluate(
        self, *, episodes: int, seed: int, on_episode: Callable[[Episode], object] = lambda _: None
    ) -> Evaluation:
        """Play the held-out tasks, see :meth:`.SelfContainedBackend.evaluate`.

        Args:
            episodes: How many; tasks are repeated if there are fewer.
            seed: Equal seeds give equal randomness.
            on_episode: Called with each episode as it ends.

        Raises:
            ConfigError: There are none.
        """
        if not self._eval_tasks:
            raise ConfigError(
                "there is nothing to evaluate on: give AgentBackend eval_tasks, or set eval_steps to 0"
            )
        started = time.perf_counter()
        played: dict[int, Episode] = {}
        attempts = []
        for number in range(episodes):
            own_seed = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
            task = _task_at(self._eval_tasks, number)
            attempts.append((task, EpisodeSpec(own_seed, rng_seed=(seed, number))))

        def add(number: int, episode: Episode) -> None:
            played[number] = episode
            on_episode(episode)

        self._play_all(attempts, add)
        return Evaluation(
            policy=self._policy.name,
            env_id=self.name,
            split=None,
            seed=seed,
            results=tuple(EpisodeResult.of(episode) for _, episode in sorted(played.items())),
            seconds=time.perf_counter() - started,
        )

    def close(self) -> None:
        """Stop the server, unless it was given."""
        if self._owns_server:
            self.server.close()

    def _play_all(
        self,
        attempts: Sequence[tuple[_Task, EpisodeSpec]],
        on_end: Callable[[int, Episode], object],
    ) -> None:
        """Play attempts, as many at one time as the limits allow; each is handed over as it ends."""
        stop = threading.Event()
        workers = min(self._limits.max_concurrent, max(len(attempts), 1))
        with ThreadPoolExecutor(workers, thread_name_prefix="attempt") as pool:
            pending = {pool.submit(self._play, *one, stop): index for index, one in enumerate(attempts)}
            try:
                for future in as_completed(pending):
                    on_end(pending[future], future.result())
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        if not self.server.scheduler.wait_idle(_IDLE_SECONDS):
            raise RuntimeError(f"the policy was still sampling {_IDLE_SECONDS:g} s after the last attempt")

    def _play(self, task: _Task, spec: EpisodeSpec, stop: threading.Event) -> Episode:
        """Run the agent in a thread, which cannot be stopped but can be abandoned."""
        deadline = time.monotonic() + self._limits.timeout
        # A program that runs the model's commands has the episode's token, and with it the model.
        takes_reward = getattr(self._agent, "posts_reward", True)
        session = self.server.open(spec.rng_seed, takes_reward=takes_reward)
        done: Future[Reward | None] = Future()
        given = (self._agent, self.server.base_url(session), session, task.task, done, self._loop)
        threading.Thread(target=_run_agent, args=given, name="agent", daemon=True).start()
        try:
            while not session.ended.wait(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic()))):
                if not self._told and done.done() and done.exception() is None and done.result() is None:
                    self._told = True
                    _log.warning(
                        "the agent returned None: each of its attempts waits up to %g s for another program "
                        "to post the reward; if there is none, return the reward",
                        self._limits.timeout,
                    )
                if stop.is_set() or time.monotonic() >= deadline:
                    break
            outcome, error = _outcome(session, done)
        finally:
            self.server.forget(session)
            if session.reward is None:
                done.cancel()
        recording, reward = session.recording, session.reward or Reward(reward=0.0)
        turns = recording.turns(reward.reward)
        if not turns and outcome in (Outcome.REWARDED, Outcome.CONTEXT_FULL):
            outcome, error = Outcome.NO_REPLIES, "the agent received no reply from the policy"
            if session.error is not None:
                error += f": {session.error[1]}"
        return Episode(
            env_id=self.name,
            task_id=task.id,
            seed=spec.seed,
            observation=recording.first_text,
            turns=turns,
            histories=recording.histories(),
            ending=Ending.TRUNCATED if reward.truncated else _ENDINGS.get(outcome, Ending.ENV_ERROR),
            success=reward.success,
            metrics=dict(reward.metrics),
            error=error,
            tools=recording.first_tools,
            facts={"outcome": outcome.value},
        )


def run_agents(
    agent: Agent,
    tasks: Sequence[Any],
    policy: TransformersPolicy,
    *,
    attempts: int = 8,
    seed: int | Sequence[int] = 0,
    limits: AgentLimits | None = None,
    server: AgentServer | None = None,
) -> list[Group]:
    """Play a group of an agent's attempts at each task.

    Args:
        agent: As for :class:`AgentBackend`, like the arguments that are not named here.
        tasks: The tasks.
        policy: Answers the agent.
        attempts: Attempts at each task, the group size.
        seed: Seeds the policy's randomness; equal seeds and requests get equal replies.
        limits: Limits of attempts.
        server: A server to use.

    Returns:
        The groups, in the order of their tasks.
    """
    root = (seed,) if isinstance(seed, int) else tuple(seed)
    specs = [GroupSpec(place, attempts, (*root, place)) for place in range(len(tasks))]
    with closing(AgentBackend(agent, tasks, policy, limits=limits, server=server)) as backend:
        return backend.collect(specs, on_episode=lambda _: None)


def _outcome(session: Session, done: Future[Reward | None]) -> tuple[Outcome, str | None]:
    """How an attempt ended, and what was wrong."""
    if session.reward is not None:
        return Outcome.REWARDED, None
    if not done.done():
        return Outcome.TIMED_OUT, "the agent was still running at the time limit"
    error = done.exception()
    if error is None:
        return Outcome.NO_REWARD, "the agent returned None, and no reward was posted in time"
    if isinstance(error, TimeoutError):
        return Outcome.TIMED_OUT, str(error) or "the agent ran into a time limit"
    # The session knows if the policy, not the agent, was the cause.
    return session.error or (Outcome.CRASHED, f"{type(error).__name__}: {error}")


def _run_agent(
    agent: Agent,
    base_url: str,
    session: Session,
    task: Any,
    done: Future[Reward | None],
    loop: BackgroundLoop,
) -> None:
    try:
        returned = agent(base_url, session.token, task)
        if inspect.isawaitable(returned):
            running = loop.start(_result(returned))
            done.add_done_callback(lambda _: running.cancel())
            returned = running.result().result()
        reward = _read_reward(returned)
        if reward is None and not session.takes_reward:
            raise ValueError("the agent returned None, and nobody else may post its reward: return a number")
    except BaseException as error:  # sys.exit() too ends only the agent
        with suppress(InvalidStateError):  # it was given up
            done.set_exception(error)
        session.ended.set()
        return
    with suppress(InvalidStateError):
        done.set_result(reward)
    if reward is not None and not session.ended.is_set():
        session.set_reward(reward)


@cache
def _event_loop() -> BackgroundLoop:
    """The loop of all coroutine agents; one per attempt would close under the connections that they share."""
    return BackgroundLoop("coroutine-agents")


async def _result(returned: Awaitable[Result]) -> Future[Result]:
    """What an agent returns or raises; sys.exit() raised in the loop itself would end it for all."""
    done: Future[Result] = Future()
    try:
        done.set_result(await returned)
    except BaseException as error:
        done.set_exception(error)
    return done


def _read_reward(returned: object) -> Reward | None:
    if returned is None or isinstance(returned, Reward):
        return returned
    try:
        reward = float(returned)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        reward = math.nan
    if not math.isfinite(reward):
        raise ValueError(f"the agent returned {returned!r:.80}: return its reward, a finite number, or None")
    return Reward(reward=reward)
