"""Episodes as traces, for tracing backends: a tree of spans with scores, as plain data.

::

    agent                      the episode: first observation in, last reply and ending out
    ├─ generation  turn 0      one reply of the model: new messages in, reply out, tokens, latency
    ├─ tool        turn 0      its result: tool, arguments, observation, reward, execution time
    ├─ generation  turn 1
    …
    scores                     reward, success, each score term, judgements

Ids follow from the run, the step and the episode's index, so a backend that goes by ids stores once what is
delivered twice. A generation's input is what the model had not read before: a trace grows with the episode's
length, not with its square.
"""

from __future__ import annotations

import hashlib
import math
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from art_trainer.tracking.callbacks import Outcome
from art_trainer.tracking.sinks.base import EpisodesPlayed, RunInfo, Sink
from art_trainer.tracking.sinks.http import HttpClient
from art_trainer.types import Episode, EpisodeTiming, TurnTiming

_SECOND = 1_000_000_000  # ns
_UNMEASURED = 1_000  # ns; a span of unknown length still comes before what follows it
_SAMPLING = {"temperature": "temperature", "top_p": "top_p", "max_completion_length": "max_tokens"}
"""Settings of the trainer, and their names in a request to a model."""


@dataclass(frozen=True, slots=True)
class Node:
    """A span of a trace.

    Attributes:
        kind: What it shows.
        name: The environment, the model or the tool: ``invalid_reply`` if no call could be parsed, ``reply``
            if there are no tools.
        span_id: 16 hexadecimal digits.
        start_ns: Unix time.
        end_ns: Unix time, later than ``start_ns``.
        input: What the model read since its last reply; a tool's arguments.
        output: The reply; a tool's result.
        facts: What backends have no names for; ``None`` is unknown.
        error: What went wrong.
        usage: Of a generation, all tokens before the reply and those of it, if they are known.
        stop: Of a generation, ``"length"`` if the reply is known to be as long as allowed, else ``"stop"``.
    """

    kind: Literal["agent", "generation", "tool"]
    name: str
    span_id: str
    start_ns: int
    end_ns: int
    input: Any
    output: Any
    facts: Mapping[str, Any]
    error: str | None = None
    usage: tuple[int, int] | None = None
    stop: str = "stop"


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
    """An episode as a tree.

    Attributes:
        trace_id: 32 hexadecimal digits.
        run_id: The run's name and a few digits of its own.
        episode_id: The episode's id in its run.
        scored_ns: Time of the scores: the same at every delivery, since a backend may go by id and time.
        model: Name of the model.
        sampling: How replies were sampled, by the names of OpenAI's API, as far as it is known.
        episode: The episode.
        nodes: The agent, whose children the others are, then a generation and a tool for each turn.
        scores: The scores.
    """

    trace_id: str
    run_id: str
    episode_id: str
    scored_ns: int
    model: str
    sampling: Mapping[str, float]
    episode: Episode
    nodes: Sequence[Node]
    scores: Sequence[Score]


class TraceSink(Sink):
    """Base class of the sinks that send episodes as traces over HTTP. Metrics and checkpoints are ignored."""

    http: HttpClient
    destination: str
    """Where the traces go, without secrets."""

    def open(self, run: RunInfo, *, resume: Mapping[str, Any] | None) -> None:
        """Begin or resume a run; nothing is sent yet."""
        super().open(run, resume=resume)
        self.tracer = Tracer.of(run, resume or {})

    def on_episodes(self, event: EpisodesPlayed) -> None:
        """Send a step's traces."""
        self.send(event.step, self.tracer.traces(event))

    @abstractmethod
    def send(self, step: int, traces: Iterator[Trace]) -> None:
        """Send the traces of a step and wait for the server's answer.

        Raises:
            SinkUnavailableError: If the key was refused.
            SinkError: If the server could not be reached or did not take everything.
        """

    def state(self) -> dict[str, Any]:
        """The run's identity and destination."""
        identity = {"run_id": self.tracer.run_id, "started_ns": self.tracer.started_ns}
        return {**identity, "destination": self.destination}

    def close(self, outcome: Outcome) -> None:
        """Close the connections."""
        self.http.close()


@dataclass(frozen=True, slots=True)
class Tracer:
    """Builds the traces of one run, the same in every process that delivers them.

    Attributes:
        run_id: The run's name and a few digits of its own.
        started_ns: Unix time in ns when the run was first opened. Episodes whose time is not known are put
            one second a step after it.
        model: Name of the model.
        sampling: See :class:`Trace`.
    """

    run_id: str
    started_ns: int
    model: str
    sampling: Mapping[str, float]

    @classmethod
    def of(cls, run: RunInfo, resume: Mapping[str, Any]) -> Tracer:
        """Take the identity from a sink's earlier state, or make a new one."""
        started = int(resume.get("started_ns", time.time_ns()))
        digits = digest(f"{run.project}\n{run.name}\n{run.folder.absolute()}\n{started}", 4)
        values = {name: run.config.get(setting) for setting, name in _SAMPLING.items()}
        sampling = {name: value for name, value in values.items() if value is not None}
        return cls(str(resume.get("run_id", f"{run.name}-{digits}")), started, run.model, sampling)

    def traces(self, event: EpisodesPlayed) -> Iterator[Trace]:
        """Yield the traces of a step's episodes.

        Raises:
            ValueError: If a timing has another number of turns than its episode.
        """
        timings = event.timings or (None,) * len(event.episodes)
        for index, (episode, timing) in enumerate(zip(event.episodes, timings, strict=True)):
            yield self.trace(episode, event.step, event.episode_id(index), timing)

    def trace(
        self, episode: Episode, step: int, episode_id: str, timing: EpisodeTiming | None = None
    ) -> Trace:
        """Build one episode's trace; as :meth:`traces`.

        Args:
            episode: The episode, with or without token histories.
            step: The training step it was played for.
            episode_id: The episode's in its run.
            timing: When it was played, if that was measured.
        """
        seed = f"{self.run_id}/{episode_id}"
        untimed = self.started_ns + step * _SECOND
        start = untimed if timing is None else round(timing.started * 1e6) * 1_000
        turns = list(self._turns(episode, seed, start, timing))
        facts = {
            "step": step,
            "episode_id": episode_id,
            "task_id": episode.task_id,
            "seed": episode.seed,
            "ending": episode.ending.value,
            "success": episode.success,
            "reward": episode.reward,
            "turns": len(episode.turns),
            "invalid_actions": episode.invalid_actions,
            "sampled_tokens": episode.sampled_tokens,
            "unjudged": episode.unjudged,
            "timed": timing is not None,
            **{f"metric.{name}": value for name, value in episode.metrics.items()},
        }
        agent = Node(
            "agent",
            episode.env_id,
            digest(f"{seed}/agent", 8),
            start,
            turns[-1].end_ns if turns else start + _UNMEASURED,
            episode.observation,
            episode.turns[-1].reply if episode.turns else None,
            facts,
            episode.error,
        )
        return Trace(
            digest(seed, 16),
            self.run_id,
            episode_id,
            untimed,
            self.model,
            self.sampling,
            episode,
            (agent, *turns),
            tuple(_scores(episode, seed)),
        )

    def _turns(self, episode: Episode, seed: str, now: int, timing: EpisodeTiming | None) -> Iterator[Node]:
        """Yield a generation and a tool for each turn, one after the other in time."""
        unmeasured = (TurnTiming(),) * len(episode.turns)
        usage, prompt = token_usage(episode), episode.observation
        took = unmeasured if timing is None else timing.turns
        for number, (turn, times) in enumerate(zip(episode.turns, took, strict=True)):
            read, sampled, version = usage.get(number, (None, None, None))
            replied = now + _length(times.reply_seconds)
            yield Node(
                "generation",
                self.model,
                digest(f"{seed}/generation/{number}", 8),
                now,
                replied,
                prompt,
                turn.reply,
                {"turn": number, "policy_version": version, "latency_seconds": times.reply_seconds},
                usage=None if read is None or sampled is None else (read, sampled),
                stop="length" if sampled == self.sampling.get("max_tokens", -1) else "stop",
            )
            call, error = turn.call or {}, turn.error
            now, prompt = replied + _length(times.action_seconds), turn.observation
            yield Node(
                "tool",
                str(call.get("name", "reply" if error is None else "invalid_reply")),
                digest(f"{seed}/action/{number}", 8),
                replied,
                now,
                call.get("arguments") or {},
                turn.observation,
                {
                    "turn": number,
                    "reward": turn.reward,
                    "execution_seconds": times.action_seconds,
                    **{f"term.{name}": value for name, value in turn.score_terms.items()},
                },
                None if error is None else str(error.get("message", error)),
            )


def token_usage(episode: Episode) -> dict[int, tuple[int, int, int]]:
    """Return by turn the tokens before the reply in its own context, those of the reply, and the version.

    The version is that of the weights that sampled the last token. Without token histories it is empty.
    """
    usage: dict[int, tuple[int, int, int]] = {}
    for history in episode.histories:
        place = 0
        for span in history.spans:
            if span.turn is not None:
                read, sampled, _ = usage.get(span.turn, (place, 0, 0))
                usage[span.turn] = (read, sampled + len(span.token_ids), span.policy_version)
            place += len(span.token_ids)
    return usage


def well_formed(text: str) -> str:
    """Return the text with ``?`` for what UTF-8 cannot encode: lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def digest(text: str, size: int) -> str:
    """Return ``2 * size`` hexadecimal digits, as Langfuse's own ``create_trace_id(seed=…)`` makes them."""
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()[:size].hex()


def _scores(episode: Episode, seed: str) -> Iterator[Score]:
    numbers = {"reward": episode.reward, "independent_reward": episode.independent_reward}
    numbers |= {f"term.{name}": value for name, value in episode.score_terms.items()}
    comments = {}
    for judge, judgement in episode.judgements.items():
        numbers[f"judge.{judge}"] = judgement.score
        comments[f"judge.{judge}"] = judgement.explanation
        numbers |= {f"judge.{judge}.{part}": value for part, value in judgement.parts.items()}
    for name, value in numbers.items():
        if value is not None and math.isfinite(value):
            comment = well_formed(comments.get(name, ""))
            yield Score(digest(f"{seed}/score/{name}", 16), well_formed(name), value, comment=comment)
    if episode.success is not None:
        yield Score(digest(f"{seed}/score/success", 16), "success", float(episode.success), boolean=True)


def _length(seconds: float | None) -> int:
    return _UNMEASURED if seconds is None else max(round(seconds * _SECOND), _UNMEASURED)
