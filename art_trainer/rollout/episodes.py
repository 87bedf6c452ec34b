"""Play episodes: many environments on one side, one policy on the other.

Many episodes run at the same time, so that the policy can batch them. Each has its own environment and its
own randomness, so the result does not depend on how they were scheduled. Environments can be stepped in
threads while the policy samples for others; the order depends on the policy alone, never on time, so the same
seeds still give the same batches.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, Unpack

import numpy as np

from art_gym.base import add_terms, env_name
from art_gym.env import truncate
from art_gym.errors import did_you_mean, user_line
from art_trainer.inference.policy import Conversation, Policy, Reply
from art_trainer.rollout.envs import EnvPool, EnvSource, TextEnvironment, state_digest
from art_trainer.rollout.slow_calls import SlowCalls
from art_trainer.types import Ending, Episode, EpisodeSpec, Group, GroupSpec, TokenHistory, Turn

DEFAULT_MAX_CONCURRENT = 256
_RESET, _STEP = ("observation", "info"), ("observation", "reward", "terminated", "truncated", "info")
_FAULTS = (Exception, SystemExit)
"""What an environment may raise, which is its author's code: it is the episode's outcome."""


class RolloutOptions(TypedDict, total=False):
    """Keyword arguments of :func:`rollout_episodes` and :func:`rollout_groups`."""

    max_concurrent: int | None
    """Most episodes at the same time, 256 by default."""
    on_episode: Callable[[Episode], None] | None
    """Called with each episode as it ends, in order of ending."""
    record_states: bool
    """Record the environment's state before each reply, for estimators that compare turns of equal states
    (``GRPOConfig.records_states``)."""
    env_threads: int
    """Threads that step environments while the policy samples; 0 steps them in the caller's thread. For
    environments that wait (for a sandbox, a server) and may be stepped from any thread."""


def require_known(options: Iterable[str], kind: Any) -> None:
    """Raise ``TypeError`` for an option that a ``TypedDict`` of keyword arguments lacks."""
    for name in options:
        if name not in kind.__annotations__:
            raise TypeError(f"no option `{name}`{did_you_mean(name, kind.__annotations__)}")


@dataclass(eq=False, slots=True, kw_only=True)
class LiveEpisode:
    """An episode, or a seat's part of a game, while it is played."""

    env_id: str
    task_id: str
    seed: int
    observation: str = ""
    conversation: Conversation | None = None
    turns: list[Turn] = field(default_factory=list)
    ending: Ending | None = None
    success: bool | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    def fail(self, ending: Ending, error: str | None) -> None:
        """End it by a fault."""
        self.ending, self.error = ending, error

    def end(self, ending: Ending, info: Mapping[str, Any]) -> None:
        """End it with what its last ``info`` says of it."""
        self.ending, success = ending, info.get("success")
        self.success = None if success is None else bool(success)
        self.metrics = {name: float(value) for name, value in info.get("metrics", {}).items()}
        self.facts = dict(info.get("facts") or {})

    def to_episode(self, histories: tuple[TokenHistory, ...]) -> Episode:
        """The episode, which has ended, with its tokens."""
        assert self.ending is not None
        return Episode(
            env_id=self.env_id,
            task_id=self.task_id,
            seed=self.seed,
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


@dataclass(eq=False, slots=True, kw_only=True)
class _EnvEpisode(LiveEpisode):
    """A live episode of an environment."""

    index: int
    env: TextEnvironment


def rollout_episodes(
    policy: Policy,
    make_env: EnvSource | EnvPool,
    specs: Sequence[EpisodeSpec],
    *,
    on_end: Callable[[int, Episode], None] | None = None,
    **options: Unpack[RolloutOptions],
) -> list[Episode]:
    """Play one episode for each spec.

    An exception in the environment, or in the policy about one conversation, becomes that episode's ending.
    An exception that concerns the whole policy, and Ctrl-C, release everything and propagate.

    Args:
        policy: The policy that plays.
        make_env: As of :func:`.evaluate`, or a pool of environments, which stays open.
        specs: Where the episodes start.
        on_end: Called like ``on_episode``, with the episode's index in ``specs`` before it.
        **options: See :class:`RolloutOptions`.

    Returns:
        The episodes, in the order of their specs.

    Raises:
        TypeError: For an option that there is not.
        ValueError: If ``max_concurrent`` is below 1.
    """
    require_known(options, RolloutOptions)
    max_concurrent = options.get("max_concurrent")
    limit = DEFAULT_MAX_CONCURRENT if max_concurrent is None else max_concurrent
    if limit < 1:
        raise ValueError(f"max_concurrent must be at least 1, got {limit}")
    with nullcontext(make_env) if isinstance(make_env, EnvPool) else EnvPool(make_env) as pool:
        return _EpisodeRunner(policy, pool, on_end, options).run(specs, limit)


def group_specs(
    seeds: Iterable[int],
    group_size: int,
    *,
    rng_seed: int | Sequence[int] = 0,
    options: Mapping[str, Any] | None = None,
) -> list[GroupSpec]:
    """Return the specs of groups with one seed each.

    Args:
        seeds: One for each group, for ``reset``.
        group_size: Episodes in a group.
        rng_seed: Seeds the policy's randomness; every episode draws its own from it.
        options: For every ``reset``.
    """
    root = (rng_seed,) if isinstance(rng_seed, int) else tuple(rng_seed)
    return [GroupSpec(seed, group_size, (*root, place), options) for place, seed in enumerate(seeds)]


def rollout_groups(
    policy: Policy,
    make_env: EnvSource | EnvPool,
    groups: Sequence[GroupSpec],
    *,
    on_group: Callable[[int, Group], None] | None = None,
    **options: Unpack[RolloutOptions],
) -> list[Group]:
    """Play groups of episodes that start alike; see :func:`rollout_episodes`.

    Args:
        policy: The policy that plays.
        make_env: As of :func:`rollout_episodes`.
        groups: What to play, see :func:`group_specs`.
        on_group: Called with each group as its last episode ends, its index in ``groups`` before it.
        **options: See :class:`RolloutOptions`.

    Returns:
        The groups, in the order of their specs.
    """
    collector = GroupCollector(groups, on_group)
    rollout_episodes(policy, make_env, collector.episodes, on_end=collector.add, **options)
    return collector.groups()


class GroupCollector:
    """Puts the episodes of groups together, in whatever order they end.

    Args:
        groups: The groups.
        on_group: Called with each group as its last episode ends, its index in ``groups`` before it.

    Attributes:
        episodes: Where each episode starts; its ``group`` is the index of its group.
    """

    def __init__(
        self, groups: Sequence[GroupSpec], on_group: Callable[[int, Group], None] | None = None
    ) -> None:
        self.episodes = [
            group.episode(member, place) for place, group in enumerate(groups) for member in range(group.size)
        ]
        self._specs = groups
        self._on_group = on_group
        self._ended: list[dict[int, Episode]] = [{} for _ in groups]
        self._finished: dict[int, Group] = {}

    def add(self, index: int, episode: Episode) -> None:
        """Take an episode that has ended, by its index in ``episodes``."""
        place = self.episodes[index].group
        self._ended[place][index] = episode
        if len(self._ended[place]) == self._specs[place].size:
            self._finished[place] = group_of([one for _, one in sorted(self._ended[place].items())])
            if self._on_group is not None:
                self._on_group(place, self._finished[place])

    def groups(self) -> list[Group]:
        """All groups, in the order of their specs; every episode has ended."""
        return [self._finished[place] for place in range(len(self._specs))]


def group_of(episodes: Sequence[Episode]) -> Group:
    """Return the group of some episodes; one whose reset raised takes its task's name from the others."""
    task_id = next((e.task_id for e in episodes if e.observation), episodes[0].task_id)
    return Group(tuple(e if e.observation else dataclasses.replace(e, task_id=task_id) for e in episodes))


@contextmanager
def _stepping(threads: int) -> Iterator[Callable[..., Future[None]]]:
    """Yield a function that submits a call: to threads, or with 0 threads by calling it at once."""
    if threads < 0:
        raise ValueError(f"env_threads must be at least 0, got {threads}")
    if threads:
        pool = ThreadPoolExecutor(threads, thread_name_prefix="env")
        try:
            yield pool.submit
        finally:
            pool.shutdown(cancel_futures=True)
        return

    def call(function: Callable[..., None], *arguments: Any) -> Future[None]:
        done: Future[None] = Future()
        function(*arguments)
        done.set_result(None)
        return done

    yield call


class _EpisodeRunner:
    """Plays episodes concurrently until all are done."""

    def __init__(
        self,
        policy: Policy,
        pool: EnvPool,
        on_end: Callable[[int, Episode], None] | None,
        options: RolloutOptions,
    ) -> None:
        self._policy = policy
        self._pool = pool
        self._on_end = on_end
        self._options = options
        self._live: dict[Conversation, _EnvEpisode] = {}
        self._done: dict[int, Episode] = {}
        self._calls = SlowCalls()

    def run(self, specs: Sequence[EpisodeSpec], limit: int) -> list[Episode]:
        threads = self._options.get("env_threads", 0)
        try:
            with self._calls.watched(), _stepping(threads) as step:
                self._play_all(specs, limit, step, overlapping=threads > 0)
        finally:
            for conversation, live in self._live.items():
                self._policy.release(conversation)
                self._pool.release(live.env)
        return [self._done[index] for index in range(len(specs))]

    def _play_all(
        self,
        specs: Sequence[EpisodeSpec],
        limit: int,
        step: Callable[..., Future[None]],
        *,
        overlapping: bool,
    ) -> None:
        waiting = iter(enumerate(specs))
        stepping: list[tuple[Conversation, _EnvEpisode, Future[None]]] = []
        while len(self._done) < len(specs):
            while len(self._live) < limit and (entry := next(waiting, None)) is not None:
                self._begin(*entry)
            replies = self._policy.collect() if self._live else []
            stepped = stepping
            stepping = [(c, self._live[c], step(self._play, self._live[c], reply)) for c, reply in replies]
            if not overlapping:
                stepped, stepping = stepping, []
            # With threads, the environments of these replies are stepped while the next replies are sampled.
            for conversation, live, done in stepped:
                done.result()
                self._advance(live, conversation)

    def _begin(self, index: int, spec: EpisodeSpec) -> None:
        env = self._pool.acquire()
        task_id = f"seed-{spec.seed}"
        live = _EnvEpisode(env_id=env_name(env), task_id=task_id, seed=spec.seed, index=index, env=env)
        try:
            options = None if spec.options is None else dict(spec.options)
            with self._calls.during(f"reset of {_place(live)}"):
                returned: Any = env.reset(seed=spec.seed, options=options)
            observation, info = _of_form(returned, "reset", _RESET)
            live.observation = _text(observation)
            live.task_id = str(info.get("task_id", live.task_id))
            live.tools = _schemas(info)
        except _FAULTS:
            live.fail(Ending.ENV_ERROR, last_line())
            self._end(live)
            return
        rng = np.random.default_rng(spec.rng_seed)
        messages = first_messages(observation, info.get("system") or "")
        conversation = Conversation(env, messages, list(live.tools), rng, spec.group)
        live.conversation = conversation
        self._live[conversation] = live
        self._submit(live, conversation)

    def _submit(self, live: _EnvEpisode, conversation: Conversation) -> None:
        try:
            self._policy.submit(conversation)
        except Exception:  # a policy's fault about one conversation is that episode's outcome
            live.fail(Ending.POLICY_ERROR, last_line())
            self._end(live)

    def _play(self, live: _EnvEpisode, reply: Reply) -> None:
        """Step the environment with a reply; the ending is set if it was the last one."""
        if reply.error is not None:
            live.fail(Ending.POLICY_ERROR, reply.error)
        elif reply.context_full:
            live.ending = Ending.CONTEXT_FULL
            _truncate(live)
        else:
            self._step(live, reply)

    def _advance(self, live: _EnvEpisode, conversation: Conversation) -> None:
        """End the episode, or request its next reply."""
        if live.ending is not None:
            self._end(live)
            return
        conversation.messages.append({"role": "user", "content": live.turns[-1].observation})
        self._submit(live, conversation)

    def _step(self, live: _EnvEpisode, reply: Reply) -> None:
        try:
            state = state_digest(live.env) if self._options.get("record_states") else None
            with self._calls.during(f"step of {_place(live)}"):
                returned: Any = live.env.step(reply.text)
            observation, reward, terminated, truncated, info = _of_form(returned, "step", _STEP)
            turn = turn_of(
                reply.text, _text(observation), reward, info, cut=reply.stop == "length", state=state
            )
            if terminated or truncated:
                live.end(Ending.TERMINATED if terminated else Ending.TRUNCATED, info)
        except _FAULTS:
            live.fail(Ending.ENV_ERROR, last_line())
            return
        live.turns.append(turn)

    def _end(self, live: _EnvEpisode) -> None:
        histories: tuple[TokenHistory, ...] = ()
        if live.conversation is not None:
            del self._live[live.conversation]
            histories = self._policy.release(live.conversation)
        # An environment that raised is in an unknown state: the next episode gets a new one.
        if live.ending is Ending.ENV_ERROR:
            live.env.close()
        else:
            self._pool.release(live.env)
        episode = live.to_episode(histories)
        self._done[live.index] = episode
        if (on_episode := self._options.get("on_episode")) is not None:
            on_episode(episode)
        if self._on_end is not None:
            self._on_end(live.index, episode)


def _place(live: _EnvEpisode) -> str:
    return f"{live.env_id} (seed {live.seed}, turn {len(live.turns) + 1})"


def _truncate(live: _EnvEpisode) -> None:
    """End the environment's episode as at its turn limit, and add what that pays to the last turn."""
    if not live.turns:
        return
    try:
        info = truncate(live.env)
    except _FAULTS:
        live.fail(Ending.ENV_ERROR, last_line())
        return
    paid = info.get("score_terms", {})
    live.turns[-1] = paid_more(live.turns[-1], sum(paid.values()), paid)
    live.end(Ending.CONTEXT_FULL, info)


def paid_more(turn: Turn, reward: float, terms: Mapping[str, float]) -> Turn:
    """Return a turn with what is paid besides."""
    total = dict(turn.score_terms)
    add_terms(total, terms)
    return replace(turn, reward=turn.reward + float(reward), score_terms=total)


def with_truncation_penalty(group: Group, penalty: float) -> Group:
    """Return a group in which each reply that its limit of tokens cut off costs a penalty."""
    if not penalty:
        return group
    terms = {"truncated": -penalty}
    turns = [[paid_more(t, -penalty, terms) if t.cut else t for t in one.turns] for one in group.episodes]
    return Group(tuple(replace(e, turns=tuple(own)) for e, own in zip(group.episodes, turns, strict=True)))


def turn_of(reply: str, observation: str, reward: Any, info: Mapping[str, Any], **more: Any) -> Turn:
    """Return the turn of a reply, with what a step's ``info`` says of it."""
    terms = {
        name: _finite(value, f"score term {name!r}") for name, value in info.get("score_terms", {}).items()
    }
    call, error = info.get("call"), info.get("error")
    return Turn(
        reply, observation, _finite(reward, "the reward of a step"), terms, call=call, error=error, **more
    )


def first_messages(observation: str, system: str) -> list[dict[str, Any]]:
    """Return an episode's first messages: instructions become the system message, the rest the user's.

    Args:
        observation: The first observation.
        system: The instructions it may begin with, before an empty line.
    """
    head = f"{system}\n\n"
    if system and observation.startswith(head) and len(observation) > len(head):
        return [
            {"role": "system", "content": system},
            {"role": "user", "content": observation.removeprefix(head)},
        ]
    return [{"role": "user", "content": observation}]


def _finite(value: Any, what: str) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{what} must be a finite number, the environment gave {value!r}")
    return found


def _of_form(returned: Any, call: str, names: Sequence[str]) -> Any:
    """What a call of an environment returned, if it has the form that Gymnasium asks for."""
    if not isinstance(returned, tuple) or len(returned) != len(names):
        wanted, given = ", ".join(names), reprlib.repr(returned)
        raise TypeError(f"{call} must return ({wanted}), the environment gave {given}")
    if not isinstance(returned[-1], Mapping):
        raise TypeError(f"the info that {call} returns must be a dict, the environment gave {returned[-1]!r}")
    return returned


def _schemas(info: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    tools = tuple(info.get("tools") or ())
    if not all(isinstance(tool, Mapping) for tool in tools):
        raise TypeError(f"info['tools'] must be a list of tool schemas, got {info['tools']!r}")
    return tools


def _text(observation: object) -> str:
    if not isinstance(observation, str):
        raise TypeError(f"the observation of a text environment is a str, got {type(observation).__name__}")
    return observation


def last_line() -> str:
    """Return the exception being handled as the last line of its traceback, with the user's own line."""
    line, error = traceback.format_exc().strip().splitlines()[-1], sys.exception()
    place = None if error is None else user_line(error)
    return f"{line} ({place})" if place else line
