"""Serving a policy while it trains: copies of its model, one for each version of the weights."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from art_gym.closing import CloseOnExit
from art_gym.errors import did_you_mean
from art_trainer.inference.sampling import SamplingParams, StopStrings
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.serving.dialects.batch_scheduler import BatchScheduler, GenerationJob
from art_trainer.serving.dialects.chat import AgentChat, ContextFullError
from art_trainer.serving.dialects.requests import Generation
from art_trainer.serving.dialects.streams import PendingRequest
from art_trainer.serving.http.middleware import ApiError

_NOT_LOADED = -1
"""Version of a copy that has none yet."""
_MAX_WAITING = 1024
"""Most replies that wait for a row of the batch; further requests are refused."""
_DEFAULT_CONTEXT = 2**17
"""Most tokens of prompt and reply if the model itself has no limit."""


def copy_model(model: nn.Module) -> nn.Module:
    """Copy a model for sampling; weights that are not trained are shared."""
    frozen: dict[int, object] = {
        id(weight): weight for weight in model.parameters() if not weight.requires_grad
    }
    own: nn.Module = copy.deepcopy(model, frozen)
    for weight in own.parameters():
        if id(weight) not in frozen:
            weight.requires_grad_(False)
            weight.grad = None
    return own.eval()


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Copy the weights that two models do not share.

    Raises:
        RuntimeError: Their weights have other names or shapes.
    """
    theirs = dict(source.named_parameters()) | dict(source.named_buffers())
    own = dict(target.named_parameters()) | dict(target.named_buffers())
    shapes = [{name: weight.shape for name, weight in weights.items()} for weights in (theirs, own)]
    if shapes[0] != shapes[1]:
        raise RuntimeError("the policy's model has other weights than when serving started: serve it anew")
    for name, weight in own.items():
        if weight is not theirs[name]:
            weight.copy_(theirs[name])


class ServedPolicy(CloseOnExit):
    """A copy of a policy's model with a scheduler that all clients share; a context manager.

    The copy takes as much memory as the trained weights; frozen weights, as below a LoRA adapter, are shared.
    A reply is sampled by one version of the weights from beginning to end, and depends on its prompt, its
    seed and these weights only, not on the batch.

    ``past_versions`` keeps older versions for rollouts that are some versions behind. Each is one more copy
    of the trained weights, and one more cache of ``max_batch`` contexts while it is used. The newest version
    then does not pause for an update.

    Args:
        policy: Its model, tokenizer, limits and sampling parameters are served.
        past_versions: How many older versions are served, under their names with the version.

    Attributes:
        name: The model's name.
        chat: Turns messages into tokens.
        context_limit: Most tokens of prompt and reply.
    """

    def __init__(self, policy: TransformersPolicy, *, past_versions: int = 0) -> None:
        self._source = policy.model
        # A copy: the learner's thread uses the other one, and tokenizers are not thread-safe.
        tokenizer = copy.deepcopy(policy.tokenizer)
        # The newest version is last; the first is the next to be replaced.
        self._schedulers = [
            BatchScheduler(_copy_policy(policy, tokenizer, version))
            for version in (*[_NOT_LOADED] * past_versions, policy.version)
        ]
        self.name = policy.name
        self.context_limit = policy.max_context or _DEFAULT_CONTEXT
        self.chat = AgentChat(tokenizer, self.context_limit)
        embedding = policy.model.get_input_embeddings()  # type: ignore[operator]
        self._vocabulary = int(embedding.weight.shape[0])
        self._rng = np.random.default_rng()
        self._lock = threading.Lock()
        self._update_lock = threading.Lock()

    @property
    def scheduler(self) -> BatchScheduler:
        """The scheduler of the newest version."""
        with self._lock:
            return self._schedulers[-1]

    @property
    def versions(self) -> list[int]:
        """All versions that are served, the newest first."""
        with self._lock:
            versions = [one.policy.version for one in reversed(self._schedulers)]
        return [version for version in versions if version != _NOT_LOADED]

    @property
    def sampling(self) -> SamplingParams:
        """Sampling parameters of requests that name none."""
        return self.scheduler.policy.sampling

    def update(self, version: int) -> None:
        """Serve the policy's present weights, in place of the oldest version.

        Requests that have started finish with their weights; others, and the caller, wait for that.

        Args:
            version: Of the weights; one that is already served is loaded again.

        Raises:
            RuntimeError: The policy is closed, or its model has other weights than before.
        """
        with self._update_lock:
            scheduler = self._find(version) or self._schedulers[0]
            with scheduler.paused():
                copy_weights(self._source, scheduler.policy.model)
                scheduler.policy.version = version
            with self._lock:
                self._schedulers.remove(scheduler)
                self._schedulers.append(scheduler)

    def requested_version(self, model: str) -> int | None:
        """Read the version out of a model's name; ``None`` for the newest.

        Raises:
            ApiError: If no such model is served.
        """
        if model in ("", self.name):
            return None
        versions = self.versions
        names = {f"{self.name}@{version}": version for version in versions}
        if model in names:
            return names[model]
        stem, _, version = model.rpartition("@")
        message = f"no model {model!r} is served{did_you_mean(model, [self.name, *names])}"
        if stem == self.name and version.isdecimal():
            message = f"version {version} is not loaded; served: {', '.join((self.name, *names))}"
        raise ApiError(message, "model_not_found", param="model")

    def submit(self, generation: Generation, prompts: Sequence[Sequence[int]]) -> PendingRequest:
        """Queue a request; all replies are sampled by one version of the weights.

        Args:
            generation: What is asked for.
            prompts: The contexts to be continued.

        Returns:
            The replies, those to the first prompt first; the caller closes it.

        Raises:
            ApiError: A reply does not fit the context, a token or the model is unknown, or too many replies
                are queued.
        """
        lengths = [self._reply_length(prompt, generation) for prompt in prompts]
        version = self.requested_version(generation.model)
        waiting = sum(one.waiting for one in self._schedulers)
        if waiting and waiting + len(prompts) * generation.count > _MAX_WAITING:
            raise ApiError(f"{waiting} replies are already queued: retry later", "rate_limit_exceeded")
        # If the version was replaced since it was looked up, the newest scheduler refuses the jobs.
        scheduler = (None if version is None else self._find(version)) or self.scheduler
        request = object()
        jobs = [
            GenerationJob(
                context=list(prompt),
                uniforms=np.random.default_rng(seed).random(length, dtype=np.float32),
                sampling=generation.sampling,
                top_logprobs=generation.top_logprobs or 0,
                stop_tokens=generation.stop_tokens,
                stops=StopStrings(generation.stops.strings, self.chat.decode),
                version=version,
                request=request,
                has_siblings=generation.count > 1,
            )
            for prompt, length in zip(prompts, lengths, strict=True)
            for seed in self._seeds(generation)
        ]
        scheduler.submit(jobs)
        results = (asyncio.wrap_future(job.result) for job in jobs)
        return PendingRequest(jobs, results, stream=generation.stream)

    def close(self) -> None:
        """Cancel all requests and end the schedulers' threads."""
        for one in self._schedulers:
            one.close()

    def _find(self, version: int) -> BatchScheduler | None:
        with self._lock:
            return next((one for one in self._schedulers if one.policy.version == version), None)

    def _reply_length(self, prompt: Sequence[int], generation: Generation) -> int:
        """Check a context; return the most tokens of its reply.

        If the request names no limit it is the policy's, or less if that is all the room there is.
        """
        field = generation.prompt_field
        if not prompt:
            raise ApiError(f"{field} holds no token to continue: send at least one", param=field)
        room = self.context_limit - len(prompt)
        length = generation.max_length or min(self.sampling.max_new_tokens, max(room, 1))
        if length > room:
            raise ContextFullError(self.context_limit, length, field)
        unknown = [token for token in prompt if not 0 <= token < self._vocabulary]
        if unknown:
            valid = f"valid ids are 0 to {self._vocabulary - 1}"
            raise ApiError(f"{field} has the token id {unknown[0]}: {valid}", param=field)
        return length

    def _seeds(self, generation: Generation) -> list[tuple[int, ...]]:
        """Seeds of the replies to a prompt; the first one does not depend on their number."""
        with self._lock:
            seed = int(self._rng.integers(2**63)) if generation.seed is None else generation.seed % 2**64
        return [(seed,), *((seed, index) for index in range(1, generation.count))]


def _copy_policy(
    policy: TransformersPolicy, tokenizer: PreTrainedTokenizerBase, version: int
) -> TransformersPolicy:
    own = TransformersPolicy(
        copy_model(policy.model),
        tokenizer,
        sampling=policy.sampling,
        max_context=policy.max_context,
        max_batch=policy.max_batch,
    )
    own.version = version
    return own
