"""What a rollout asks of a policy.

The shape is an engine's: conversations that want a reply are submitted, and whichever replies are ready are
collected. A scripted policy answers at once, a local model batches what was submitted (and keeps a cache from
turn to turn), a server's replies arrive in any order; the rollout is the same for all three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import gymnasium as gym
import numpy as np

from art_trainer.episodes import TokenHistory

if TYPE_CHECKING:  # torch takes seconds to import, and scripted policies need none
    from torch import nn
    from transformers import PreTrainedTokenizerBase

    from art_trainer.chat import ChatFormat
    from art_trainer.sampler import SamplingParams


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a policy."""

    text: str
    """What goes into ``env.step``: the whole reply, without the end-of-turn token."""
    stop: Literal["stop", "length"] = "stop"
    """Whether the model ended the turn itself or ran into its token limit."""
    token_count: int = 0
    error: str | None = None
    """Set where the policy failed; the episode then ends as ``POLICY_ERROR``."""
    context_full: bool = False
    """Set where no reply was sampled because it would not fit; the episode ends as ``CONTEXT_FULL``."""


@dataclass(eq=False, slots=True)
class Conversation:
    """One episode as its policy sees it. The rollout appends observations; the policy appends replies.

    Attributes:
        env: The environment played, for policies that look at it (scripted ones).
        messages: Chat messages so far, ``{"role": …, "content": …}``: a system message where the environment
            has standing instructions, then observations (user) and replies (assistant) in turn.
        tools: The environment's tool schemas in OpenAI's format.
        rng: Where the policy draws this conversation's randomness from, so that an episode is the same
            whatever it is batched with.
        group: Conversations with equal ``group`` and turn 0 have the same prompt; it need be computed once.
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

        The reply is already appended to ``conversation.messages``. Empty where nothing is submitted.
        """

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Give up the conversation's resources and return its token histories (empty without tokens)."""


class TrainablePolicy(Policy, Protocol):
    """A policy whose weights a trainer changes: it plays with what the learner has learned.

    The trainer changes :attr:`model` in place and then counts :attr:`version` up, which is when a policy that
    samples elsewhere sends the weights there. Its token histories hold the log-probs of what was sampled.
    """

    sampling: SamplingParams
    """How replies are sampled; set while no conversation is live."""

    @property
    def format(self) -> ChatFormat:
        """How messages become tokens."""

    @property
    def model(self) -> nn.Module:
        """The model that is trained, a Hugging Face one, maybe with PEFT adapters."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Saved beside the model."""


def in_window(messages: Sequence[Mapping[str, Any]], window: int | None) -> Sequence[Mapping[str, Any]]:
    """The standing instructions and the newest turns of a conversation.

    Args:
        messages: A conversation that ends with an observation.
        window: How many turns to keep, the present observation included; ``None`` for all.
    """
    newest = len(messages) if window is None else 2 * window - 1
    if len(messages) <= newest:
        return messages
    system = messages[:1] if messages[0]["role"] == "system" else []
    return [*system, *messages[max(len(system), len(messages) - newest) :]]
