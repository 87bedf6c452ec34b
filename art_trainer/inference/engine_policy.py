"""Policy of a model that a vLLM server samples: token-exact, and trainable.

The engine samples, on hardware of its own. This side holds the conversations' tokens and, in training, the
weights that the learner changes. New weights are written to a folder and loaded by the engine before the next
reply is asked for. Requests run at the same time, each with a seed from its conversation.

Reproducible are the requests, that is the token ids and seeds, for the same replies. What an engine samples
is not the same from run to run bit by bit, for its kernels add in an order that depends on what else is in
the batch; a reply's log-probs are its own in any case. Which replies :meth:`EnginePolicy.collect` returns
together depends on time; the episodes do not.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import weakref
from concurrent.futures import Future
from pathlib import Path

from torch import nn
from transformers import PreTrainedTokenizerBase

from art_gym.closing import CloseOnExit
from art_trainer.errors import EngineError, EngineRequestError
from art_trainer.inference.engines.clients import Completion, CompletionRequest, ServedModel, VLLMEngine
from art_trainer.inference.engines.comparison import EngineComparison
from art_trainer.inference.engines.http import BackgroundLoop
from art_trainer.inference.policy import Conversation, Reply
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.trainable_policy import TrainablePolicy
from art_trainer.models.chat_template import TokenHistoryBuilder, context_limit
from art_trainer.models.loading import load_tokenizer
from art_trainer.models.rotary import frequency_limit
from art_trainer.models.weights_io import remove_weights, save_weights
from art_trainer.signals import first_completed
from art_trainer.types import TokenHistory

_SEED_LIMIT = 2**31


class EnginePolicy(TrainablePolicy, CloseOnExit):
    """Samples replies from an inference engine.

    An engine rounds otherwise than the learner: train with ``importance_sampling_correction=True``, which
    weighs what it sampled by the learner's own probabilities.

    A request that fails for good ends its own episode as a policy error. An engine that lacks what training
    needs, does not take new weights, or samples from another model than this one with them
    (:mod:`art_trainer.inference.engines.comparison`), ends the rollout with an :class:`EngineError`.

    Args:
        engine: Where replies are sampled; this policy closes it.
        model: The model whose weights are trained, the same as the engine serves; ``None`` plays only.
        tokenizer: The model's tokenizer; ``None`` loads it from the path that the server reports.
        sampling: How replies are sampled.
        max_context: Most tokens of prompt and reply together; by default what engine and model allow.
        history_window: As in :class:`~art_trainer.inference.transformers_policy.TransformersPolicy`.
        weights_dir: A folder of this policy's own, where weights are written for the engine to read; by
            default a temporary one, which only serves an engine of the same user on this machine.
        name: What reports call the policy.

    Raises:
        EngineError: If the server does not answer, or cannot take the weights that are trained.
        OSError: If no tokenizer is given and the served model's cannot be loaded here.
    """

    def __init__(
        self,
        engine: VLLMEngine,
        model: nn.Module | None,
        tokenizer: PreTrainedTokenizerBase | None,
        *,
        sampling: SamplingParams | None = None,
        max_context: int | None = None,
        history_window: int | None = None,
        weights_dir: str | Path | None = None,
        name: str | None = None,
    ) -> None:
        self.engine = engine
        self._weights_dir = None if weights_dir is None else Path(weights_dir)
        self._waiting: dict[Conversation, CompletionRequest] = {}
        self._in_flight: dict[Future[Completion], Conversation] = {}
        self._loop = BackgroundLoop(name or engine.name)
        # Also runs if nobody calls close: at garbage collection or at exit.
        self._finalizer = weakref.finalize(self, self._loop.close, engine.aclose)
        try:
            if model is not None and not hasattr(model, "peft_config"):
                raise EngineError(f"{engine.name} takes LoRA adapters only: add one to the model (lora)")
            longest = frequency_limit(model)
            if tokenizer is None or max_context is None or longest is not None:
                served = self._served_model()
                if longest is not None and (served.context_limit or longest + 1) > longest:
                    raise EngineError(
                        f"{engine.name} serves {served.context_limit} tokens, but the model's rotary "
                        f"frequencies change beyond {longest}: start it with --max-model-len {longest}"
                    )
                limits = (served.context_limit, context_limit(model))
                allowed = min((limit for limit in limits if limit is not None), default=None)
                max_context = allowed if max_context is None else max_context
                tokenizer = load_tokenizer(served.path) if tokenizer is None else tokenizer
        except BaseException:
            self.close()
            raise
        super().__init__(
            model,
            tokenizer,
            sampling=sampling,
            max_context=max_context,
            history_window=history_window,
            name=name or engine.name,
        )
        # The weights here may differ from those the engine was started with.
        self._stale = model is not None
        self._comparison: EngineComparison | None = None

    def submit(self, conversation: Conversation) -> None:
        """Send a request for the next reply; while new weights wait, :meth:`collect` sends it."""
        if conversation.state is None:
            conversation.state = TokenHistoryBuilder()
            self._live.add(conversation)
        history: TokenHistoryBuilder = conversation.state
        if self._read(conversation, history) is None:
            return
        seed = int(conversation.rng.integers(_SEED_LIMIT))
        stops = tuple(sorted(self.stop_token_ids))
        request = CompletionRequest(history.context, self._sampling, stops, seed)
        if self._stale or self._unchecked or self.engine.asleep:
            self._waiting[conversation] = request
        else:
            self._send(conversation, request)

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """Wait for at least one reply, and return those that have come, in the order they were asked for.

        Raises:
            EngineError: If the engine does not take new weights, or answers without what training needs.
        """
        if self._waiting:
            self._prepare(next(iter(self._waiting.values())))
            waiting, self._waiting = self._waiting, {}
            for conversation, request in waiting.items():
                self._send(conversation, request)
        if self._ready:
            ready, self._ready = self._ready, []
            return ready
        done = first_completed(self._in_flight)
        return [self._receive(self._in_flight.pop(future), future) for future in done]

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Cancel the conversation's request, if one is in flight, and return its token histories."""
        self._waiting.pop(conversation, None)
        for future in [asked for asked, owner in self._in_flight.items() if owner is conversation]:
            del self._in_flight[future]
            future.cancel()
        history: TokenHistoryBuilder | None = conversation.state
        self._forget(conversation)
        if not self._live and self._model is not None:  # an update may follow, on the same GPU
            self._loop.run(self.engine.sleep())
        return () if history is None else history.finish()

    def close(self) -> None:
        """Cancel requests in flight and close the connections."""
        self._finalizer()

    def _set_sampling(self, value: SamplingParams) -> None:
        super()._set_sampling(value)
        self._unchecked = self._model is not None

    def _set_version(self, value: int) -> None:
        super()._set_version(value)
        self._stale = self._model is not None  # the engine gets them before the next reply

    def _send(self, conversation: Conversation, request: CompletionRequest) -> None:
        self._in_flight[self._loop.start(self.engine.complete(request))] = conversation

    def _receive(self, conversation: Conversation, future: Future[Completion]) -> tuple[Conversation, Reply]:
        try:
            found = future.result()
        except EngineRequestError as fault:
            return conversation, Reply("", error=str(fault))
        # A token that ends a turn may also be the last one there was room for.
        end = self._turn_end(found.token_ids, len(found.token_ids), self.stop_token_ids)
        if end is None and found.finish == "stop":
            end = "stop_token"
        reply = self._finish_reply(conversation, conversation.state, found.token_ids, found.logprobs, end)
        return conversation, reply

    def _prepare(self, request: CompletionRequest) -> None:
        """Wake the engine, load the present weights, and check that it samples from them and says so."""
        self._loop.run(self.engine.wake())
        if self._stale:
            self._push_weights()
            self._stale, self._unchecked = False, True
        if not self._unchecked:
            return
        if (refusal := self.engine.cannot_report(self._sampling)) is not None:
            raise EngineError(f"{self.name}: {refusal}")
        if self._comparison is None:
            self._comparison = EngineComparison(self.model, self._ask, self.tokenizer.bos_token_id)
        try:
            self._comparison.check(request.prompt_ids, self._sampling)
        except EngineRequestError as fault:
            raise EngineError(f"{self.name} does not sample: {fault}") from fault
        self._unchecked = False

    def _ask(self, requests: list[CompletionRequest]) -> list[Completion]:
        async def all_at_once() -> list[Completion]:
            return await asyncio.gather(*map(self.engine.complete, requests))

        return self._loop.run(all_at_once())

    def _push_weights(self) -> None:
        if self._weights_dir is None:
            self._weights_dir = Path(tempfile.mkdtemp(prefix="art-engine-"))
            weakref.finalize(self, shutil.rmtree, str(self._weights_dir), ignore_errors=True)
        saved = save_weights(self.model, self._weights_dir, self._version)
        self._loop.run(self.engine.load(saved))
        remove_weights(self._weights_dir, keep=saved.name)

    def _served_model(self) -> ServedModel:
        try:
            return self._loop.run(self.engine.served_model())
        except EngineRequestError as fault:
            raise EngineError(f"cannot reach {self.engine.name}: {fault}") from fault
