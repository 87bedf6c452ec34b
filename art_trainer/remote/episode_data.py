"""An episode as a worker sends it, see :class:`art_trainer.episodes.Episode`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from art_trainer.episodes import Episode
from art_trainer.remote.fields import Count, Json, Message, Real, Reals, Seconds, Short, Version
from art_trainer.timings import EpisodeTiming, TurnTiming

_JSON: TypeAdapter[Any] = TypeAdapter(Any)


class SpanData(Message):
    """Consecutive tokens of one origin: read by the policy, or sampled in one turn."""

    token_ids: list[Annotated[int, Field(ge=0, le=2**31)]]
    """The tokens, as they were read or sampled; never made from text again."""
    turn: Count | None
    """The turn that sampled them, from 0; ``null`` for tokens that were read: prompts and observations."""
    logprobs: list[Annotated[float, Field(ge=-1e4, le=1e-3)]]
    """Of each sampled token under the distribution it was sampled from; empty for those that were read."""
    policy_version: Version
    """Of the weights that sampled or read them."""


class HistoryData(Message):
    """The tokens of one uninterrupted context, as the model read and sampled them."""

    spans: list[SpanData]
    """In order."""


class TurnData(Message):
    """A reply, and what came of it."""

    reply: str
    """What the policy said."""
    observation: str
    """What the environment answered."""
    reward: Real
    """What it paid for the reply."""
    score_terms: Reals
    """The reward's named parts."""
    call: dict[str, Json] | None
    """The tool call that was read from the reply, ``{"name": …, "arguments": {…}}``."""
    error: dict[str, Json] | None
    """What was wrong with the reply, ``{"kind": …, "message": …}``; ``null`` for a valid one."""
    cut: bool
    """Whether the reply ran into its limit of tokens."""
    state: str | None
    """A digest of the environment's state before the reply, where the run wants it; else ``null``."""


class EpisodeData(Message):
    """One attempt at one task."""

    env_id: Short
    """The environment's id."""
    task_id: Short
    """The task's name in it; the same in all episodes of a group."""
    seed: Version
    """The lease's."""
    observation: str
    """What the environment showed first."""
    turns: list[TurnData]
    """In order."""
    histories: list[HistoryData]
    """Usually one; several where a chat template rewrites what was said before."""
    ending: Literal["terminated", "truncated", "context_full", "env_error", "policy_error"]
    """``terminated``: the environment ended it. ``truncated``: it was out of turns. ``context_full``: the
    next observation and reply have no room. The others are faults, and ``error`` says which."""
    success: bool | None
    """Whether the task was done, where the environment says so."""
    metrics: Reals
    """Numbers that the environment told at the end."""
    error: str | None
    """The fault's words."""
    tools: list[dict[str, Json]]
    """Schemas of the tools that the policy had, as in OpenAI's API."""
    facts: dict[str, Json]
    """What the environment told for judges at the end."""
    judgements: dict[str, Json] = Field(max_length=0)
    """Empty: judging is the server's."""
    independent_reward: None
    """``null``, likewise."""
    unjudged: None
    """``null``, likewise."""

    @classmethod
    def of(cls, episode: Episode) -> EpisodeData:
        """An episode for the wire."""
        return cls.model_validate_json(_JSON.dump_json(episode.to_json()))

    def episode(self) -> Episode:
        """The episode.

        Raises:
            ValueError: Where its parts contradict each other.
        """
        return Episode.from_json(self.model_dump(mode="json"))


class TimingData(Message):
    """When and how long it was played, by the worker's clock: for people, never for deadlines."""

    started: Seconds
    """Seconds since 1970."""
    turns: list[tuple[Seconds | None, Seconds | None]]
    """Seconds of each turn's reply and action."""

    @classmethod
    def of(cls, timing: EpisodeTiming) -> TimingData:
        """A timing for the wire."""
        turns = [(turn.reply_seconds, turn.action_seconds) for turn in timing.turns]
        return cls(started=timing.started, turns=turns)

    def timing(self) -> EpisodeTiming:
        """The timing."""
        return EpisodeTiming(self.started, tuple(TurnTiming(*turn) for turn in self.turns))
