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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from art_trainer.decoding import (
    Alternatives,
    Choosing,
    Decoder,
    RecomputeDecoder,
    TokenSequence,
    common_prefix,
    sampling_mode,
)
from art_trainer.sampler import SamplingParams
from art_trainer.slot_decoder import SlotDecoder
from art_trainer.stop_strings import StopStrings
from art_trainer.transformers_policy import TransformersPolicy

_READ_TOKENS = 4096


class Abandoned(RuntimeError):
    """Nobody wants the reply any more, or the sampler is closed."""


class VersionGone(RuntimeError):
    """The weights that a question was for are not these.

    Attributes:
        present: The version of these.
    """

    def __init__(self, present: int) -> None:
        super().__init__(f"the weights are of version {present}")
        self.present = present


class TokenRun(NamedTuple):
    """Some consecutive tokens of a reply, with what is known of each."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    alternatives: Sequence[Alternatives]
    """For each token the most likely ones in its place; empty where nobody asked for them."""


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
    alternatives: tuple[Alternatives, ...] = ()
    """As in :class:`TokenRun`."""

    def run(self, start: int = 0) -> TokenRun:
        """The tokens from a place on."""
        return TokenRun(self.token_ids[start:], self.logprobs[start:], self.alternatives[start:])


@dataclass(eq=False, slots=True)
class Question:
    """A context that wants a reply.

    Attributes:
        sequence: Where the decoder keeps what it has computed; from the context's last reply, or a new one.
        context: All tokens to be read.
        uniforms: The reply's random numbers, one for each token it may have.
        sampling: How it is sampled, but for what ends it; ``None`` for the policy's own way.
        alternatives: How many of the most likely tokens to note in each place; counts with ``sampling`` only.
        stop_tokens: Tokens that end the reply; ``None`` for the policy's.
        stops: What ends the reply besides the tokens that do.
        on_token: Called in the sampling thread with the reply's tokens so far, after each.
        version: The version of the weights that shall sample it, else the answer is :class:`VersionGone`;
            ``None`` for whichever there are.
        request: What questions have in common that must be sampled by the same weights.
        answer: The reply.
        sampled_by: The version of the weights that sample it, once they do.
        unwanted: Set by who does not want the answer any more; it is then :class:`Abandoned`.
    """

    sequence: TokenSequence
    context: list[int]
    uniforms: NDArray[np.float32]
    sampling: SamplingParams | None = None
    alternatives: int = 0
    stop_tokens: frozenset[int] | None = None
    stops: StopStrings | None = None
    on_token: Callable[[Sequence[int]], None] | None = None
    version: int | None = None
    request: object = None
    answer: Future[Sampled] = field(default_factory=Future)
    sampled_by: int | None = None
    unwanted: bool = False

    def fail(self, fault: Exception) -> None:
        """Answer with a fault, where there is no answer yet."""
        if not self.answer.done():
            self.answer.set_exception(fault)


class LiveSampler:
    """Samples replies of a policy's model in a thread of its own; a context manager.

    What is sampled follows from the question's uniforms alone, not from what it is batched with. The weights
    and the policy's sampling may change only while nothing is being sampled, see :meth:`wait_idle` and
    :meth:`paused`.

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
        self._begun: object = None  # the newest request that something was sampled for
        self._closing = False
        self._holding = False
        self._busy = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="live-sampler", daemon=True)
        self._thread.start()

    def ask(self, question: Question) -> Future[Sampled]:
        """Ask for a reply.

        Raises:
            RuntimeError: The sampler is closed.
        """
        self.ask_all([question])
        return question.answer

    def ask_all(self, questions: Sequence[Question]) -> None:
        """Ask for several replies; those of one request are asked for together, here.

        Raises:
            RuntimeError: The sampler is closed.
        """
        with self._changed:
            if self._closing:
                raise RuntimeError("the sampler is closed")
            self._asked += questions
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """How many questions wait for a row."""
        return len(self._asked)

    def drop(self, sequences: Sequence[TokenSequence]) -> None:
        """Give up what is kept for contexts that get no more replies."""
        with self._changed:
            self._dropped += sequences
            self._changed.notify_all()

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is being sampled, so that weights may change; false where it takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._busy or self._asked or self._dropped), timeout)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the requests end that are being sampled, and hold back all others: weights may change within.

        Raises:
            RuntimeError: The sampler is closed.
        """
        with self._changed:
            self._holding = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closing or not self._busy)
            if self._closing:
                raise RuntimeError("the sampler is closed")
        try:
            yield
        finally:
            with self._changed:
                self._holding = False
                self._changed.notify_all()

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
                with sampling_mode(self._policy.model):
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
            self._busy = bool(self._running or self._goes_on(self._asked))
            self._changed.notify_all()
            self._changed.wait_for(self._has_work)
            self._busy = True
            self._new, self._asked = self._asked, []
            dropped, self._dropped = self._dropped, []
        for sequence in dropped:
            if sequence in self._idle_rows:
                self._free(sequence)
        return not self._closing

    def _has_work(self) -> bool:
        asked = self._asked and (not self._holding or self._goes_on(self._asked))
        return bool(self._running or asked or self._dropped or self._closing)

    def _goes_on(self, questions: Sequence[Question]) -> bool:
        """Whether the first of them belongs to a request of which others were begun."""
        return bool(questions) and questions[0].request is not None and questions[0].request is self._begun

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
        started: list[Question] = []
        waiting: list[Question] = []
        room = self._policy.max_batch - len(self._running)
        for question in self._new:
            held = self._holding and not self._goes_on([question])
            if question.unwanted:
                question.fail(Abandoned("nobody wants the reply any more"))
            elif waiting or held or len(started) == room:
                waiting.append(question)
            elif question.version not in (None, self._policy.version):
                question.fail(VersionGone(self._policy.version))
            elif question.answer.set_running_or_notify_cancel():
                started.append(question)
                self._begun = question.request
        with self._changed:
            self._asked[:0] = waiting
        self._new = []
        for question in started:
            self._begin(question)
        rows = len(self._running) + len(started) + len(self._idle_rows)
        for sequence in list(self._idle_rows)[: max(0, rows - self._policy.max_batch)]:
            self._free(sequence)
        return started

    def _begin(self, question: Question) -> None:
        """Make a question's sequence ready for the decoder."""
        sequence = question.sequence
        if sequence not in self._idle_rows:  # its row was given up, or computed by a decoder that broke
            sequence.row, sequence.cached, sequence.prefix, sequence.prefix_used = -1, 0, None, 0
        self._idle_rows.pop(sequence, None)
        known = sequence.tokens[: sequence.cached]
        sequence.cached = common_prefix(known, question.context[:-1])
        sequence.tokens = list(question.context)
        sequence.begin_turn(question.uniforms)
        sequence.choosing = None
        if question.sampling is not None:
            sequence.choosing = Choosing(question.sampling, question.alternatives)
        question.sampled_by = self._policy.version

    def _hand_out(self) -> None:
        """Tell who asked of the newest token, and hand out the replies it completes."""
        own_stops, still = self._policy.stop_token_ids, []
        for question in self._running:
            sequence = question.sequence
            count = len(sequence.logprobs)
            stop_tokens = own_stops if question.stop_tokens is None else question.stop_tokens
            stopped = sequence.tokens[-1] in stop_tokens
            said = question.stops is not None and not stopped and question.stops.ends(sequence.tokens, count)
            if question.on_token is not None and not stopped:
                question.on_token(sequence.tokens[-count:])
            if not (stopped or said or count >= len(question.uniforms)):
                still.append(question)
                continue
            self._idle_rows[sequence] = None
            token_ids = tuple(sequence.tokens[-count:])
            noted = () if sequence.choosing is None else tuple(sequence.choosing.noted)
            question.answer.set_result(
                Sampled(token_ids, tuple(sequence.logprobs), stopped, said, self._policy.version, noted)
            )
        self._running = still

    def _free(self, sequence: TokenSequence) -> None:
        if self._decoder is not None:
            self._decoder.free(sequence)
        sequence.cached = 0
        self._idle_rows.pop(sequence, None)
