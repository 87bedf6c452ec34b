"""One episode on the agent server: its requests, replies and reward."""

from __future__ import annotations

import asyncio
import enum
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from art_trainer.inference.sampling import StopStrings
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.serving.agents.recording import OpenRequest, Recording, Reply
from art_trainer.serving.dialects.batch_scheduler import BatchScheduler, GenerationJob, GenerationOutput
from art_trainer.serving.dialects.chat import AgentChat, ContextFullError
from art_trainer.serving.dialects.conversation import ConversationRequest
from art_trainer.serving.dialects.requests import StrictModel
from art_trainer.serving.dialects.responses import StoredResponses
from art_trainer.serving.dialects.streams import PendingRequest
from art_trainer.serving.dialects.writers import ResponseWriter
from art_trainer.serving.http.middleware import ApiError


class Outcome(enum.StrEnum):
    """How an agent's attempt ended."""

    REWARDED = "rewarded"
    """It has a reward."""
    CRASHED = "crashed"
    """It raised, or returned something that is not a reward."""
    CONTEXT_FULL = "context_full"
    """It raised because its conversation no longer fitted the context; reward 0, and trained on."""
    TIMED_OUT = "timed_out"
    """It was still running at the time limit."""
    NO_REWARD = "no_reward"
    """It ended without a reward, and none was posted in time."""
    NO_REPLIES = "no_replies"
    """It has a reward, but received no reply from the policy."""
    POLICY_FAILED = "policy_failed"
    """Sampling failed, and the agent crashed over it."""


class Reward(StrictModel):
    """Reward of an attempt; what an agent posts at its end."""

    model_config = ConfigDict(extra="forbid")

    reward: Annotated[float, Field(allow_inf_nan=False)]
    success: bool | None = None
    truncated: bool = False
    """Whether a limit ended the task."""
    metrics: dict[str, float] = Field(default_factory=dict, max_length=100)


class Exchange(PendingRequest):
    """One request and its reply, which a client may fetch again; one that disconnects does not end it.

    Args:
        job: What is sampled.
        reply: Gives the recorded reply.
        make_writer: Creates a writer of the response; all write the same.
        stream: As for :class:`~art_trainer.serving.dialects.streams.PendingRequest`.

    Attributes:
        clients: How many connections wait for it.
    """

    def __init__(
        self,
        job: GenerationJob,
        reply: Coroutine[Any, Any, Reply],
        make_writer: Callable[[], ResponseWriter],
        *,
        stream: bool,
    ) -> None:
        super().__init__([job], [self._output(reply)], stream=stream)
        self.make_writer = make_writer
        self.clients = 0
        self._reply: Reply | None = None

    @property
    def can_be_fetched(self) -> bool:
        """Whether there is, or will be, a reply."""
        (result,) = self.results
        return not result.done() or result.exception() is None

    @property
    def lost(self) -> bool:
        """Whether nobody waits for the reply and nobody received it, so that an equal request is a retry."""
        return self.clients == 0 and not (self._reply is not None and self._reply.delivered)

    def delivered(self) -> None:
        """A client receives the reply."""
        assert self._reply is not None
        self._reply.delivered = True

    def close(self) -> None:
        """A client waits no longer."""
        self.clients -= 1

    async def _output(self, reply: Coroutine[Any, Any, Reply]) -> GenerationOutput:
        self._reply = await reply
        return self._reply.output


class Session:
    """One episode. Requests arrive in the server's thread, other calls in any.

    Args:
        policy: Answers the requests.
        chat: Turns messages into tokens.
        scheduler: Samples the replies.
        rng_seed: Seeds the policy's randomness; equal seeds and messages get equal replies.

    Attributes:
        id: Part of its URL.
        token: The bearer token of its requests.
        recording: What was read and sampled.
        stored: Responses that a later request may continue.
        reward: The reward, once known.
        takes_reward: Whether whoever has the token may post the reward.
        error: Outcome and message if the newest request failed for a reason that is not the request.
        ended: Set once there is a reward or the session is closed.
    """

    def __init__(
        self,
        policy: TransformersPolicy,
        chat: AgentChat,
        scheduler: BatchScheduler,
        rng_seed: int | Sequence[int],
        *,
        takes_reward: bool = True,
    ) -> None:
        self.takes_reward = takes_reward
        self.id = secrets.token_hex(8)
        self.token = secrets.token_urlsafe(24)
        self.recording = Recording(chat, policy.max_context)
        self.stored = StoredResponses()
        self.reward: Reward | None = None
        self.error: tuple[Outcome, str] | None = None
        self.ended = threading.Event()
        self._policy = policy
        self._chat = chat
        self._scheduler = scheduler
        self._rng_seed = (rng_seed,) if isinstance(rng_seed, int) else tuple(rng_seed)
        self._exchanges: dict[str, Exchange] = {}
        self._jobs: set[GenerationJob] = set()
        self._lock = threading.Lock()
        self._opening = asyncio.Lock()

    async def exchange(
        self,
        request: ConversationRequest,
        writer: type[ResponseWriter],
        *,
        body: Mapping[str, Any],
        retry: bool,
        key: str,
    ) -> Exchange:
        """Start the exchange of a request, or find the earlier one that a retry asks for.

        Args:
            request: The request.
            writer: Writes its response.
            body: The request as it was sent.
            retry: Whether the client says that this is a retry.
            key: Idempotency key; equal requests with the same key are retries. May be empty.

        Raises:
            ApiError: The request is wrong, or the episode is closed.
        """
        async with self._opening:  # the retry of a request finds it
            if self.ended.is_set():
                raise _closed()
            digest = hashlib.sha256(
                json.dumps([key, writer.__name__, body], sort_keys=True).encode()
            ).hexdigest()
            earlier = self._exchanges.get(digest)
            if earlier is not None and earlier.can_be_fetched and (retry or key or earlier.lost):
                return earlier
            longest = self._policy.sampling.max_new_tokens
            generation = request.generation(self._policy.sampling)
            length = min(generation.max_length or longest, longest)
            opened = await self._chat.in_thread(lambda: self._open(request, length))
            context = list(opened.history.context)
            job = GenerationJob(
                context=context,
                uniforms=self._uniforms(generation.seed, opened, length),
                stops=StopStrings(generation.stops.strings, self._chat.decode),
                owner=self,
            )
            make_writer = partial(
                writer,
                request,
                generation,
                self._policy.name,
                [context],
                self._chat,
                response_id=opened.id,
                created=int(time.time()),
            )
            reply = self._sample(job, opened, make_writer())
            self._exchanges[digest] = exchange = Exchange(job, reply, make_writer, stream=request.stream)
            return exchange

    def set_reward(self, reward: Reward) -> None:
        """Set the reward, which ends the episode.

        Raises:
            ApiError: It already has another reward, or is closed.
        """
        with self._lock:
            if self.reward == reward:
                return
            if self.reward is not None:
                message = f"this episode already has the reward {self.reward.reward}"
                raise ApiError(message, "already_rewarded", param="reward")
            if self.ended.is_set():
                raise _closed()
            self.reward = reward
            self.ended.set()

    def close(self) -> None:
        """Take no more requests; unfinished replies are cancelled and not recorded."""
        with self._lock:
            self.ended.set()
            self.recording.end()
            for job in self._jobs:
                job.cancelled = True
            self._scheduler.release(self)

    def _open(self, request: ConversationRequest, reply_length: int) -> OpenRequest:
        version = self._policy.version
        try:
            return self.recording.open(
                request.conversation(), request.shown_tools(), reply_length=reply_length, version=version
            )
        except ContextFullError as error:
            self.error = (Outcome.CONTEXT_FULL, str(error))
            raise

    async def _sample(self, job: GenerationJob, opened: OpenRequest, writer: ResponseWriter) -> Reply:
        """Sample and record a reply."""
        with self._lock:
            if self.ended.is_set():
                raise _closed()
            self._jobs.add(job)
        try:
            self._scheduler.submit([job])
            output = await asyncio.wrap_future(job.result)
        except ApiError as error:
            if job.cancelled:
                raise _closed() from None
            self.error = (Outcome.POLICY_FAILED, str(error))
            raise
        finally:
            with self._lock:  # another thread may be closing the session, and going through them
                self._jobs.discard(job)
        with self._lock:
            if self.ended.is_set():
                raise _closed()
            reply = self.recording.close(opened, output, writer.read(output))
        self.error = None
        return reply

    def _uniforms(self, seed: int | None, opened: OpenRequest, length: int) -> NDArray[np.float32]:
        """The reply's random numbers, from the episode's seed and the conversation, never from the time."""
        which = (0, opened.repeat) if seed is None else (1, seed % 2**64)
        conversation = np.frombuffer(opened.digest[:16], np.uint32).tolist()
        rng = np.random.default_rng([*self._rng_seed, *conversation, *which])
        return rng.random(length, dtype=np.float32)


def _closed() -> ApiError:
    return ApiError("this episode is closed: it takes no more requests", "episode_over")
