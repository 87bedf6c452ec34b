"""Episodes under way: who may speak in one, what was asked and answered, and what it was worth."""

from __future__ import annotations

import asyncio
import enum
import hashlib
import json
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from art_trainer.agent_server.errors import EpisodeOver
from art_trainer.agent_server.recording import Opened, Recording, Reply
from art_trainer.serving.agent_chat import AgentChat
from art_trainer.serving.chat_answer import ChatAnswer
from art_trainer.serving.chat_request import ChatRequest
from art_trainer.serving.errors import ContextFull, SamplingFailed
from art_trainer.serving.live_sampler import Abandoned, LiveSampler, Question
from art_trainer.serving.replies import Ends
from art_trainer.serving.tool_calls import speakable
from art_trainer.serving.wire import TokenTexts
from art_trainer.stop_strings import StopStrings
from art_trainer.transformers_policy import TransformersPolicy
from art_trainer.web.errors import ApiError


class Outcome(enum.StrEnum):
    """How an agent's attempt ended."""

    REWARDED = "rewarded"
    """It said what the attempt is worth."""
    CRASHED = "crashed"
    """It raised, or what it returned is no reward."""
    CONTEXT_FULL = "context_full"
    """It raised since its conversation no longer fitted into the context; worth 0, and learned from."""
    TIMED_OUT = "timed_out"
    """It was still at work when its time was over."""
    NO_REWARD = "no_reward"
    """It ended without a reward, and none was posted in time."""
    NO_REPLIES = "no_replies"
    """It has a reward, but never asked the policy anything."""
    POLICY_FAILED = "policy_failed"
    """The policy broke while it sampled, and the agent crashed over it."""


@dataclass(frozen=True, slots=True)
class Reward:
    """What an agent said its attempt is worth."""

    value: float
    success: bool | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Exchange:
    """One question and its answer, which a client may come back for.

    Attributes:
        answer: How it is written.
        said: The words that are certain so far.
        grown: Set when there are more, or the reply is complete.
        clients: How many connections wait for it.
    """

    answer: ChatAnswer
    said: str = ""
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    clients: int = 0
    task: asyncio.Task[Reply] | None = None

    async def reply(self) -> Reply:
        """Wait for the reply.

        Raises:
            ApiError: There is none, for a reason the client is told.
        """
        assert self.task is not None
        return await asyncio.shield(self.task)  # a client that hangs up does not end the sampling

    def grow(self, said: str) -> None:
        """Note words that are certain now."""
        if len(said) > len(self.said):
            self.said = said
            self.grown.set()

    @property
    def complete(self) -> bool:
        """Whether the reply, or the fault, is there."""
        return self.task is not None and self.task.done()

    @property
    def answers_retries(self) -> bool:
        """Whether there is, or will be, a reply to give again."""
        return not self.complete or self._recorded is not None

    @property
    def lost(self) -> bool:
        """Whether nobody waits for the reply and nobody has got it: the same question again is a retry."""
        recorded = self._recorded
        return self.clients == 0 and (recorded is None or not recorded.delivered)

    @property
    def _recorded(self) -> Reply | None:
        if self.task is None or not self.task.done() or self.task.exception() is not None:
            return None
        return self.task.result()


class Session:
    """One episode: the agent's requests arrive in the server's thread, the rest in others.

    Args:
        policy: Who answers.
        chat: How messages become tokens.
        sampler: Where replies are sampled.
        rng_seed: Seeds the policy's randomness; equal seeds and messages get equal replies.

    Attributes:
        id: Stands in its URL.
        token: Who has it may speak.
        recording: What was read and said.
        reward: What it was worth, once that is known.
        fault: Why the newest request got no reply, in kind and in words, where that was not its own fault.
        ended: Set once there is a reward or the session is closed.
    """

    def __init__(
        self,
        policy: TransformersPolicy,
        chat: AgentChat,
        sampler: LiveSampler,
        rng_seed: Sequence[int],
    ) -> None:
        self.id = secrets.token_hex(8)
        self.token = secrets.token_urlsafe(24)
        self.recording = Recording(chat, policy.max_context)
        self.reward: Reward | None = None
        self.fault: tuple[Outcome, str] | None = None
        self.ended = threading.Event()
        self._policy = policy
        self._chat = chat
        self._texts = TokenTexts(chat.decode)
        self._sampler = sampler
        self._rng_seed = tuple(rng_seed)
        self._exchanges: dict[str, Exchange] = {}
        self._questions: set[Question] = set()
        self._lock = threading.Lock()

    def exchange(self, request: ChatRequest, *, body: Mapping[str, Any], retry: bool, key: str) -> Exchange:
        """The exchange that answers a request: a new one, or the one that the client has asked for before.

        Args:
            request: The request.
            body: The request as it was sent.
            retry: Whether the client says that it asks again.
            key: An idempotency key, where the client sent one: what is asked again with the same is a retry.

        Raises:
            ApiError: The request cannot be answered, or the episode takes no more of them.
        """
        if self.ended.is_set():
            raise EpisodeOver
        digest = hashlib.sha256(json.dumps([key, body], sort_keys=True).encode()).hexdigest()
        earlier = self._exchanges.get(digest)
        if earlier is not None and earlier.answers_retries and (retry or key or earlier.lost):
            return earlier
        opened = self._open(request)
        wire_id = f"chatcmpl-{opened.digest.hex()[:24]}-{opened.repeat}"
        model = f"{self._policy.name}@{self._policy.version}"
        exchange = Exchange(ChatAnswer(wire_id, model, request, self._texts, opened.context))
        exchange.task = asyncio.get_running_loop().create_task(self._answer(request, opened, exchange))
        exchange.task.add_done_callback(lambda task: exchange.grown.set())
        self._exchanges[digest] = exchange
        return exchange

    def pay(self, reward: Reward) -> None:
        """Set what the episode was worth, which ends it.

        Raises:
            ApiError: It has another reward already, or was given up.
        """
        with self._lock:
            if self.reward == reward:
                return
            if self.ended.is_set():
                if self.reward is None:
                    raise EpisodeOver
                words = f"this episode already has the reward {self.reward.value}"
                raise ApiError(words, status=409, code="already_rewarded", param="reward")
            self.reward = reward
            self.ended.set()

    def close(self) -> None:
        """Take no more requests; what is still being sampled is given up and not recorded."""
        with self._lock:
            self.ended.set()
            for question in self._questions:
                question.unwanted = True
            self._sampler.drop(self.recording.sequences())

    def _open(self, request: ChatRequest) -> Opened:
        try:
            return self.recording.open(
                request.messages,
                request.tools,
                reply_length=self._reply_length(request),
                version=self._policy.version,
            )
        except ContextFull as full:
            self.fault = (Outcome.CONTEXT_FULL, str(full))
            raise

    def _reply_length(self, request: ChatRequest) -> int:
        longest = self._policy.sampling.max_new_tokens
        return min(request.terms.max_tokens or longest, longest)

    def _ends(self, request: ChatRequest) -> Ends:
        return Ends(request.terms.stops, self._policy.sampling.stop_strings)

    async def _answer(self, request: ChatRequest, opened: Opened, exchange: Exchange) -> Reply:
        question = self._question(request, opened, exchange)
        with self._lock:
            if self.ended.is_set():
                raise EpisodeOver
            self._questions.add(question)
        try:
            sampled = await asyncio.wrap_future(self._sampler.ask(question))
        except Abandoned:
            raise EpisodeOver from None
        except Exception as fault:  # whatever the model raised: the client is told, and so is the episode
            self.fault = (Outcome.POLICY_FAILED, f"{type(fault).__name__}: {fault}")
            raise SamplingFailed(self.fault[1]) from fault
        finally:
            self._questions.discard(question)
        with self._lock:
            if self.ended.is_set():
                self._sampler.drop([question.sequence])
                raise EpisodeOver
            reply = self.recording.close(opened, sampled, ends=self._ends(request), one_call=request.one_call)
        self.fault = None
        return reply

    def _question(self, request: ChatRequest, opened: Opened, exchange: Exchange) -> Question:
        ends = self._ends(request)
        question = Question(
            sequence=opened.sequence,
            context=opened.context,
            uniforms=self._uniforms(request, opened),
            stops=StopStrings(ends.strings, self._chat.decode) if ends.strings else None,
        )
        if request.terms.stream:
            loop, decode = asyncio.get_running_loop(), self._chat.decode

            def tell(token_ids: Sequence[int]) -> None:
                text = ends.cut(decode(token_ids))
                certain = text[: speakable(text, request.tool_names, ends.dropped)]
                loop.call_soon_threadsafe(exchange.grow, certain)

            question.on_token = tell
        return question

    def _uniforms(self, request: ChatRequest, opened: Opened) -> NDArray[np.float32]:
        """The reply's random numbers, from the episode's seed and what was asked, never from when."""
        seed = request.terms.seed
        which = (0, opened.repeat) if seed is None else (1, seed % 2**64)
        asked = np.frombuffer(opened.digest[:16], np.uint32).tolist()
        rng = np.random.default_rng([*self._rng_seed, *asked, *which])
        return rng.random(self._reply_length(request), dtype=np.float32)
