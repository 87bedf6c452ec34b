"""One thread that owns the model, and samples for whoever asks, all in one batch that others join midway.

A context keeps its row of the key-value cache between its requests, as long as rows are free: the one that
was asked for longest ago gives up its row first, and is read again should it come back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from art_trainer.decoding import Decoder, RecomputeDecoder, TokenSequence
from art_trainer.sampler import SamplingParams
from art_trainer.slot_decoder import SlotDecoder
from art_trainer.stop_strings import StopStrings
from art_trainer.transformers_policy import TransformersPolicy

_READ_TOKENS = 4096


class Abandoned(RuntimeError):
    """Nobody wants the reply any more, or the sampler is closed."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A reply's tokens, the last of which ended it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool
    """Whether the last token ends the turn and so is no part of the text."""
    said_stop: bool
    """Whether the last token completes a stop string."""
    version: int
    """Of the weights that sampled it."""


@dataclass(eq=False, slots=True)
class Question:
    """A context that wants a reply.

    Attributes:
        sequence: Where the decoder keeps what it has computed; from the context's last reply, or a new one.
        context: All tokens to be read.
        uniforms: The reply's random numbers, one for each token it may have.
        stops: What ends the reply besides the tokens that do.
        on_token: Called in the sampling thread with the reply's tokens so far, after each.
        answer: The reply.
        unwanted: Set by who does not want the answer any more; it is then :class:`Abandoned`.
    """

    sequence: TokenSequence
    context: list[int]
    uniforms: NDArray[np.float32]
    stops: StopStrings | None = None
    on_token: Callable[[Sequence[int]], None] | None = None
    answer: Future[Sampled] = field(default_factory=Future)
    unwanted: bool = False

    def fail(self, fault: Exception) -> None:
        """Answer with a fault, where there is no answer yet."""
        if not self.answer.done():
            self.answer.set_exception(fault)


class LiveSampler:
    """Samples replies of a policy's model in a thread of its own; a context manager.

    What is sampled follows from the question's uniforms alone, not from what it is batched with. The weights
    and the policy's sampling may change only while nothing is being sampled, see :meth:`wait_idle`.

    Args:
        policy: Whose model, sampling and batch size are used; its own cache is left alone.
    """

    def __init__(self, policy: TransformersPolicy) -> None:
        self._policy = policy
        self._asked: list[Question] = []
        self._new: list[Question] = []
        self._dropped: list[TokenSequence] = []
        self._running: list[Question] = []
        self._idle_rows: dict[TokenSequence, None] = {}  # longest idle first
        self._made_for: tuple[int, SamplingParams] | None = None
        self._decoder: Decoder | None = None
        self._closing = False
        self._busy = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="live-sampler", daemon=True)
        self._thread.start()

    def ask(self, question: Question) -> Future[Sampled]:
        """Ask for a reply.

        Raises:
            RuntimeError: The sampler is closed.
        """
        with self._changed:
            if self._closing:
                raise RuntimeError("the sampler is closed")
            self._asked.append(question)
            self._changed.notify_all()
        return question.answer

    def drop(self, sequences: Sequence[TokenSequence]) -> None:
        """Give up what is kept for contexts that get no more replies."""
        with self._changed:
            self._dropped += sequences
            self._changed.notify_all()

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is being sampled, so that weights may change; false where it takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._busy or self._asked or self._dropped), timeout)

    def close(self) -> None:
        """Cancel what is asked for and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> LiveSampler:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()

    def _work(self) -> None:
        while self._take():
            try:
                with _sampling_mode(self._policy.model):
                    self._sample_once()
            except Exception as fault:  # whoever asked is told; the next question finds a fresh decoder
                for question in (*self._running, *self._new):
                    question.fail(fault)
                self._running, self._new, self._idle_rows, self._decoder = [], [], {}, None
        for question in (*self._running, *self._new, *self._asked):
            question.fail(Abandoned("the sampler is closed"))

    def _take(self) -> bool:
        """Wait for work and take it; false where the sampler is closing."""
        with self._changed:
            self._busy = bool(self._running)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._running or self._asked or self._dropped or self._closing)
            self._busy = True
            self._new, self._asked = self._asked, []
            dropped, self._dropped = self._dropped, []
        for sequence in dropped:
            if sequence in self._idle_rows:
                self._free(sequence)
        return not self._closing

    def _sample_once(self) -> None:
        """Let in new questions and sample one token for each that runs."""
        for question in [question for question in self._running if question.unwanted]:
            self._running.remove(question)
            self._idle_rows[question.sequence] = None
            self._free(question.sequence)
            question.fail(Abandoned("nobody wants the reply any more"))
        if not self._running:
            self._make_decoder()
        started = self._admit()
        decoder = self._decoder
        assert decoder is not None
        if self._running:
            decoder.step([question.sequence for question in self._running])
        self._running += started
        if started:
            decoder.start([question.sequence for question in started])
        self._hand_out()

    def _make_decoder(self) -> None:
        """Start anew where the weights or the sampling have changed: what is computed belongs to the old."""
        wanted = (self._policy.version, self._policy.sampling)
        if self._decoder is not None and self._made_for == wanted:
            return
        for sequence in list(self._idle_rows):
            self._free(sequence)
        model, sampling = self._policy.model, self._policy.sampling
        if SlotDecoder.serves(model):
            self._decoder = SlotDecoder(model, sampling, read_tokens=_READ_TOKENS)
        else:
            self._decoder = RecomputeDecoder(model, sampling, max_rows=self._policy.max_batch)
        self._made_for = wanted

    def _admit(self) -> list[Question]:
        """The questions there is room for; the others are asked again after the next token."""
        room = self._policy.max_batch - len(self._running)
        for question in self._new:
            if question.unwanted:
                question.fail(Abandoned("nobody wants the reply any more"))
        wanted = [question for question in self._new if not question.answer.done()]
        started, waiting = wanted[:room], wanted[room:]
        with self._changed:
            self._asked[:0] = waiting
        self._new = []
        started = [question for question in started if question.answer.set_running_or_notify_cancel()]
        for question in started:
            sequence = question.sequence
            if sequence not in self._idle_rows:  # its row was given up, or computed by a decoder that broke
                sequence.row, sequence.cached, sequence.prefix, sequence.prefix_used = -1, 0, None, 0
            self._idle_rows.pop(sequence, None)
            known = sequence.tokens[: sequence.cached]
            sequence.cached = _common_prefix(known, question.context[:-1])
            sequence.tokens = list(question.context)
            sequence.begin_turn(question.uniforms)
        rows = len(self._running) + len(started) + len(self._idle_rows)
        for sequence in list(self._idle_rows)[: max(0, rows - self._policy.max_batch)]:
            self._free(sequence)
        return started

    def _hand_out(self) -> None:
        """Tell who asked of the newest token, and hand out the replies it completes."""
        stops, still = self._policy.stop_token_ids, []
        for question in self._running:
            sequence = question.sequence
            count = len(sequence.logprobs)
            stopped = sequence.tokens[-1] in stops
            said = question.stops is not None and not stopped and question.stops.ends(sequence.tokens, count)
            if question.on_token is not None and not stopped:
                question.on_token(sequence.tokens[-count:])
            if not (stopped or said or count >= len(question.uniforms)):
                still.append(question)
                continue
            self._idle_rows[sequence] = None
            token_ids = tuple(sequence.tokens[-count:])
            question.answer.set_result(
                Sampled(token_ids, tuple(sequence.logprobs), stopped, said, self._policy.version)
            )
        self._running = still

    def _free(self, sequence: TokenSequence) -> None:
        if self._decoder is not None:
            self._decoder.free(sequence)
        sequence.cached = 0
        self._idle_rows.pop(sequence, None)


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens two lists share."""
    shorter = min(len(left), len(right))
    if list(left[:shorter]) == list(right[:shorter]):
        return shorter
    return next(place for place in range(shorter) if left[place] != right[place])


@contextmanager
def _sampling_mode(model: torch.nn.Module) -> Iterator[None]:
    """Without dropout and without gradients, leaving the model's mode as it was."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)
