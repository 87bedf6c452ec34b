"""What a rollout leaves behind: plain frozen data that can be printed, pickled, saved as JSON and replayed.

A task becomes an :class:`Episode` of turns; the tokens of its turns lie in one or more
:class:`TokenHistory`; episodes of one task and seed make a :class:`Group`. A bad rollout is data, not a
crash: how an episode ended is its :class:`Ending`, and an exception's words are kept in ``error``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


class Ending(enum.StrEnum):
    """How an episode ended."""

    TERMINATED = "terminated"
    """The environment said so."""
    TRUNCATED = "truncated"
    """The environment's turn limit was reached."""
    CONTEXT_FULL = "context_full"
    """The next observation and reply would not fit into the model's context."""
    ENV_ERROR = "env_error"
    """The environment raised; ``Episode.error`` has the words."""
    POLICY_ERROR = "policy_error"
    """The policy raised; ``Episode.error`` has the words."""


CUT_OFF = (Ending.TRUNCATED, Ending.CONTEXT_FULL)
"""Endings by a limit."""


@dataclass(frozen=True, slots=True)
class Span:
    """A run of consecutive tokens with one origin.

    Attributes:
        token_ids: The tokens, in order.
        turn: The turn that sampled them, from 0; ``None`` for tokens the policy read (prompt, observation).
        logprobs: For a sampled span the log-probability of each token under the distribution it was
            sampled from, same length as ``token_ids``; empty otherwise.
        policy_version: The version of the weights that sampled or read the span.
    """

    token_ids: tuple[int, ...]
    turn: int | None = None
    logprobs: tuple[float, ...] = ()
    policy_version: int = 0

    def __post_init__(self) -> None:
        wanted = 0 if self.turn is None else len(self.token_ids)
        if len(self.logprobs) != wanted:
            raise ValueError(
                f"a span of {len(self.token_ids)} tokens with turn={self.turn} needs {wanted} log-probs, "
                f"got {len(self.logprobs)}"
            )


@dataclass(frozen=True, slots=True)
class TokenHistory:
    """The tokens of one uninterrupted context, as the model saw and sampled them; never re-tokenised."""

    spans: tuple[Span, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens, in order."""
        return tuple(token for span in self.spans for token in span.token_ids)

    @property
    def action_mask(self) -> tuple[bool, ...]:
        """For each token whether the policy sampled it."""
        return tuple(span.turn is not None for span in self.spans for _ in span.token_ids)

    @property
    def turns(self) -> tuple[int, ...]:
        """For each sampled token the turn it belongs to, from 0."""
        return tuple(span.turn for span in self.spans if span.turn is not None for _ in span.token_ids)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """For each sampled token its log-probability when sampled."""
        return tuple(logprob for span in self.spans for logprob in span.logprobs)

    @property
    def prompt_length(self) -> int:
        """How many tokens stand before the first sampled one."""
        length = 0
        for span in self.spans:
            if span.turn is not None:
                break
            length += len(span.token_ids)
        return length


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply and what came of it."""

    reply: str
    observation: str
    reward: float
    score_terms: Mapping[str, float] = field(default_factory=dict)
    call: Mapping[str, Any] | None = None
    """The tool call that was read from the reply, ``{"name": …, "arguments": {…}}``."""
    error: Mapping[str, Any] | None = None
    """What was wrong with the reply, ``{"kind": …, "message": …}``; ``None`` for a valid call."""
    cut: bool = False
    """Whether the reply ran into the limit of tokens, instead of being ended by the policy."""
    state: str | None = None
    """The environment's state before the reply, as :func:`art_trainer.rollout.envs.state_digest` gives
    it; ``None``
    where the rollout was not asked for it or the environment cannot tell."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a judge said about an episode."""

    score: float
    """From 0 to 1."""
    explanation: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Each criterion's own score, if the judge has them."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One attempt at one task."""

    env_id: str
    task_id: str
    seed: int
    observation: str
    """The first observation."""
    turns: tuple[Turn, ...]
    histories: tuple[TokenHistory, ...]
    """Usually one; several where a chat template rewrites the past; none for a policy without tokens."""
    ending: Ending
    success: bool | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    """Schemas of the tools the agent had."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the environment told judges at the end."""
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    """By the judge's name, if the reward was not the environment's alone."""
    independent_reward: float | None = None
    """What the environment itself paid, if the turns' rewards are not that."""
    unjudged: str | None = None
    """Why no judge could score the group, in one word; ``error`` has the others."""

    @property
    def reward(self) -> float:
        """The sum of the turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def failed(self) -> bool:
        """Whether a fault, not the policy's play, ended it or left it unscored: it teaches nothing."""
        return self.unjudged is not None or self.ending in (Ending.ENV_ERROR, Ending.POLICY_ERROR)

    @property
    def invalid_actions(self) -> int:
        """How many replies held no valid call."""
        return sum(turn.error is not None for turn in self.turns)

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy sampled."""
        return sum(len(history.logprobs) for history in self.histories)

    @property
    def states(self) -> tuple[str, ...]:
        """For each turn what it was played in: the state that was noted, else the observation it answered."""
        shown = (self.observation, *(turn.observation for turn in self.turns))
        pairs = zip(self.turns, shown, strict=False)
        return tuple(seen if turn.state is None else turn.state for turn, seen in pairs)

    @property
    def score_terms(self) -> dict[str, float]:
        """The named parts of the reward, summed over the turns."""
        terms: dict[str, float] = {}
        for turn in self.turns:
            for name, value in turn.score_terms.items():
                terms[name] = terms.get(name, 0.0) + value
        return terms


@dataclass(frozen=True, slots=True)
class Group:
    """Attempts at one task from one seed: all started from the same state and met the same chance."""

    episodes: tuple[Episode, ...]

    def __post_init__(self) -> None:
        starts = {(e.env_id, e.task_id, e.seed) for e in self.episodes}
        if len(starts) != 1:
            raise ValueError(f"a group holds attempts at one task from one seed, got {sorted(starts)}")

    @property
    def task_id(self) -> str:
        """The task all members attempt."""
        return self.episodes[0].task_id

    @property
    def rewards(self) -> tuple[float, ...]:
        """Each episode's reward, in order."""
        return tuple(episode.reward for episode in self.episodes)

    @property
    def whole(self) -> bool:
        """Whether no member failed; a group that is not whole is dropped whole."""
        return not any(episode.failed for episode in self.episodes)


# Where episodes and groups of them start, as plain data that can be played here or sent elsewhere.


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Where an episode starts; equal seeds and options start from the same state."""

    seed: int
    """For the environment's ``reset``."""
    options: Mapping[str, Any] | None = None
    """For the environment's ``reset``."""
    group: int = 0
    """Starts of one group share seed and options, so that a policy may compute their prompt once."""
    rng_seed: int | Sequence[int] = 0
    """Seeds the policy's randomness in this episode."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group that wants to be played: attempts at one task, from one state.

    Attributes:
        seed: For the environment's ``reset``.
        size: How many attempts.
        rng_seed: Seeds the policy's randomness in the group; no other group of a run has the same.
        options: For the environment's ``reset``.
        batch: Which batch of the run needs it, from 0.
    """

    seed: int
    size: int
    rng_seed: tuple[int, ...]
    options: Mapping[str, Any] | None = None
    batch: int = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a group has at least 1 attempt, got size={self.size}")

    @property
    def id(self) -> str:
        """Names it in its run."""
        return ".".join(map(str, self.rng_seed))

    def episode(self, member: int, group: int = 0) -> EpisodeSpec:
        """Where an attempt starts.

        Args:
            member: Which attempt, from 0.
            group: What the attempts of this group, and no others that are played with them, have in common.
        """
        return EpisodeSpec(self.seed, self.options, group, (*self.rng_seed, member))


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the confidence interval around it.

    Attributes:
        value: The estimate.
        low: The interval's lower end.
        high: The interval's upper end.
        count: How many episodes (or pairs of episodes) it rests on.
    """

    value: float
    low: float
    high: float
    count: int

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside the interval: the difference is more than luck."""
        return self.low > 0 or self.high < 0

    def within(self, lowest: float, highest: float) -> Interval:
        """Return the interval cut to the values that there are; ends that are not a number stay."""
        return replace(self, low=max(self.low, lowest), high=min(self.high, highest))
