"""A Hugging Face causal language model as a policy: local, batched, token-exact.

A conversation keeps its row of the key-value cache from turn to turn, so that each turn computes only the new
observation and the reply. Conversations beyond the batch's size wait for a row to be released.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from art_trainer.chat import ChatFormat
from art_trainer.decoding import Decoder, RecomputeDecoder, TokenSequence, common_prefix, sampling_mode
from art_trainer.episodes import TokenHistory
from art_trainer.policy import Conversation, Reply
from art_trainer.sampler import SamplingParams
from art_trainer.slot_decoder import SlotDecoder
from art_trainer.token_policy import TokenPolicy
from art_trainer.token_thread import TokenThread, context_limit
from art_trainer.tokenizer_loading import load_tokenizer

BATCH_LIMITS = {torch.float32: 1e-5, torch.bfloat16: 0.05}
"""How far a log-probability may lie from what it is for the conversation alone, by the weights' type."""

# Replies are handed back once this share of the running conversations has finished. Waiting for all leaves
# rows idle behind the slowest reply; returning early mixes short and long contexts in one batch and reads
# observations in small batches. Measured on a CPU (2 layers x 96, 256 conversations, 5 turns, tokens per
# CPU-second): 0.1: 2363, 0.25: 2332, 0.5: 2382, 0.75: 2814, 1.0: 2627.
_FINISHED_SHARE = 0.75


@dataclass(eq=False, slots=True)
class _Seat:
    """A conversation's tokens, and what the decoder has computed of them."""

    sequence: TokenSequence
    thread: TokenThread = field(default_factory=TokenThread)


class TransformersPolicy(TokenPolicy):
    """Samples replies from a local model; implements :class:`art_trainer.policy.Policy`.

    An episode is the same whatever it is batched with, up to rounding: every conversation draws its own
    random numbers, but matrix products of another shape add in another order. Log-probabilities then differ
    by less than :data:`BATCH_LIMITS` (measured on tiny models: 2e-6 in float32, 0.02 in bfloat16), and a
    token differs only where its random number lies so near the border between two tokens; from there on the
    conversation goes its own way.

    Args:
        model: Any Hugging Face causal language model, or a PEFT model around one.
        tokenizer: Its tokenizer.
        sampling: How replies are sampled.
        max_context: Most tokens of prompt and reply together; by default what the model was made for.
        max_batch: Most conversations that have a row of the cache at one time; others wait.
        read_tokens: Most tokens one forward pass reads, padding included; bounds memory.
        history_window: How many turns the model sees, the present one included; ``None`` for what the
            tokenizer was saved with, or else all. With a window each turn is a token history of its own: a
            game of 500 moves is 500 short prompts.
        name: What reports call the policy.

    Attributes:
        format: How messages become tokens.
        max_context: Most tokens of prompt and reply together, or ``None`` where there is no limit.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        *,
        sampling: SamplingParams | None = None,
        max_context: int | None = None,
        max_batch: int = 256,
        read_tokens: int = 4096,
        history_window: int | None = None,
        name: str = "transformers",
    ) -> None:
        if max_batch < 1:
            raise ValueError(f"max_batch is at least 1, got {max_batch}")
        self.model = model
        self.format = ChatFormat(tokenizer, history_window=history_window)
        self.tokenizer = self.format.tokenizer
        self.max_batch = max_batch
        self.name = name
        self._read_tokens = read_tokens
        self._version = 0
        self._waiting: deque[Conversation] = deque()
        self._pending: list[Conversation] = []
        self._running: list[Conversation] = []
        self._ready: list[tuple[Conversation, Reply]] = []
        self._seated: set[Conversation] = set()
        self.max_context = context_limit(model) if max_context is None else max_context
        self._set_sampling(sampling or SamplingParams())

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
            name_or_path: A Hugging Face name or a folder.
            dtype: The weights' type; ``"auto"`` takes the checkpoint's.
            device: Where to put the model; by default the first GPU, else the CPU.
            lora: A ``peft.LoraConfig`` to train an adapter instead of the weights.
            **options: For :class:`TransformersPolicy`.
        """
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        tokenizer = load_tokenizer(name_or_path)
        model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(name_or_path, dtype=dtype)
        model.to(device)
        if lora is not None:
            from peft import get_peft_model

            model = get_peft_model(model, lora)
        return cls(model, tokenizer, **{"name": name_or_path, **options})

    def submit(self, conversation: Conversation) -> None:
        """Ask for the next reply; the new observation is encoded here and computed in :meth:`collect`."""
        if conversation.state is None:
            conversation.state = _Seat(TokenSequence([], group=conversation.group))
        seat: _Seat = conversation.state
        if not self._read(conversation, seat):
            self._ready.append((conversation, Reply("", stop="length", context_full=True)))
            return
        sampling = self.sampling
        uniforms = np.zeros(0, np.float32)
        if not sampling.greedy:
            uniforms = conversation.rng.random(sampling.max_new_tokens, dtype=np.float32)
        seat.sequence.begin_turn(uniforms)
        if conversation in self._seated:
            self._pending.append(conversation)
        else:
            self._waiting.append(conversation)

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """Sample until a good part of the submitted conversations have their replies, and return those.

        Raises:
            RuntimeError: Conversations wait for a row, and every row is held by one that was not submitted.
        """
        if self._ready:
            ready, self._ready = self._ready, []
            return ready
        self._seat_waiting()
        if not self._pending and not self._running:
            return []
        with sampling_mode(self.model):
            return self._sample_replies()

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Free the conversation's row and return its token histories, as far as anything was sampled."""
        seat: _Seat | None = conversation.state
        if seat is None:
            return ()
        self._decoder.free(seat.sequence)
        self._seated.discard(conversation)
        for queue in (self._pending, self._running, self._waiting):
            if conversation in queue:
                queue.remove(conversation)
        self._ready = [(other, reply) for other, reply in self._ready if other is not conversation]
        conversation.state = None
        return seat.thread.finish()

    def _set_sampling(self, value: SamplingParams) -> None:
        super()._set_sampling(value)
        self._decoder = self._make_decoder()

    def _make_decoder(self) -> Decoder:
        if SlotDecoder.serves(self.model):
            return SlotDecoder(self.model, self._sampling, read_tokens=self._read_tokens)
        return RecomputeDecoder(self.model, self._sampling, max_rows=self.max_batch)

    def _weights(self) -> torch.nn.Module:
        return self.model

    def _count_live(self) -> int:
        return len(self._seated) + len(self._waiting)

    def _read(self, conversation: Conversation, seat: _Seat) -> bool:
        """Append the new observation's tokens to the context; false where a reply would not fit after it."""
        longest = None if self.max_context is None else self.max_context - self._sampling.max_new_tokens
        reading = seat.thread.read(
            self.format, conversation.messages, conversation.tools, longest=longest, version=self.version
        )
        if reading is None:
            return False
        sequence, tokens = seat.sequence, reading.token_ids
        if reading.anew:
            # What the old context and the new one begin with in common stays computed.
            sequence.cached = common_prefix(sequence.tokens[: sequence.cached], tokens[:-1])
            sequence.tokens = tokens
        else:
            sequence.tokens = sequence.tokens + tokens
        return True

    def _seat_waiting(self) -> None:
        while self._waiting and len(self._seated) < self.max_batch:
            conversation = self._waiting.popleft()
            self._seated.add(conversation)
            self._pending.append(conversation)
        if self._waiting and not self._pending and not self._running:
            raise RuntimeError(
                f"{len(self._waiting)} conversations wait for one of {self.max_batch} rows, all held by "
                "conversations that were not submitted again; submit or release them, or raise max_batch"
            )

    def _sample_replies(self) -> list[tuple[Conversation, Reply]]:
        started, self._pending = self._pending, []
        if started:
            self._decoder.start([c.state.sequence for c in started])
        self._running += started
        wanted = max(1, int(_FINISHED_SHARE * len(self._running)))
        stops, limit, strings = self.stop_token_ids, self.sampling.max_new_tokens, self._stop_strings
        done: list[tuple[Conversation, Reply]] = []
        while True:
            still: list[Conversation] = []
            for conversation in self._running:
                sequence = conversation.state.sequence
                count = len(sequence.logprobs)
                stopped = sequence.tokens[-1] in stops
                said_it = strings is not None and not stopped and strings.ends(sequence.tokens, count)
                if stopped or said_it or count >= limit:
                    done.append((conversation, self._finish(conversation, stopped, said_it)))
                else:
                    still.append(conversation)
            self._running = still
            if not still or len(done) >= wanted:
                return done
            self._decoder.step([c.state.sequence for c in still])

    def _finish(self, conversation: Conversation, stopped: bool, said_it: bool) -> Reply:
        """Record the sampled tokens as they are, and append the reply to the messages.

        Args:
            conversation: Whose reply is complete.
            stopped: Whether the last token ends the turn and so is no part of the text.
            said_it: Whether the last token completes a stop string.
        """
        seat: _Seat = conversation.state
        logprobs = seat.sequence.logprobs
        count = len(logprobs)
        sampled = seat.sequence.tokens[-count:]
        text = seat.thread.reply(self.format, sampled, logprobs, stopped=stopped, version=self.version)
        if said_it and self._stop_strings is not None:
            text = self._stop_strings.cut(text)
        conversation.messages.append({"role": "assistant", "content": text})
        return Reply(text, "stop" if stopped or said_it else "length", count)
