"""What policies have in common whose model is trained: sampling parameters, and messages as tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from torch import nn
from transformers import PreTrainedTokenizerBase

from art_trainer.config import GRPOConfig
from art_trainer.errors import EngineError
from art_trainer.inference.policy import Conversation, Policy, Reply
from art_trainer.inference.sampling import SamplingParams, StopStrings
from art_trainer.models.chat_template import ChatFormat, Reading, TokenHistoryBuilder, stop_token_ids_of_turn

TurnEnd = Literal["stop_token", "stop_string"]
"""What ended a reply; a stop token is not part of its text."""


class TrainablePolicy(Policy):
    """Base of policies that sample tokens of a model whose weights a trainer changes.

    The trainer changes :attr:`model` in place and then counts :attr:`version` up. A policy that samples in
    another process then sends the weights there. Token histories hold the log-probs of what was sampled.

    Args:
        model: The model that is trained, maybe with PEFT adapters; ``None`` if it only plays.
        tokenizer: Its tokenizer, saved beside it.
        sampling: How replies are sampled.
        max_context: Most tokens of prompt and reply together; ``None`` for no limit.
        history_window: See :class:`~art_trainer.models.chat_template.ChatFormat`.
        name: What reports call the policy.

    Attributes:
        format: How messages become tokens.
        halved: A sentence for each time that memory ran out while sampling, and the batch was halved.
    """

    def __init__(
        self,
        model: nn.Module | None,
        tokenizer: PreTrainedTokenizerBase,
        *,
        sampling: SamplingParams | None,
        max_context: int | None,
        history_window: int | None,
        name: str,
    ) -> None:
        self.name = name
        self.max_context = max_context
        self.format = ChatFormat(tokenizer, history_window=history_window)
        self.tokenizer = self.format.tokenizer
        self._model = model
        self._version = 0
        self.halved: list[str] = []
        self._live: set[Conversation] = set()
        self._ready: list[tuple[Conversation, Reply]] = []
        self._set_sampling(sampling or SamplingParams())

    @property
    def model(self) -> nn.Module:
        """The model that is trained.

        Raises:
            EngineError: If the policy only plays.
        """
        if self._model is None:
            raise EngineError(f"{self.name} plays only: to train it, create the policy with a model")
        return self._model

    @property
    def version(self) -> int:
        """Counts updates of the weights; may change only while no conversation is live."""
        return self._version

    @version.setter
    def version(self, value: int) -> None:
        self._require_idle("version")
        self._set_version(value)

    @property
    def sampling(self) -> SamplingParams:
        """How replies are sampled; may change only while no conversation is live."""
        return self._sampling

    @sampling.setter
    def sampling(self, value: SamplingParams) -> None:
        self._require_idle("sampling")
        self._set_sampling(value)

    @contextmanager
    def evaluating(self, config: GRPOConfig) -> Iterator[None]:
        """Within, sample as a config's evaluations do; afterwards as before."""
        training = self._sampling
        self.sampling = SamplingParams.for_evaluation(config, training.stop_token_ids)
        try:
            yield
        finally:
            self.sampling = training

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """All tokens that end a turn: the template's, the tokenizer's, the model's and the caller's."""
        more = self._sampling.stop_token_ids
        return stop_token_ids_of_turn(self.format, self.tokenizer, self._model, more)

    def _set_version(self, value: int) -> None:
        self._version = value

    def _set_sampling(self, value: SamplingParams) -> None:
        self._sampling = value
        self._stop_strings = StopStrings(value.stop_strings, self.format.decode)

    def _require_idle(self, setting: str) -> None:
        if self._live:
            raise RuntimeError(
                f"{setting} cannot change while {len(self._live)} conversations are live; release them first"
            )

    def _read(self, conversation: Conversation, history: TokenHistoryBuilder) -> Reading | None:
        """Append the newest observation; if no reply would fit, queue a context-full reply."""
        longest = None if self.max_context is None else self.max_context - self._sampling.max_new_tokens
        reading = history.append_observation(
            self.format, conversation.messages, conversation.tools, longest=longest, version=self._version
        )
        if reading is None:
            self._ready.append((conversation, Reply("", stop="length", context_full=True)))
        return reading

    def _turn_end(self, tokens: Sequence[int], count: int, stops: frozenset[int]) -> TurnEnd | None:
        """Return what the newest token ends the reply by, if it does; the reply is the last ``count``."""
        if tokens[-1] in stops:
            return "stop_token"
        return "stop_string" if self._stop_strings.ends(tokens, count) else None

    def _finish_reply(
        self,
        conversation: Conversation,
        history: TokenHistoryBuilder,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        end: TurnEnd | None,
    ) -> Reply:
        """Record the sampled tokens as they are, and append the reply to the messages."""
        stopped = end == "stop_token"
        text = history.append_reply(self.format, token_ids, logprobs, stopped=stopped, version=self._version)
        if end == "stop_string":
            text = self._stop_strings.cut(text)
        conversation.messages.append({"role": "assistant", "content": text})
        return Reply(text, "length" if end is None else "stop")

    def _forget(self, conversation: Conversation) -> None:
        self._live.discard(conversation)
        self._ready = [(other, reply) for other, reply in self._ready if other is not conversation]
        conversation.state = None
