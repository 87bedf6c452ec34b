"""A conversation as tokens: what was read and what was sampled, turn after turn, never re-tokenised.

Whoever samples (a model in this process, an engine elsewhere), the context grows in the same way: the first
observation is rendered with the chat template, later ones are appended as the template's glue, replies are
appended as they were sampled. Where the template rewrites the past, a new context begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from art_trainer.chat import ChatFormat, Message, Tools
from art_trainer.episodes import Span, TokenHistory


@dataclass(frozen=True, slots=True)
class Reading:
    """What a new observation adds to a context."""

    token_ids: list[int]
    """The tokens to read."""
    anew: bool
    """Whether they are the whole context, so that what was read before counts no more."""


@dataclass(eq=False, slots=True)
class TokenThread:
    """The tokens of one conversation: the context being extended, and those a template made it give up.

    Attributes:
        spans: The present context.
        closed: Finished contexts.
        turn: Replies so far.
        ended: Whether the last reply holds the template's end-of-turn token, so that it need not be added.
        rewritten: Whether the context holds turns that the template rewrote, and so may write otherwise next
            time.
    """

    spans: list[Span] = field(default_factory=list)
    closed: list[TokenHistory] = field(default_factory=list)
    turn: int = 0
    ended: bool = True
    rewritten: bool = False

    @property
    def context(self) -> tuple[int, ...]:
        """All tokens of the present context."""
        return tuple(token for span in self.spans for token in span.token_ids)

    @property
    def length(self) -> int:
        """How many tokens the present context has."""
        return sum(len(span.token_ids) for span in self.spans)

    def read(
        self,
        chat: ChatFormat,
        messages: Sequence[Message],
        tools: Tools,
        *,
        longest: int | None,
        version: int,
    ) -> Reading | None:
        """Append the newest observation to the context.

        Args:
            chat: How messages become tokens.
            messages: The conversation, its last message an observation.
            tools: Tool schemas in OpenAI's format.
            longest: Most tokens the context may have, for a reply to fit behind it; ``None`` for any.
            version: Of the weights that read it.

        Returns:
            What was appended; ``None`` where it would not fit, and nothing has changed.
        """
        glue = None
        if self.turn > 0:
            glue = chat.continuation(messages, tools, appended_only=not self.rewritten)
        if glue is None:
            tokens = chat.prompt(messages, tools)
        else:
            tokens = glue if self.ended else [chat.end_of_turn, *glue]
        before = 0 if glue is None else self.length
        if longest is not None and before + len(tokens) > longest:
            return None
        if glue is None:
            self._close()
            self.rewritten = self.turn > 0
        self.spans.append(Span(tuple(tokens), policy_version=version))
        return Reading(tokens, anew=glue is None)

    def reply(
        self,
        chat: ChatFormat,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        *,
        stopped: bool,
        version: int,
    ) -> str:
        """Append a reply as it was sampled.

        Args:
            chat: How tokens become text.
            token_ids: What was sampled.
            logprobs: The log-probability of each token under the distribution it was sampled from.
            stopped: Whether the last token ends the turn and so is no part of the text.
            version: Of the weights that sampled it.

        Returns:
            The reply's text.
        """
        self.spans.append(Span(tuple(token_ids), self.turn, tuple(logprobs), version))
        self.turn += 1
        # Another stop token than the template's leaves the turn open in the context.
        self.ended = token_ids[-1] == chat.end_of_turn
        return chat.decode(token_ids[:-1] if stopped else token_ids)

    def finish(self) -> tuple[TokenHistory, ...]:
        """Give up the context and return all histories in which anything was sampled."""
        self._close()
        return tuple(self.closed)

    def _close(self) -> None:
        if any(span.turn is not None for span in self.spans):
            self.closed.append(TokenHistory(tuple(self.spans)))
        self.spans = []


def context_limit(model: object) -> int | None:
    """How many positions a Hugging Face model was made for, where its configuration says so."""
    config: Any = getattr(model, "config", None)
    if config is None:
        return None
    limit = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    return None if limit is None else int(limit)


def turn_stops(
    chat: ChatFormat, tokenizer: PreTrainedTokenizerBase, model: object, more: Sequence[int] = ()
) -> frozenset[int]:
    """All tokens that end a turn: the template's, the tokenizer's, the model's own and the caller's.

    Args:
        chat: How conversations are written.
        tokenizer: The tokenizer.
        model: A Hugging Face model; its generation configuration is asked. ``None`` where there is none.
        more: The caller's.
    """
    stops = {chat.end_of_turn, *more}
    configured: Any = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    for found in (tokenizer.eos_token_id, configured):
        if found is not None:
            stops.update(found if isinstance(found, list) else [found])
    return frozenset(stops)
