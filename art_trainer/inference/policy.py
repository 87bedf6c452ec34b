"""The interface of policies: a rollout submits conversations and collects replies.

Whichever replies are ready are returned. A scripted policy answers at once, a local model batches what was
submitted and keeps a cache from turn to turn, a server's replies arrive in any order. The rollout is the same
for all three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import gymnasium as gym
import numpy as np

from art_trainer.types import TokenHistory


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a policy."""

    text: str
    """What goes into ``env.step``: the whole reply, without the end-of-turn token."""
    stop: Literal["stop", "length"] = "stop"
    """Whether the model ended the turn itself or ran into its token limit."""
    error: str | None = None
    """Set if the policy failed; the episode then ends as ``POLICY_ERROR``."""
    context_full: bool = False
    """Set if no reply was sampled because it would not fit; the episode ends as ``CONTEXT_FULL``."""


@dataclass(eq=False, slots=True)
class Conversation:
    """One episode as its policy sees it. The rollout appends observations; the policy appends replies.

    Attributes:
        env: The environment played, for policies that look at it (scripted ones).
        messages: Chat messages so far, ``{"role": …, "content": …}``: a system message if the environment has
            instructions, then observations (user) and replies (assistant) in turn.
        tools: The environment's tool schemas in OpenAI's format.
        rng: The generator of this conversation's randomness, so that an episode is the same whatever it is
            batched with.
        group: Conversations with equal ``group`` have the same prompt at turn 0; it is computed once.
        state: The policy's own, opaque to everyone else.
    """

    env: gym.Env[str, str]
    messages: list[dict[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    rng: np.random.Generator
    group: int
    state: Any = field(default=None)


class Policy(Protocol):
    """Conversations in, replies out."""

    name: str
    version: int
    """Counts updates of the weights, from 0."""

    def submit(self, conversation: Conversation) -> None:
        """Ask for the next reply; the conversation's last message is an observation."""

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """Wait until at least one submitted conversation has its reply, and return those that have.

        The reply is already appended to ``conversation.messages``. Empty if nothing is submitted.
        """

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Free the conversation's resources and return its token histories (empty without tokens)."""
