"""What is asked of an inference engine: tokens for tokens, and the weights that are handed to it.

An engine is a server that somebody started. It reads token ids and answers with the ids it sampled and the
log-probability of each, so that nothing is ever tokenised twice. Weights travel as a folder that both sides
can see. Its name holds a digest of what is in it, so that equal names are equal weights: a server's prefix
cache goes by the name of the adapter, and could otherwise serve keys and values of the version before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from art_trainer.engines.weights import SavedWeights
from art_trainer.errors import EngineError
from art_trainer.sampler import SamplingParams

PROBE_TOKENS = 16
"""Tokens sampled to find out which log-probs a server reports."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What to continue, and how."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    stop_token_ids: tuple[int, ...] = ()
    """All tokens that end the completion."""
    seed: int | None = None
    """Of the engine's randomness for this completion; ``None`` leaves it to the engine."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine sampled."""

    token_ids: tuple[int, ...]
    """The tokens, the one that ended it included; at least one."""
    logprobs: tuple[float, ...]
    """The log-probability of each, as the engine reports it."""
    finish: Literal["stop", "length"]
    """Whether the last token ends it, or the limit of tokens was reached."""
    weights: str
    """The name of the weights that sampled it, as the engine has it."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server says it serves."""

    name: str
    """What requests call the model."""
    path: str
    """The folder or Hugging Face name it was loaded from."""
    context_limit: int | None
    """Most tokens of prompt and completion together, where the server says so."""


class Engine(Protocol):
    """A server with token ids; every method may be called many times at once, from one event loop."""

    name: str
    """What reports call it."""
    full_weights: bool
    """Whether :meth:`load` takes all weights of a model, or LoRA adapters only."""

    async def served(self) -> ServedModel:
        """The model that the server serves."""

    async def complete(self, request: CompletionRequest) -> Completion:
        """Sample one completion.

        Raises:
            EngineRequestError: Where this request failed for good.
            EngineError: Where the answer lacks what training needs; the message says what to set.
        """

    async def load(self, weights: SavedWeights) -> None:
        """Sample with these weights from now on; loading what is already loaded changes nothing.

        Raises:
            EngineError: Where the server does not take them; it goes on with those it had.
        """

    async def check(self, sampling: SamplingParams, prompt_ids: Sequence[int]) -> None:
        """Find out, once, whether reported log-probs are those of the tempered distribution.

        Args:
            sampling: How training samples.
            prompt_ids: Any prompt, to try it on.

        Raises:
            EngineError: Where they are not, and ``sampling`` makes a difference.
        """

    async def aclose(self) -> None:
        """Give up the connections."""


def completion(
    engine: str,
    request: CompletionRequest,
    token_ids: Sequence[Any],
    logprobs: Sequence[Any],
    finish: object,
    weights: str,
) -> Completion:
    """A completion, checked: nothing else may reach the learner.

    Args:
        engine: The engine's name, for the words of an error.
        request: What was asked.
        token_ids: What the server says it sampled.
        logprobs: What it says their log-probabilities are.
        finish: Why it says it stopped.
        weights: Which weights sampled.

    Raises:
        EngineError: Naming what is wrong with it.
    """
    limit = request.sampling.max_new_tokens
    if len(logprobs) != len(token_ids):
        raise EngineError(f"{engine} sent {len(token_ids)} token ids with {len(logprobs)} log-probs")
    if not 0 < len(token_ids) <= limit:
        raise EngineError(f"{engine} sent {len(token_ids)} tokens where 1 to {limit} were asked for")
    if not all(type(token) is int and token >= 0 for token in token_ids):
        raise EngineError(f"{engine} sent token ids that are no ids: {list(token_ids)[:8]}")
    for place, value in enumerate(logprobs):
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise EngineError(f"{engine} sent {value!r} as the log-prob of token {place}, not a number")
    if finish not in ("stop", "length"):
        raise EngineError(f"{engine} stopped a completion because of {finish!r}, not 'stop' or 'length'")
    return Completion(
        tuple(token_ids),
        tuple(float(value) for value in logprobs),
        "stop" if finish == "stop" else "length",
        weights,
    )
