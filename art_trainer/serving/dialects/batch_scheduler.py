"""Continuous batching: one thread owns the model and samples for all clients in one batch.

A context keeps its row of the key-value cache when its reply is complete, as long as rows are free. A job
takes over the row of its owner that shares most tokens with its context, and only the rest is read. The
context that was used longest ago loses its row first.
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

from art_trainer.inference.generation import (
    Decoder,
    SamplingOverride,
    TokenSequence,
    TopLogprobs,
    common_prefix_length,
    sampling_mode,
)
from art_trainer.inference.sampling import SamplingParams, StopStrings
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.serving.http.middleware import ApiError

_MIN_SHARED_TOKENS = 16
"""Contexts that share fewer tokens have only the chat template in common."""


class TokenRun(NamedTuple):
    """Consecutive tokens of a reply.

    Attributes:
        token_ids: The tokens.
        logprobs: One for each token.
        top_logprobs: For each token the most likely ones in its place; empty if not requested.
    """

    token_ids: list[int]
    logprobs: list[float]
    top_logprobs: list[TopLogprobs]

    def since(self, start: int) -> TokenRun:
        """The tokens from a position on; may be called while another thread appends."""
        end = len(self.token_ids)  # appended last, so the other lists have at least as many entries
        return TokenRun(self.token_ids[start:end], self.logprobs[start:end], self.top_logprobs[start:end])


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """A complete reply.

    Attributes:
        run: Its tokens.
        stopped: Whether the last token is a stop token, which is no part of the text.
        hit_stop_string: Whether the last token completes a stop string.
        version: Version of the weights that sampled it.
    """

    run: TokenRun
    stopped: bool
    hit_stop_string: bool
    version: int

    @property
    def text_ids(self) -> list[int]:
        """The tokens of the text, without the stop token."""
        return self.run.token_ids[:-1] if self.stopped else self.run.token_ids

    @property
    def truncated(self) -> bool:
        """Whether the reply reached the token limit."""
        return not (self.stopped or self.hit_stop_string)


@dataclass(eq=False, slots=True)
class GenerationJob:
    """One reply to be sampled."""

    context: list[int]
    """All tokens to be read."""
    uniforms: NDArray[np.float32]
    """The reply's random numbers, one for each token that it may have."""
    stops: StopStrings
    """Stop strings."""
    sampling: SamplingParams | None = None
    """How it is sampled; ``None`` for the policy's parameters. Its stop strings are not used."""
    top_logprobs: int = 0
    """How many of the most likely tokens to report for each place; needs ``sampling``."""
    stop_tokens: frozenset[int] = frozenset()
    """Tokens that end the reply, besides the policy's."""
    version: int | None = None
    """The required version of the weights; ``None`` for the loaded one."""
    request: object = None
    """Equal for jobs that must be sampled by the same weights."""
    owner: object = None
    """Whose cached contexts it may continue, see :meth:`BatchScheduler.release`."""
    has_siblings: bool = False
    """Whether other jobs have the same context: it is read once for all of them, not taken from a row."""
    on_token: Callable[[], None] = lambda: None
    """Called in the sampling thread after each token."""
    run: TokenRun = field(default_factory=lambda: TokenRun([], [], []))
    """The tokens so far, without a stop token; appended by the sampling thread."""
    started_version: int | None = None
    """The version that samples it, once started."""
    cancelled: bool = False
    """Set to cancel the job; its result is then an error."""
    result: Future[GenerationOutput] = field(default_factory=Future)
    """The reply, or an :class:`ApiError`."""
    sequence: TokenSequence = field(default_factory=lambda: TokenSequence([], group=0))
    """The decoder's state of the context; the scheduler's own."""

    def append(self, token: int, logprob: float, top_logprobs: TopLogprobs | None) -> None:
        """Add a token to ``run``."""
        if top_logprobs is not None:
            self.run.top_logprobs.append(top_logprobs)
        self.run.logprobs.append(logprob)
        self.run.token_ids.append(token)
        self.on_token()

    def fail(self, error: ApiError) -> None:
        """Set the result to an error, if there is no result yet."""
        if not self.result.done():
            self.result.set_exception(error)


class BatchScheduler:
    """Samples replies of a policy's model in its own thread.

    A reply depends on the job's uniforms alone, not on the batch it is sampled in. The weights and the
    policy's sampling parameters may change only while nothing is sampled: see :meth:`wait_idle` and
    :meth:`paused`.

    Args:
        policy: Its model, sampling parameters and batch size are used; its own cache is not.
    """

    def __init__(self, policy: TransformersPolicy) -> None:
        self.policy = policy
        self._queue: list[GenerationJob] = []
        self._new: list[GenerationJob] = []
        self._running: list[GenerationJob] = []
        self._idle: dict[TokenSequence, object] = {}  # cached contexts and owners, the longest idle first
        self._released: list[object] = []
        self._decoder: Decoder | None = None
        self._decoder_key: tuple[int, SamplingParams] | None = None
        self._current_request: object = None
        self._closing = self._paused = self._busy = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="batch-scheduler", daemon=True)
        self._thread.start()

    def submit(self, jobs: Sequence[GenerationJob]) -> None:
        """Queue jobs; all jobs of one request in one call. A closed scheduler cancels them."""
        with self._changed:
            closing = self._closing
            if not closing:
                self._queue += jobs
                self._changed.notify_all()
        if closing:
            _cancel(jobs)

    @property
    def waiting(self) -> int:
        """How many jobs wait for a row."""
        return len(self._queue)

    def release(self, owner: object) -> None:
        """Free the cached contexts of an owner that has no more jobs."""
        with self._changed:
            self._released.append(owner)
            self._changed.notify_all()

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is sampled; return whether that happened within the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._busy or self._queue or self._released), timeout)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Finish the requests that have started and hold back all others; weights may change within.

        Raises:
            RuntimeError: The scheduler is closed.
        """
        with self._changed:
            self._paused = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closing or not self._busy)
            if self._closing:
                raise RuntimeError("the scheduler is closed")
        try:
            yield
        finally:
            with self._changed:
                self._decoder_key = None  # what is cached belongs to the old weights
                self._paused = False
                self._changed.notify_all()

    def close(self) -> None:
        """Cancel all jobs and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while self._take():
            try:
                with sampling_mode(self.policy.model):
                    self._step()
            except Exception as error:  # goes to all clients; the next job gets a fresh decoder
                failure = ApiError(f"the policy failed: {type(error).__name__}: {error}", "policy_error")
                failure.__cause__ = error
                for job in (*self._running, *self._new):
                    job.fail(failure)
                self._running, self._new, self._idle, self._decoder = [], [], {}, None
        _cancel((*self._running, *self._new, *self._queue))

    def _take(self) -> bool:
        """Wait for work and take it; return whether to continue."""
        with self._changed:
            self._busy = bool(self._running or self._continues(self._queue))
            self._changed.notify_all()
            self._changed.wait_for(self._has_work)
            self._busy = True
            self._new, self._queue = self._queue, []
            released, self._released = self._released, []
        for sequence in [one for one, owner in self._idle.items() if owner in released]:
            self._free(sequence)
        return not self._closing

    def _has_work(self) -> bool:
        startable = self._queue and (not self._paused or self._continues(self._queue))
        return bool(self._running or startable or self._released or self._closing)

    def _continues(self, jobs: Sequence[GenerationJob]) -> bool:
        """Whether the first job belongs to the request that was started last."""
        return bool(jobs) and jobs[0].request is not None and jobs[0].request is self._current_request

    def _step(self) -> None:
        """Admit new jobs and sample one token for each running one."""
        for job in [job for job in self._running if job.cancelled]:
            self._running.remove(job)
            self._free(job.sequence)
            job.fail(ApiError("the request was cancelled", "shutting_down"))
        decoder, before = self._current_decoder(), list(self._running)
        started = self._admit()
        if before:
            decoder.step([job.sequence for job in before])
        if started:
            decoder.start([job.sequence for job in started])
        self._running = [job for job in self._running if not self._deliver(job)]

    def _current_decoder(self) -> Decoder:
        """The decoder; one with an empty cache if the weights or the sampling parameters have changed."""
        key = (self.policy.version, self.policy.sampling)
        if self._decoder is None or (self._decoder_key != key and not self._running):
            self._decoder = self.policy.make_decoder()
            self._decoder_key, self._idle = key, {}
        return self._decoder

    def _admit(self) -> list[GenerationJob]:
        """Add the jobs that there is room for to the running ones; the others stay in the queue."""
        started: list[GenerationJob] = []
        waiting: list[GenerationJob] = []
        room = self.policy.max_batch - len(self._running)
        for job in self._new:
            held = self._paused and not self._continues([job])
            if job.cancelled:
                job.fail(ApiError("the request was cancelled", "shutting_down"))
            elif waiting or held or len(started) == room:
                waiting.append(job)
            elif job.version not in (None, self.policy.version):
                message = f"version {job.version} is not loaded: {self.policy.version} is"
                job.fail(ApiError(message, "model_not_found", param="model"))
            elif job.result.set_running_or_notify_cancel():
                started.append(job)
                self._current_request = job.request
        with self._changed:
            self._queue[:0] = waiting
        self._new = []
        self._running += started
        for job in started:
            self._prepare(job)
        excess = max(0, len(started) + len(self._idle) - room)
        for sequence in list(self._idle)[:excess]:
            self._free(sequence)
        return started

    def _prepare(self, job: GenerationJob) -> None:
        """Give a job the idle sequence that shares most with its context, if one shares enough."""
        idle = [one for one, owner in self._idle.items() if owner is job.owner and not job.has_siblings]
        shared = {one: common_prefix_length(one.tokens[: one.cached], job.context[:-1]) for one in idle}
        best = max(shared, key=shared.__getitem__, default=None)
        if best is not None and shared[best] >= _MIN_SHARED_TOKENS:
            del self._idle[best]
            best.cached = shared[best]
            best.prefix_used = min(best.prefix_used, best.cached)
            job.sequence = best
        job.sequence.tokens = list(job.context)
        job.sequence.begin_turn(job.uniforms)
        override = None if job.sampling is None else SamplingOverride(job.sampling, job.top_logprobs)
        job.sequence.override = override
        job.started_version = self.policy.version

    def _deliver(self, job: GenerationJob) -> bool:
        """Hand out a job's newest token; return whether the reply is complete."""
        sequence = job.sequence
        count = len(sequence.logprobs)
        recorded = [] if sequence.override is None else sequence.override.recorded
        stopped = sequence.tokens[-1] in self.policy.stop_token_ids | job.stop_tokens
        hit = not stopped and job.stops.ends(sequence.tokens, count)
        if not stopped:
            job.append(sequence.tokens[-1], sequence.logprobs[-1], recorded[-1] if recorded else None)
        if not (stopped or hit or count >= len(job.uniforms)):
            return False
        if sequence.cached:
            self._idle[sequence] = job.owner
        else:
            self._free(sequence)
        run = TokenRun(sequence.tokens[-count:], list(sequence.logprobs), list(recorded))
        job.result.set_result(GenerationOutput(run, stopped, hit, self.policy.version))
        return True

    def _free(self, sequence: TokenSequence) -> None:
        self._idle.pop(sequence, None)
        if self._decoder is not None:
            self._decoder.free(sequence)


def _cancel(jobs: Sequence[GenerationJob]) -> None:
    for job in jobs:
        job.fail(ApiError("the server is shutting down", "shutting_down"))
