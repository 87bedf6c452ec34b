"""One episode as a tree of observations, for any tracing backend.

::

    agent                      the episode: first observation in, last reply and outcome out
    ├─ generation  turn 0      one reply of the model: what it newly read, what it said, tokens, latency
    ├─ action      turn 0      what came of it: tool, parameters, result, reward, execution time
    ├─ generation  turn 1
    …
    scores                     reward, success, each term of the score, judgements

The tree is plain data and made by pure functions. Its ids follow from the run, the step and the episode's
place in it, so what is delivered twice replaces itself where the backend goes by ids.

A generation's input is what the model had not read before, so a trace grows with the episode's length and not
with its square; :func:`messages_before` has the whole prompt.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from art_trainer.episodes import Episode, Turn
from art_trainer.monitoring.events import EpisodesPlayed, RunInfo
from art_trainer.timings import EpisodeTiming, TurnTiming

Message = dict[str, str]

_SECOND = 1_000_000_000
_UNMEASURED = 1_000  # ns; what has no measured length still comes before what follows it
_NO_TIMING = TurnTiming()


@dataclass(frozen=True, slots=True)
class Sampling:
    """How replies were sampled; ``None`` where it is not known."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None

    @classmethod
    def of(cls, run: RunInfo) -> Sampling:
        """Read the trainer's settings ``temperature``, ``top_p`` and ``max_completion_length``.

        They may stand at the top of ``run.config`` or in one of its sections.
        """
        sections = [run.config, *(part for part in run.config.values() if isinstance(part, Mapping))]

        def setting(name: str) -> Any:
            return next((part[name] for part in sections if part.get(name) is not None), None)

        return cls(run.model, setting("temperature"), setting("top_p"), setting("max_completion_length"))


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What tells one run's traces from another's, the same in every process that delivers them.

    Attributes:
        run_id: The run's name and a few digits that no other run of that name has.
        started_ns: Unix time in ns when the run was first opened; episodes whose time is not known are put
            one second a step after it.
    """

    run_id: str
    started_ns: int

    @classmethod
    def of(cls, run: RunInfo, resume: Mapping[str, Any] | None, *, now_ns: int | None = None) -> RunIdentity:
        """Take the identity up from ``resume``, or give the run a new one.

        Args:
            run: The run.
            resume: What :meth:`state` gave in an earlier process.
            now_ns: The time; by default the clock's.
        """
        if resume is not None and "run_id" in resume:
            return cls(str(resume["run_id"]), int(resume["started_ns"]))
        started = time.time_ns() if now_ns is None else now_ns
        digits = short_digest(f"{run.project}\n{run.name}\n{run.folder.absolute()}\n{started}")
        return cls(f"{run.name}-{digits}", started)

    def state(self) -> dict[str, Any]:
        """What :meth:`of` takes up; JSON-able."""
        return {"run_id": self.run_id, "started_ns": self.started_ns}

    def time_of(self, step: int) -> int:
        """A time for what is known to be of a step and no more, in ns: the same however often it is asked."""
        return self.started_ns + step * _SECOND


@dataclass(frozen=True, slots=True)
class Generation:
    """One reply of the model."""

    span_id: str
    turn: int
    start_ns: int
    end_ns: int
    prompt: tuple[Message, ...]
    """What the model read since its last reply."""
    reply: str
    input_tokens: int | None
    """All tokens before the reply; ``None`` where the episode came without tokens."""
    output_tokens: int | None
    policy_version: int | None
    seconds: float | None
    """From the request to the whole reply; ``None`` where it was not measured."""
    stop: Literal["stop", "length"] = "stop"
    """``"length"`` where the reply is known to be as long as a reply may be."""


@dataclass(frozen=True, slots=True)
class Action:
    """What came of one reply."""

    span_id: str
    turn: int
    start_ns: int
    end_ns: int
    tool: str
    """The tool's name; ``invalid_reply`` where no call could be read, ``reply`` where there are no tools."""
    arguments: Mapping[str, Any]
    result: str
    reward: float
    score_terms: Mapping[str, float]
    error: str | None
    """What was wrong with the reply."""
    seconds: float | None
    """How long the environment took; ``None`` where it was not measured."""


@dataclass(frozen=True, slots=True)
class Score:
    """A number about a whole episode; always finite."""

    score_id: str
    name: str
    value: float
    boolean: bool = False
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """An episode as a tree; the agent's own data are the episode's."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """The agent's, 16 hexadecimal digits."""
    run_id: str
    episode_id: str
    step: int
    start_ns: int
    end_ns: int
    timed: bool
    """Whether the times were measured."""
    scored_ns: int
    """Time of the scores: the same at every delivery, since backends may take a score of the same id and
    another time for another score."""
    sampling: Sampling
    episode: Episode
    generations: tuple[Generation, ...]
    actions: tuple[Action, ...]
    scores: tuple[Score, ...]


def event_traces(event: EpisodesPlayed, identity: RunIdentity, sampling: Sampling) -> Iterator[Trace]:
    """The traces of a step's episodes, in their order."""
    timings = event.timings or (None,) * len(event.episodes)
    for index, (episode, timing) in enumerate(zip(event.episodes, timings, strict=True)):
        yield episode_trace(episode, identity, event.step, event.episode_id(index), sampling, timing)


def episode_trace(
    episode: Episode,
    identity: RunIdentity,
    step: int,
    episode_id: str,
    sampling: Sampling,
    timing: EpisodeTiming | None = None,
) -> Trace:
    """Build one episode's tree.

    Args:
        episode: The episode, with or without token histories.
        identity: The run's.
        step: The training step it was played for.
        episode_id: The episode's in its run.
        sampling: How its replies were sampled.
        timing: When it was played, where that was measured.

    Raises:
        ValueError: Where ``timing`` is not of as many turns as the episode.
    """
    if timing is not None and len(timing.turns) != len(episode.turns):
        raise ValueError(
            f"episode {episode_id} has {len(episode.turns)} turns and timings of {len(timing.turns)}"
        )
    seed = f"{identity.run_id}/{episode_id}"
    start = identity.time_of(step) if timing is None else round(timing.started * 1e6) * 1_000
    usage = token_usage(episode)
    now, generations, actions = start, [], []
    for number, turn in enumerate(episode.turns):
        took = _NO_TIMING if timing is None else timing.turns[number]
        replied = now + _length(took.reply_seconds)
        acted = replied + _length(took.action_seconds)
        tokens = usage.get(number)
        generations.append(
            Generation(
                span_id=_digest(f"{seed}/generation/{number}", 8),
                turn=number,
                start_ns=now,
                end_ns=replied,
                prompt=({"role": "user", "content": _shown(episode, number)},),
                reply=turn.reply,
                input_tokens=None if tokens is None else tokens.read,
                output_tokens=None if tokens is None else tokens.sampled,
                policy_version=None if tokens is None else tokens.version,
                seconds=took.reply_seconds,
                stop="length" if tokens is not None and tokens.sampled == sampling.max_tokens else "stop",
            )
        )
        span_id = _digest(f"{seed}/action/{number}", 8)
        actions.append(_action(turn, number, span_id, replied, acted, took.action_seconds))
        now = acted
    return Trace(
        trace_id=_digest(seed, 16),
        span_id=_digest(f"{seed}/agent", 8),
        run_id=identity.run_id,
        episode_id=episode_id,
        step=step,
        start_ns=start,
        end_ns=max(now, start + _UNMEASURED),
        timed=timing is not None,
        scored_ns=identity.time_of(step),
        sampling=sampling,
        episode=episode,
        generations=tuple(generations),
        actions=tuple(actions),
        scores=tuple(_scores(episode, seed)),
    )


def messages_before(episode: Episode, turn: int) -> list[Message]:
    """The conversation that a turn's reply answered, as chat messages; it ends with an observation.

    Where a policy has a window, it was shown the newest of these only.
    """
    messages = [{"role": "user", "content": episode.observation}]
    for past in episode.turns[:turn]:
        messages.append({"role": "assistant", "content": past.reply})
        messages.append({"role": "user", "content": past.observation})
    return messages


def well_formed(text: str) -> str:
    """Return the text with ``?`` for what UTF-8 has no form for: halves of surrogate pairs."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one turn."""

    read: int
    """Before the reply, in its own context."""
    sampled: int
    version: int
    """Of the weights that sampled the last of them."""


def token_usage(episode: Episode) -> dict[int, TokenUsage]:
    """Tokens by turn; empty for an episode without token histories."""
    usage: dict[int, TokenUsage] = {}
    for history in episode.histories:
        place = 0
        for span in history.spans:
            if span.turn is not None:
                before = usage.get(span.turn)
                usage[span.turn] = TokenUsage(
                    place if before is None else before.read,
                    len(span.token_ids) + (0 if before is None else before.sampled),
                    span.policy_version,
                )
            place += len(span.token_ids)
    return usage


def short_digest(text: str) -> str:
    """Eight hexadecimal digits that follow from a text and do not give it away."""
    return _digest(text, 4)


def _shown(episode: Episode, turn: int) -> str:
    return episode.observation if turn == 0 else episode.turns[turn - 1].observation


def _action(turn: Turn, number: int, span_id: str, start: int, end: int, seconds: float | None) -> Action:
    call = turn.call or {}
    unnamed = "reply" if turn.error is None else "invalid_reply"
    return Action(
        span_id=span_id,
        turn=number,
        start_ns=start,
        end_ns=end,
        tool=str(call.get("name", unnamed)),
        arguments=call.get("arguments") or {},
        result=turn.observation,
        reward=turn.reward,
        score_terms=turn.score_terms,
        error=None if turn.error is None else str(turn.error.get("message", turn.error)),
        seconds=seconds,
    )


def _scores(episode: Episode, seed: str) -> Iterator[Score]:
    found: list[tuple[str, float, bool, str]] = [("reward", episode.reward, False, "")]
    if episode.success is not None:
        found.append(("success", float(episode.success), True, ""))
    if episode.independent_reward is not None:
        found.append(("independent_reward", episode.independent_reward, False, ""))
    found += [(f"term.{name}", value, False, "") for name, value in episode.score_terms.items()]
    for judge, said in episode.judgements.items():
        found.append((f"judge.{judge}", said.score, False, said.explanation))
        found += [(f"judge.{judge}.{part}", value, False, "") for part, value in said.parts.items()]
    for name, value, boolean, comment in found:
        if math.isfinite(value):
            score_id = _digest(f"{seed}/score/{name}", 16)
            yield Score(score_id, well_formed(name), value, boolean, well_formed(comment))


def _length(seconds: float | None) -> int:
    return _UNMEASURED if seconds is None else max(round(seconds * _SECOND), _UNMEASURED)


def _digest(seed: str, size: int) -> str:
    """An id of ``2 * size`` hexadecimal digits, as Langfuse's own ``create_trace_id(seed=…)`` makes them."""
    return hashlib.sha256(seed.encode("utf-8", "replace")).digest()[:size].hex()
