"""Policy of a local Hugging Face causal language model: batched and token-exact.

A conversation keeps its row of the key-value cache from turn to turn, so that each turn computes only the new
observation and the reply. Conversations beyond the batch size wait for a row to be released.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from art_trainer.errors import DeviceMemoryError, UnsupportedModelError
from art_trainer.inference.generation import (
    Decoder,
    RecomputeDecoder,
    TokenSequence,
    sampling_mode,
)
from art_trainer.inference.policy import Conversation, Reply
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.slot_decoder import SlotDecoder
from art_trainer.inference.trainable_policy import TrainablePolicy
from art_trainer.models.chat_template import TokenHistoryBuilder, context_limit
from art_trainer.models.fused_layers import use_fused_layers
from art_trainer.models.known_models import known_model_path
from art_trainer.models.loading import add_adapter, load_tokenizer
from art_trainer.models.memory import WorkSizes, is_out_of_memory, reclaim_memory, release_memory
from art_trainer.types import TokenHistory

BATCH_LIMITS = {torch.float32: 1e-5, torch.bfloat16: 0.05}
"""How far a log-prob may lie on a CPU from what it is for the conversation alone, by the weights' type."""

# Replies are handed back once this share of the running conversations has finished. Waiting for all leaves
# rows idle behind the slowest reply; returning early mixes short and long contexts in one batch and reads
# observations in small batches. Measured on a CPU (2 layers x 96, 256 conversations, 5 turns, tokens per
# CPU-second): 0.1: 2363, 0.25: 2332, 0.5: 2382, 0.75: 2814, 1.0: 2627.
_FINISHED_SHARE = 0.75

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _State:
    """A conversation's tokens, and what the decoder has computed of them."""

    sequence: TokenSequence
    history: TokenHistoryBuilder


class TransformersPolicy(TrainablePolicy):
    """Samples replies from a local model.

    An episode is the same whatever it is batched with, up to rounding: every conversation draws its own
    random numbers, but matrix products of another shape add in another order. Log-probs then differ by less
    than :data:`BATCH_LIMITS` (measured on tiny models: 2e-6 in float32, 0.02 in bfloat16; on a GPU, where
    attention is another kernel too, 0.055). A token differs only if its random number lies that near to the
    border between two tokens; from there on the conversation differs.

    Args:
        model: Any Hugging Face causal language model, or a PEFT model around one.
        tokenizer: Its tokenizer.
        sampling: How replies are sampled.
        max_context: Most tokens of prompt and reply together; by default the model's own limit.
        max_batch: Most conversations that have a row of the cache at one time; others wait. It is halved
            when memory runs out.
        read_tokens: Most tokens one forward pass reads, padding included; by default what suits the device.
        history_window: How many turns the model sees, the present one included; ``None`` for what the
            tokenizer was saved with, or else all. With a window each turn is a token history of its own: a
            game of 500 moves is 500 short prompts.
        name: What reports call the policy.

    Raises:
        UnsupportedModelError: If the chat template writes tokens that the model does not know.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        *,
        sampling: SamplingParams | None = None,
        max_context: int | None = None,
        max_batch: int = 256,
        read_tokens: int | None = None,
        history_window: int | None = None,
        name: str = "transformers",
    ) -> None:
        if max_batch < 1:
            raise ValueError(f"max_batch must be at least 1, got {max_batch}")
        self.max_batch = max_batch
        device = next(model.parameters()).device
        if device.type == "cuda":
            use_fused_layers(model)
        self._read_tokens = WorkSizes.of(device).read_tokens if read_tokens is None else read_tokens
        self._waiting: deque[Conversation] = deque()
        self._seated: set[Conversation] = set()
        self._pending: list[Conversation] = []
        self._running: list[Conversation] = []
        super().__init__(
            model,
            tokenizer,
            sampling=sampling,
            max_context=context_limit(model) if max_context is None else max_context,
            history_window=history_window,
            name=name,
        )
        embeddings: Any = getattr(model, "get_input_embeddings", None)
        written = [*self.format.prompt([{"role": "user", "content": ""}]), self.format.end_of_turn]
        if embeddings is not None and max(written) >= (known := len(embeddings().weight)):
            raise UnsupportedModelError(
                f"the chat template writes token {max(written)}, but the model knows {known} tokens: take "
                "its own tokenizer, or call model.resize_token_embeddings(len(tokenizer))"
            )

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str,
        *,
        dtype: torch.dtype | str = "auto",
        device: torch.device | str | None = None,
        lora: Any = None,
        **options: Any,
    ) -> TransformersPolicy:
        """Load a model and its tokenizer.

        Args:
            name_or_path: A name in :data:`.KNOWN_MODELS`, a folder, or a Hugging Face name.
            dtype: The weights' type; ``"auto"`` takes the checkpoint's.
            device: Where to put the model; by default the first GPU, else the CPU.
            lora: A ``peft.LoraConfig`` to train an adapter instead of the weights.
            **options: For :class:`TransformersPolicy`.
        """
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        path = known_model_path(name_or_path)
        tokenizer = load_tokenizer(path)
        model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        model.to(device)
        if lora is not None:
            model = add_adapter(model, lora)
        return cls(model, tokenizer, **{"name": name_or_path, **options})

    def make_decoder(self) -> Decoder:
        """Return a decoder for the model and the present sampling parameters; its cache is empty."""
        if SlotDecoder.serves(self.model):
            return SlotDecoder(self.model, self._sampling, read_tokens=self._read_tokens)
        return RecomputeDecoder(self.model, self._sampling, max_rows=self.max_batch)

    def submit(self, conversation: Conversation) -> None:
        """Ask for the next reply; the new observation is encoded here and computed in :meth:`collect`."""
        if conversation.state is None:
            sequence = TokenSequence([], group=conversation.group)
            conversation.state = _State(sequence, TokenHistoryBuilder())
            self._live.add(conversation)
        state: _State = conversation.state
        reading = self._read(conversation, state.history)
        if reading is None:
            return
        state.sequence.extend(reading.token_ids, restarted=reading.restarted)
        uniforms = np.zeros(0, np.float32)
        if not self._sampling.greedy:
            uniforms = conversation.rng.random(self._sampling.max_new_tokens, dtype=np.float32)
        state.sequence.begin_turn(uniforms)
        (self._pending if conversation in self._seated else self._waiting).append(conversation)

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """Sample until most of the running conversations have their replies, and return those.

        When memory runs out, half of the conversations wait, and what was computed is computed again.

        Raises:
            DeviceMemoryError: If there is no room for one conversation.
        """
        if self._ready:
            ready, self._ready = self._ready, []
            return ready
        done: list[tuple[Conversation, Reply]] = []
        while not done:
            self._seat_waiting()
            if not self._pending and not self._running:
                break
            try:
                with sampling_mode(self.model):
                    self._sample_replies(done)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                if len(self._seated) == 1:
                    raise DeviceMemoryError(
                        f"out of memory on {self._device} with one conversation: set a smaller "
                        "max_completion_length or model"
                    ) from error
            else:
                break
            done += self._halve_batch()
        return done

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Free the conversation's row and return its token histories."""
        state: _State | None = conversation.state
        if state is None:
            return ()
        self._decoder.free(state.sequence)
        self._seated.discard(conversation)
        for queue in (self._pending, self._running, self._waiting):
            if conversation in queue:
                queue.remove(conversation)
        self._forget(conversation)
        if not self._live:
            release_memory(self._device)
        return state.history.finish()

    def _set_sampling(self, value: SamplingParams) -> None:
        super()._set_sampling(value)
        self._decoder = self.make_decoder()

    def _seat_waiting(self) -> None:
        full = len(self._seated) >= self.max_batch
        if self._waiting and full and not self._pending and not self._running:
            # Every row is held by a conversation that was not submitted again; its context is read anew then.
            self._free_rows()
        while self._waiting and len(self._seated) < self.max_batch:
            conversation = self._waiting.popleft()
            self._seated.add(conversation)
            self._pending.append(conversation)

    def _free_rows(self) -> None:
        for conversation in self._seated:
            self._decoder.free(conversation.state.sequence)
        self._seated.clear()

    def _sample_replies(self, done: list[tuple[Conversation, Reply]]) -> None:
        """Sample for all that were submitted, and hand in replies, until most have theirs."""
        started, self._pending = self._pending, []
        self._running += started
        if started:
            self._decoder.start([c.state.sequence for c in started])
        wanted = max(1, int(_FINISHED_SHARE * len(self._running)))
        while True:
            done += self._ended()
            if not self._running or len(done) >= wanted:
                return
            self._decoder.step([c.state.sequence for c in self._running])

    def _ended(self) -> list[tuple[Conversation, Reply]]:
        """Return the replies that have ended; the others go on."""
        stops = self.stop_token_ids  # once: to find them takes as long as to look at a hundred replies
        replies = [(c, self._reply_if_ended(c, stops)) for c in self._running]
        self._running = [c for c, reply in replies if reply is None]
        return [(c, reply) for c, reply in replies if reply is not None]

    def _halve_batch(self) -> list[tuple[Conversation, Reply]]:
        """Free all rows, and let half as many be used from now on; return the replies that had ended."""
        before, self.max_batch = len(self._seated), len(self._seated) // 2
        self.halved.append(
            f"Out of memory on {self._device} with {before} conversations under way: max_batch is "
            f"{self.max_batch} from now on. Replies are the same up to rounding."
        )
        _log.warning("%s", self.halved[-1])
        self._free_rows()
        ended = self._ended()
        self._waiting.extendleft(reversed(self._running + self._pending))
        self._running, self._pending = [], []
        reclaim_memory(self._device)
        return ended

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _reply_if_ended(self, conversation: Conversation, stops: frozenset[int]) -> Reply | None:
        state: _State = conversation.state
        tokens, logprobs = state.sequence.tokens, state.sequence.logprobs
        count = len(logprobs)
        if not count:
            return None
        end = self._turn_end(tokens, count, stops)
        if end is None and count < self._sampling.max_new_tokens:
            return None
        return self._finish_reply(conversation, state.history, tokens[-count:], logprobs, end)
