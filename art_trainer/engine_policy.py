"""A model served by an inference engine, as a policy: token-exact, and trainable where it has weights here.

The engine samples, on hardware of its own; this side holds the conversations' tokens and, in training, the
weights that the learner changes. New weights are written to a folder and loaded by the engine before the next
reply is asked for. Requests run at the same time, each with a seed from its conversation.

What is reproducible: the requests, that is the token ids and seeds, for the same replies. What an engine
samples is not the same from run to run bit by bit, for its kernels add in an order that depends on what else
is in the batch; a reply's log-probs are its own in any case. Which replies :meth:`EnginePolicy.collect`
returns together depends on time; what episodes come of them does not.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from concurrent.futures import Future
from pathlib import Path

from torch import nn
from transformers import PreTrainedTokenizerBase

from art_trainer.chat import ChatFormat
from art_trainer.engines.background import BackgroundLoop
from art_trainer.engines.engine import Completion, CompletionRequest, Engine, ServedModel
from art_trainer.engines.weights import remove_weights, save_weights
from art_trainer.episodes import TokenHistory
from art_trainer.errors import EngineError, EngineRequestError
from art_trainer.interrupt import first_completed
from art_trainer.policy import Conversation, Reply
from art_trainer.sampler import SamplingParams
from art_trainer.token_policy import TokenPolicy
from art_trainer.token_thread import TokenThread, context_limit
from art_trainer.tokenizer_loading import load_tokenizer

_SEED_LIMIT = 2**31


class EnginePolicy(TokenPolicy):
    """Samples replies from an engine; implements :class:`art_trainer.policy.TrainablePolicy`.

    An engine rounds otherwise than the learner: train with ``importance_sampling_correction=True``, which
    weighs what it sampled by the learner's own probabilities.

    A request that fails for good ends its own episode as a policy error, in words. An engine that lacks what
    training needs, or does not take new weights, ends the rollout as an :class:`EngineError`.

    Args:
        engine: Where replies are sampled; it belongs to this policy, which closes it.
        model: The model whose weights are trained, the same as the engine serves; ``None`` plays only.
        tokenizer: The model's tokenizer; ``None`` loads it from where the server says it has the model from.
        sampling: How replies are sampled.
        max_context: Most tokens of prompt and reply together; by default what the engine and the model
            allow.
        history_window: As in :class:`~art_trainer.transformers_policy.TransformersPolicy`.
        weights_dir: A folder of this policy's own, where weights are written for the engine to read; by
            default a temporary one, which only serves an engine of the same user on this machine.
        send_seed: Whether each request carries a seed drawn from the conversation's randomness; some engines
            are faster without.
        name: What reports call the policy.

    Raises:
        EngineError: Where the server does not answer, or cannot take the weights that are trained.
        OSError: Where no tokenizer is given, and that of the served model cannot be had here.

    Attributes:
        format: How messages become tokens.
        max_context: Most tokens of prompt and reply together, or ``None`` where there is no limit.
    """

    def __init__(
        self,
        engine: Engine,
        model: nn.Module | None,
        tokenizer: PreTrainedTokenizerBase | None,
        *,
        sampling: SamplingParams | None = None,
        max_context: int | None = None,
        history_window: int | None = None,
        weights_dir: str | Path | None = None,
        send_seed: bool = True,
        name: str | None = None,
    ) -> None:
        self.engine = engine
        self.name = name or engine.name
        self._asked: dict[Future[Completion], Conversation] = {}
        self._loop = BackgroundLoop(self.name)
        # Also where nobody closes it: when it is garbage, or the program ends.
        self._ended = weakref.finalize(self, self._loop.close, engine.aclose)
        try:
            if model is not None and not (engine.full_weights or hasattr(model, "peft_config")):
                raise EngineError(f"{engine.name} takes LoRA adapters only: give the model one (lora)")
            if tokenizer is None or max_context is None:
                served = self._served()
                limits = (served.context_limit, context_limit(model))
                allowed = min((limit for limit in limits if limit is not None), default=None)
                max_context = allowed if max_context is None else max_context
                tokenizer = load_tokenizer(served.path) if tokenizer is None else tokenizer
        except BaseException:
            self.close()
            raise
        self.max_context = max_context
        self.format = ChatFormat(tokenizer, history_window=history_window)
        self.tokenizer = self.format.tokenizer
        self._model = model
        self._version = 0
        self._set_sampling(sampling or SamplingParams())
        self._send_seed = send_seed
        self._weights_dir = None if weights_dir is None else Path(weights_dir)
        # Weights here may be others than those the engine was started with.
        self._stale = model is not None
        self._live: set[Conversation] = set()
        self._waiting: dict[Conversation, CompletionRequest] = {}
        self._ready: list[tuple[Conversation, Reply]] = []

    @property
    def model(self) -> nn.Module:
        """The model whose weights are trained.

        Raises:
            EngineError: Where the policy only plays.
        """
        if self._model is None:
            raise EngineError(
                f"{self.name} plays only: to train it, make the policy with the model's weights"
            )
        return self._model

    def submit(self, conversation: Conversation) -> None:
        """Send a request for the next reply; while new weights wait to be loaded, with :meth:`collect`."""
        if conversation.state is None:
            conversation.state = TokenThread()
            self._live.add(conversation)
        thread: TokenThread = conversation.state
        sampling = self._sampling
        longest = None if self.max_context is None else self.max_context - sampling.max_new_tokens
        messages, tools = conversation.messages, conversation.tools
        if thread.read(self.format, messages, tools, longest=longest, version=self._version) is None:
            self._ready.append((conversation, Reply("", stop="length", context_full=True)))
            return
        seed = int(conversation.rng.integers(_SEED_LIMIT)) if self._send_seed else None
        stops = tuple(sorted(self.stop_token_ids))
        request = CompletionRequest(thread.context, sampling, stops, seed)
        if self._stale or self._unchecked:
            self._waiting[conversation] = request
        else:
            self._ask(conversation, request)

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """Wait for at least one reply, and return those that have come, in the order they were asked for.

        Raises:
            EngineError: Where the engine does not take new weights, or answers without what training needs.
        """
        if self._waiting:
            self._prepare(next(iter(self._waiting.values())))
            waiting, self._waiting = self._waiting, {}
            for conversation, request in waiting.items():
                self._ask(conversation, request)
        if self._ready:
            ready, self._ready = self._ready, []
            return ready
        if not self._asked:
            return []
        finished = first_completed(self._asked)
        done = [future for future in self._asked if future in finished]
        return [self._finish(self._asked.pop(future), future) for future in done]

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Cancel the conversation's request, if it is under way, and return its token histories."""
        self._live.discard(conversation)
        self._waiting.pop(conversation, None)
        self._ready = [(other, reply) for other, reply in self._ready if other is not conversation]
        for future in [asked for asked, owner in self._asked.items() if owner is conversation]:
            del self._asked[future]
            future.cancel()
        thread: TokenThread | None = conversation.state
        conversation.state = None
        return () if thread is None else thread.finish()

    def close(self) -> None:
        """Cancel what is under way and give up the connections."""
        self._ended()

    def __enter__(self) -> EnginePolicy:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()

    def _set_sampling(self, value: SamplingParams) -> None:
        super()._set_sampling(value)
        self._unchecked = self._model is not None

    def _set_version(self, value: int) -> None:
        super()._set_version(value)
        self._stale = self._model is not None  # the engine gets them before the next reply

    def _weights(self) -> nn.Module | None:
        return self._model

    def _count_live(self) -> int:
        return len(self._live)

    def _ask(self, conversation: Conversation, request: CompletionRequest) -> None:
        self._asked[self._loop.start(self.engine.complete(request))] = conversation

    def _finish(self, conversation: Conversation, future: Future[Completion]) -> tuple[Conversation, Reply]:
        """Record the sampled tokens as they are, and append the reply to the messages."""
        try:
            found = future.result()
        except EngineRequestError as fault:
            return conversation, Reply("", error=str(fault))
        said_it = self._says_stop(found)
        # A token that ends a turn may also be the last one there was room for.
        stopped = not said_it and (found.finish == "stop" or found.token_ids[-1] in self.stop_token_ids)
        thread: TokenThread = conversation.state
        text = thread.reply(
            self.format, found.token_ids, found.logprobs, stopped=stopped, version=self._version
        )
        if said_it and self._stop_strings is not None:
            text = self._stop_strings.cut(text)
        conversation.messages.append({"role": "assistant", "content": text})
        return conversation, Reply(text, "stop" if stopped or said_it else "length", len(found.token_ids))

    def _says_stop(self, found: Completion) -> bool:
        """Whether the last token completes a stop string, and is none that ends a turn by itself."""
        if self._stop_strings is None or found.token_ids[-1] in self.stop_token_ids:
            return False
        return self._stop_strings.ends(found.token_ids, len(found.token_ids))

    def _prepare(self, request: CompletionRequest) -> None:
        """Bring the engine to the present weights and find out about its log-probs."""
        if self._stale:
            self._push()
            self._stale = False
        if self._unchecked:
            try:
                self._loop.run(self.engine.check(self._sampling, request.prompt_ids))
            except EngineRequestError as fault:
                raise EngineError(f"{self.name} does not sample: {fault}") from fault
            self._unchecked = False

    def _push(self) -> None:
        parent = self._weights_folder()
        saved = save_weights(self.model, parent, self._version)
        self._loop.run(self.engine.load(saved))
        remove_weights(parent, keep=saved.name)

    def _weights_folder(self) -> Path:
        if self._weights_dir is None:
            folder = tempfile.mkdtemp(prefix="art-engine-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._weights_dir = Path(folder)
        return self._weights_dir

    def _served(self) -> ServedModel:
        try:
            return self._loop.run(self.engine.served())
        except EngineRequestError as fault:
            raise EngineError(f"{self.name} is not there: {fault}") from fault
