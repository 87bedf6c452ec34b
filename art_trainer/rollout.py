"""Playing episodes: environments on one side, a policy on the other.

Many episodes run at the same time, so that the policy can batch them, but each has its own environment and
its own randomness: what comes out does not depend on how they were scheduled. Environments can be played in
threads while the policy samples for others; which wait for which depends on the policy alone, never on time,
so that the same seeds still give the same batches.
"""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from art_trainer.env_pool import EnvPool, MakeEnv, TextEnvironment
from art_trainer.episodes import Ending, Episode, Group, TokenHistory, Turn
from art_trainer.policy import Conversation, Policy, Reply
from art_trainer.starts import GroupTask, Start
from art_trainer.states import state_digest
from art_trainer.timings import EpisodeTiming, Timings, TurnTiming

DEFAULT_MAX_CONCURRENT = 256


@dataclass(eq=False, slots=True)
class _Play:
    """One episode under way."""

    index: int
    start: Start
    env: TextEnvironment
    env_id: str
    task_id: str
    observation: str = ""
    conversation: Conversation | None = None
    turns: list[Turn] = field(default_factory=list)
    ending: Ending | None = None
    success: bool | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    started: float = field(default_factory=time.time)
    asked: float = 0.0
    """When the reply under way was asked for, on the monotonic clock."""
    timings: list[TurnTiming] = field(default_factory=list)

    def fail(self, ending: Ending, error: str | None) -> None:
        self.ending, self.error = ending, error

    def episode(self, histories: tuple[TokenHistory, ...]) -> Episode:
        assert self.ending is not None
        return Episode(
            env_id=self.env_id,
            task_id=self.task_id,
            seed=self.start.seed,
            observation=self.observation,
            turns=tuple(self.turns),
            histories=histories,
            ending=self.ending,
            success=self.success,
            metrics=self.metrics,
            error=self.error,
            tools=self.tools,
            facts=self.facts,
        )


def rollout(
    policy: Policy,
    make_env: MakeEnv | EnvPool,
    starts: Sequence[Start],
    *,
    max_concurrent: int | None = None,
    on_episode: Callable[[Episode], None] | None = None,
    on_end: Callable[[int, Episode], None] | None = None,
    record_states: bool = False,
    env_threads: int = 0,
    timings: Timings | None = None,
) -> list[Episode]:
    """Play one episode from every start.

    An exception in the environment, or in the policy about one conversation, becomes that episode's ending;
    an exception that concerns the whole policy, and Ctrl-C, release everything and propagate.

    Args:
        policy: Who plays.
        make_env: Makes an environment, or a pool to take them from, which stays open.
        starts: Where the episodes start.
        max_concurrent: Most episodes under way at one time, 256 by default.
        on_episode: Called with each episode as it ends, in order of ending.
        on_end: Called likewise, and told the episode's place among the starts.
        record_states: Note the environment's state before each reply, for estimators that compare turns of
            equal states (``GRPOConfig.records_states``).
        env_threads: Threads that step environments while the policy samples; with 0 they are stepped one
            after the other in between. For environments that wait (for a sandbox, a server) and may be
            stepped from another thread than the one that made them.
        timings: Where given, is told how long each episode's turns took.

    Returns:
        The episodes, in the order of their starts.
    """
    limit = _limit(max_concurrent)

    def tell(index: int, episode: Episode) -> None:
        if on_episode is not None:
            on_episode(episode)
        if on_end is not None:
            on_end(index, episode)

    return _run(policy, make_env, starts, limit, env_threads, _Watching(tell, record_states, timings))


def _limit(max_concurrent: int | None) -> int:
    if max_concurrent is not None and max_concurrent < 1:
        raise ValueError(f"max_concurrent is at least 1, got {max_concurrent}")
    return DEFAULT_MAX_CONCURRENT if max_concurrent is None else max_concurrent


@dataclass(frozen=True, slots=True)
class _Watching:
    """What is noted of episodes, and who is told."""

    on_end: Callable[[int, Episode], None]
    record_states: bool
    timings: Timings | None


def _run(
    policy: Policy,
    make_env: MakeEnv | EnvPool,
    starts: Sequence[Start],
    limit: int,
    env_threads: int,
    watching: _Watching,
) -> list[Episode]:
    if isinstance(make_env, EnvPool):
        return _Rollout(policy, make_env, watching).run(starts, limit, env_threads)
    with EnvPool(make_env) as pool:
        return _Rollout(policy, pool, watching).run(starts, limit, env_threads)


def rollout_groups(
    policy: Policy,
    make_env: MakeEnv | EnvPool,
    seeds: Iterable[int],
    group_size: int,
    *,
    options: Mapping[str, Any] | None = None,
    rng_seed: int | Sequence[int] = 0,
    max_concurrent: int | None = None,
    on_episode: Callable[[Episode], None] | None = None,
    on_group: Callable[[int, Group], None] | None = None,
    record_states: bool = False,
    env_threads: int = 0,
    timings: Timings | None = None,
) -> list[Group]:
    """Play ``group_size`` episodes from every seed; those of one seed form a group.

    Args:
        policy: Who plays.
        make_env: Makes an environment, or a pool to take them from.
        seeds: One a group, for ``reset``.
        group_size: Episodes a group.
        options: For every ``reset``.
        rng_seed: Seeds the policy's randomness; every episode draws its own from it.
        max_concurrent: As in :func:`rollout`.
        on_episode: As in :func:`rollout`.
        on_group: Called with each group as its last episode ends, and with its place among the seeds.
        record_states: As in :func:`rollout`.
        env_threads: As in :func:`rollout`.
        timings: As in :func:`rollout`.

    Returns:
        The groups, in the order of their seeds.
    """
    if group_size < 1:
        raise ValueError(f"group_size is at least 1, got {group_size}")
    root = (rng_seed,) if isinstance(rng_seed, int) else tuple(rng_seed)
    tasks = [GroupTask(seed, group_size, (*root, place), options) for place, seed in enumerate(seeds)]
    return rollout_tasks(
        policy,
        make_env,
        tasks,
        max_concurrent=max_concurrent,
        on_episode=on_episode,
        on_group=on_group,
        record_states=record_states,
        env_threads=env_threads,
        timings=timings,
    )


def rollout_tasks(
    policy: Policy,
    make_env: MakeEnv | EnvPool,
    tasks: Sequence[GroupTask],
    *,
    max_concurrent: int | None = None,
    on_episode: Callable[[Episode], None] | None = None,
    on_group: Callable[[int, Group], None] | None = None,
    record_states: bool = False,
    env_threads: int = 0,
    timings: Timings | None = None,
) -> list[Group]:
    """Play the groups that some tasks ask for.

    Args:
        policy: Who plays.
        make_env: Makes an environment, or a pool to take them from.
        tasks: The groups.
        max_concurrent: As in :func:`rollout`.
        on_episode: As in :func:`rollout`.
        on_group: Called with each group as its last episode ends, and with its place among the tasks.
        record_states: As in :func:`rollout`.
        env_threads: As in :func:`rollout`.
        timings: As in :func:`rollout`.

    Returns:
        The groups, in the order of their tasks.
    """
    members = [(place, member) for place, task in enumerate(tasks) for member in range(task.size)]
    starts = [tasks[place].start(member, place) for place, member in members]
    ended: list[dict[int, Episode]] = [{} for _ in tasks]
    groups: dict[int, Group] = {}

    def gather(index: int, episode: Episode) -> None:
        if on_episode is not None:
            on_episode(episode)
        place, member = members[index]
        ended[place][member] = episode
        if len(ended[place]) == tasks[place].size:
            groups[place] = _group([ended[place][i] for i in range(tasks[place].size)])
            if on_group is not None:
                on_group(place, groups[place])

    watching = _Watching(gather, record_states, timings)
    _run(policy, make_env, starts, _limit(max_concurrent), env_threads, watching)
    return [groups[place] for place in range(len(tasks))]


def _group(episodes: Sequence[Episode]) -> Group:
    """The group of some attempts; one whose reset raised was not told its task, which the others know."""
    told = next((e.task_id for e in episodes if e.observation), episodes[0].task_id)
    return Group(tuple(e if e.observation else dataclasses.replace(e, task_id=told) for e in episodes))


@contextmanager
def _stepping(threads: int) -> Iterator[Callable[..., Future[None]]]:
    """How to call a function, in a thread where there are any, so that its result can be waited for."""
    if threads < 0:
        raise ValueError(f"env_threads is at least 0, got {threads}")
    if threads:
        pool = ThreadPoolExecutor(threads, thread_name_prefix="env")
        try:
            yield pool.submit
        finally:
            pool.shutdown(cancel_futures=True)
        return

    def at_once(function: Callable[..., None], *arguments: Any) -> Future[None]:
        done: Future[None] = Future()
        function(*arguments)
        done.set_result(None)
        return done

    yield at_once


class _Rollout:
    """Keeps episodes under way until all are done."""

    def __init__(self, policy: Policy, pool: EnvPool, watching: _Watching) -> None:
        self._policy = policy
        self._pool = pool
        self._watching = watching
        self._live: dict[Conversation, _Play] = {}
        self._done: dict[int, Episode] = {}

    def run(self, starts: Sequence[Start], limit: int, env_threads: int) -> list[Episode]:
        try:
            with _stepping(env_threads) as step:
                self._play_all(starts, limit, step, overlapping=env_threads > 0)
        finally:
            for conversation, play in self._live.items():
                self._policy.release(conversation)
                self._pool.give_back(play.env)
        return [self._done[index] for index in range(len(starts))]

    def _play_all(
        self, starts: Sequence[Start], limit: int, step: Callable[..., Future[None]], *, overlapping: bool
    ) -> None:
        waiting = iter(enumerate(starts))
        stepping: list[tuple[Conversation, _Play, Future[None]]] = []
        while len(self._done) < len(starts):
            while len(self._live) < limit and (entry := next(waiting, None)) is not None:
                self._begin(*entry)
            replies = self._policy.collect() if self._live else []
            stepped = stepping
            replied = time.monotonic()
            stepping = [
                (c, self._live[c], step(self._play, self._live[c], reply, replied)) for c, reply in replies
            ]
            if not overlapping:
                stepped, stepping = stepping, []
            # In threads: the environments of these replies play while the next replies are sampled.
            for conversation, play, done in stepped:
                done.result()
                self._advance(play, conversation)

    def _begin(self, index: int, start: Start) -> None:
        env = self._pool.take()
        env_id = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        play = _Play(index, start, env, env_id, task_id=f"seed-{start.seed}")
        try:
            options = None if start.options is None else dict(start.options)
            observation, info = env.reset(seed=start.seed, options=options)
            play.observation = _text(observation)
        except Exception:  # an environment is its author's code; what it raises is this episode's outcome
            play.fail(Ending.ENV_ERROR, last_line())
            self._end(play)
            return
        play.task_id = str(info.get("task_id", play.task_id))
        rng = np.random.default_rng(start.rng_seed)
        messages = first_messages(observation, info.get("system") or "")
        play.tools = tuple(info.get("tools") or ())
        conversation = Conversation(env, messages, list(play.tools), rng, start.group)
        play.conversation = conversation
        self._live[conversation] = play
        self._submit(play, conversation)

    def _submit(self, play: _Play, conversation: Conversation) -> None:
        play.asked = time.monotonic()
        try:
            self._policy.submit(conversation)
        except Exception:  # a policy's fault about one conversation is that episode's outcome
            play.fail(Ending.POLICY_ERROR, last_line())
            self._end(play)

    def _play(self, play: _Play, reply: Reply, replied: float) -> None:
        """Play a reply; the episode's ending is set where that was the last one."""
        if reply.error is not None:
            play.fail(Ending.POLICY_ERROR, reply.error)
        elif reply.context_full:
            play.ending = Ending.CONTEXT_FULL
        else:
            began = time.monotonic()
            self._step(play, reply)
            play.timings.append(TurnTiming(replied - play.asked, time.monotonic() - began))

    def _advance(self, play: _Play, conversation: Conversation) -> None:
        """End the episode, or ask for its next reply."""
        if play.ending is not None:
            self._end(play)
            return
        conversation.messages.append({"role": "user", "content": play.turns[-1].observation})
        self._submit(play, conversation)

    def _step(self, play: _Play, reply: Reply) -> None:
        try:
            state = state_digest(play.env) if self._watching.record_states else None
            observation, reward, terminated, truncated, info = play.env.step(reply.text)
            turn = Turn(
                reply=reply.text,
                observation=_text(observation),
                reward=float(reward),
                score_terms=dict(info.get("score_terms", {})),
                call=info.get("call"),
                error=info.get("error"),
                cut=reply.stop == "length",
                state=state,
            )
        except Exception:  # an environment is its author's code; what it raises is this episode's outcome
            play.fail(Ending.ENV_ERROR, last_line())
            return
        play.turns.append(turn)
        if terminated or truncated:
            play.ending = Ending.TERMINATED if terminated else Ending.TRUNCATED
            success = info.get("success")
            play.success = None if success is None else bool(success)
            play.metrics = {name: float(value) for name, value in info.get("metrics", {}).items()}
            play.facts = dict(info.get("facts") or {})

    def _end(self, play: _Play) -> None:
        histories: tuple[TokenHistory, ...] = ()
        if play.conversation is not None:
            del self._live[play.conversation]
            histories = self._policy.release(play.conversation)
        # Whatever an environment that raised still holds is unknown: the next episode gets a new one.
        if play.ending is Ending.ENV_ERROR:
            play.env.close()
        else:
            self._pool.give_back(play.env)
        episode = play.episode(histories)
        self._done[play.index] = episode
        if self._watching.timings is not None:
            # A step that raised is no turn of the episode.
            turns = tuple(play.timings[: len(episode.turns)])
            self._watching.timings.add(episode, EpisodeTiming(play.started, turns))
        self._watching.on_end(play.index, episode)


def first_messages(observation: str, system: str) -> list[dict[str, Any]]:
    """An episode's first messages: standing instructions become the system message, the rest the user's.

    Args:
        observation: The first observation.
        system: What it may begin with, before a blank line.
    """
    head = f"{system}\n\n"
    if system and observation.startswith(head) and len(observation) > len(head):
        return [
            {"role": "system", "content": system},
            {"role": "user", "content": observation.removeprefix(head)},
        ]
    return [{"role": "user", "content": observation}]


def _text(observation: object) -> str:
    if not isinstance(observation, str):
        raise TypeError(f"a text environment's observation is a str, got {type(observation).__name__}")
    return observation


def last_line() -> str:
    """The exception being handled, as the last line of its traceback."""
    return traceback.format_exc().strip().splitlines()[-1]
