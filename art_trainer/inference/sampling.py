"""Sampling parameters, sampling from logits, and stop strings.

Every conversation brings its own uniform random numbers, and a token is found by inverting the cumulative
distribution (:func:`sample`). So what a conversation samples does not depend on what it is batched with, on
the device's generator or on the order of scheduling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from art_trainer.config import (
    Amount,
    Count,
    Fraction,
    GRPOConfig,
    Positive,
    Texts,
    TopP,
    Whole,
    check_fields,
)
from art_trainer.models.logprobs import Scorer
from art_trainer.models.packing import Batch


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How replies are sampled; names follow TRL's ``GRPOConfig`` and Transformers' ``GenerationConfig``."""

    temperature: Amount = 1.0
    """Divides the logits; 0 always takes the most likely token."""
    top_p: TopP = 1.0
    """Keep the fewest most likely tokens whose probabilities sum to at least this; 1 keeps all."""
    top_k: Whole = 0
    """Keep this many most likely tokens; 0 keeps all."""
    min_p: Fraction = 0.0
    """Drop tokens less likely than this times the most likely one; 0 drops none."""
    repetition_penalty: Positive = 1.0
    """Above 1 makes tokens of the context (prompt and reply) less likely, see :func:`penalize_repetition`."""
    max_new_tokens: Count = 256
    """Most tokens in one reply, the end-of-turn token included."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a turn, besides the tokenizer's and the chat template's own."""
    stop_strings: Texts = ()
    """Texts that end a turn: its last token is the one that completes such a text. The environment gets the
    reply up to and including the text, without the rest of that token."""

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def for_training(cls, config: GRPOConfig, stop_token_ids: Sequence[int] = ()) -> SamplingParams:
        """Return how training samples: the settings of the same names and ``max_completion_length``.

        Args:
            config: The settings.
            stop_token_ids: Tokens that end a turn, of which the settings know nothing.
        """
        shared = {field.name for field in fields(cls)} & {field.name for field in fields(config)}
        given = {name: value for name in shared if (value := getattr(config, name)) is not None}
        return cls(**given, max_new_tokens=config.max_completion_length, stop_token_ids=tuple(stop_token_ids))

    @classmethod
    def for_evaluation(cls, config: GRPOConfig, stop_token_ids: Sequence[int] = ()) -> SamplingParams:
        """Return how evaluations sample: as training, but at ``eval_temperature`` and without filters."""
        return cls.for_training(config, stop_token_ids).unfiltered(config.eval_temperature)

    def unfiltered(self, temperature: float) -> SamplingParams:
        """Return the same parameters with a temperature alone: no filter and no repetition penalty."""
        return replace(self, temperature=temperature, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0)

    @property
    def greedy(self) -> bool:
        """Whether sampling needs no randomness."""
        return self.temperature == 0


def penalize_repetition(
    logits_B_V: torch.Tensor, contexts: Sequence[Sequence[int] | NDArray[np.int64]], penalty: float
) -> torch.Tensor:
    """Apply the repetition penalty to logits (CTRL, arXiv:1909.05858, section 4.1).

    Tokens of the context become less likely: a positive logit is divided by the penalty and a negative one
    multiplied, as Transformers does; once, however often the token occurs. It applies before temperature and
    filters.

    Args:
        logits_B_V: The model's logits, any float type.
        contexts: For each row all tokens before the one to sample, read ones and sampled ones.
        penalty: Above 0; below 1 it rewards repetition.

    Returns:
        Logits of the same shape, at least 32-bit.
    """
    rows = np.repeat(np.arange(len(contexts)), [len(context) for context in contexts])
    tokens = np.concatenate([np.asarray(context, np.int64) for context in contexts])
    # The embedding may know more tokens than the head.
    known = tokens < logits_B_V.shape[-1]
    seen = torch.zeros(logits_B_V.shape, dtype=torch.bool)
    seen[torch.from_numpy(rows[known]), torch.from_numpy(tokens[known])] = True
    logits = logits_B_V.to(torch.promote_types(logits_B_V.dtype, torch.float32))
    penalized = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(seen.to(logits.device), penalized, logits)


def sampling_logprobs(logits_B_V: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Return the log-probs that tokens are sampled from, with temperature and filters applied.

    Filters apply in Transformers' order: top-k, top-p, min-p. A dropped token has log-probability -inf, and
    what is left sums to one again.

    Args:
        logits_B_V: The model's logits, any float type.
        params: With a temperature above 0.

    Returns:
        Log-probabilities of the same shape, at least 32-bit.
    """
    dtype = torch.promote_types(logits_B_V.dtype, torch.float32)
    logits = logits_B_V.to(dtype) / params.temperature
    vocabulary = logits.shape[-1]
    if 0 < params.top_k < vocabulary:
        threshold = logits.topk(params.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < threshold, -torch.inf)
    if params.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        probabilities = ordered.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        beyond = (before >= params.top_p) & (before > 0)  # a top_p of 1e-300 is 0 in 32 bits
        drop = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, beyond)
        logits = logits.masked_fill(drop, -torch.inf)
    if params.min_p > 0:
        best = logits.max(dim=-1, keepdim=True).values
        least = best + torch.log(torch.tensor(params.min_p, dtype=dtype, device=logits.device))
        logits = logits.masked_fill(logits < least, -torch.inf)
    return logits.log_softmax(dim=-1)


def sampled_logprobs(
    logits_N_V: torch.Tensor,
    tokens_N: torch.Tensor,
    contexts: Sequence[Sequence[int] | NDArray[np.int64]],
    params: SamplingParams,
) -> torch.Tensor:
    """Return the log-prob of each token in the distribution that it was sampled from, shape [N].

    A sampler that rounds otherwise, or has older weights, may sample a token that these logits drop. It
    counts as kept: the distribution is then over the tokens that are kept and this one.

    Args:
        logits_N_V: The model's logits, any float type.
        tokens_N: The sampled tokens.
        contexts: For each all tokens before it.
        params: How they were sampled, with a temperature above 0.
    """
    if params.repetition_penalty != 1:
        logits_N_V = penalize_repetition(logits_N_V, contexts, params.repetition_penalty)
    logprobs = sampling_logprobs(logits_N_V, params)
    places, best = tokens_N[:, None], logprobs.argmax(dim=-1, keepdim=True)
    picked = logprobs.gather(-1, places)
    # The log of the token's odds against all that are kept; the best token is among those.
    logit, top = (logits_N_V.gather(-1, index).to(logprobs.dtype) for index in (places, best))
    odds = (logit - top) / params.temperature + logprobs.gather(-1, best)
    return torch.where(picked.isneginf(), functional.logsigmoid(odds), picked)[:, 0]


def batch_logprobs(scorer: Scorer, batch: Batch, params: SamplingParams) -> torch.Tensor:
    """Return the log-probs of a batch's sampled tokens in the distribution they were sampled from, shape [N].

    Temperature, penalty and filters apply as in the sampler. A learner that counted what a filter has dropped
    would find every token less likely, and weigh a reply of 50 tokens at top_p 0.8 by 1e-5.

    Args:
        scorer: The model.
        batch: The batch.
        params: How the tokens were sampled, with a temperature above 0.
    """
    contexts = [row.token_ids[:place] for row in batch.rows for place in row.targets]

    def compute(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        before = [contexts[token] for token in tokens.tolist()]
        return sampled_logprobs(logits, batch.targets_N[tokens], before, params)

    return scorer.map_logits(batch, compute)


def sample(
    logits_B_V: torch.Tensor, uniforms_B: torch.Tensor, params: SamplingParams, *, check: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token a row by inverting the cumulative distribution.

    Args:
        logits_B_V: The model's logits.
        uniforms_B: One number in [0, 1) a row; not looked at when greedy.
        params: How to sample.
        check: Whether to replace tokens of probability 0, which on a GPU rounding leads to once in a while.

    Returns:
        The tokens ``[B]``, and for each its log-probability ``[B]`` under the distribution it was sampled
        from: 0 when greedy, since that distribution has one token only.
    """
    if params.greedy:
        tokens = logits_B_V.argmax(dim=-1)
        return tokens, torch.zeros(tokens.shape, dtype=torch.float32, device=tokens.device)
    logprobs = sampling_logprobs(logits_B_V, params)
    probabilities = logprobs.exp()
    cumulative = probabilities.cumsum(dim=-1)
    total = cumulative[:, -1:]
    # Rounding may lift the point onto the total itself, beyond which no token lies.
    below_total = torch.nextafter(total, torch.zeros_like(total))
    point = torch.minimum(uniforms_B.to(total.dtype)[:, None] * total, below_total)
    tokens = torch.searchsorted(cumulative, point, right=True)
    if check:
        tokens = _possible(tokens, probabilities)
    return tokens[:, 0], logprobs.gather(-1, tokens)[:, 0]


def _possible(tokens_B_1: torch.Tensor, probabilities_B_V: torch.Tensor) -> torch.Tensor:
    """Replace tokens of probability 0 by the nearest possible one before them.

    On a GPU a cumulative sum may fall in places, by rounding (pytorch#21780), and a search in it may end at a
    token that a filter has dropped.
    """
    impossible = probabilities_B_V.gather(-1, tokens_B_1) == 0
    if not impossible.any():
        return tokens_B_1
    places = torch.arange(probabilities_B_V.shape[-1], device=tokens_B_1.device)
    before = torch.where(probabilities_B_V > 0, places, -1).cummax(dim=-1).values.gather(-1, tokens_B_1)
    best = probabilities_B_V.argmax(dim=-1, keepdim=True)
    return torch.where(impossible, torch.where(before < 0, best, before), tokens_B_1)


def first_stop(text: str, strings: Sequence[str]) -> tuple[int, int] | None:
    """Return end and start of the string that is complete first in a text; ``None`` if none is."""
    places = ((text.find(string), len(string)) for string in strings)
    return min(((place + length, place) for place, length in places if place >= 0), default=None)


_UNFINISHED = "\ufffd"
"""What a tokenizer decodes bytes to that are no whole character yet."""
_CONTEXT = 4
"""Tokens decoded before those that a stop string can span: a character may begin there, or a space that a
tokenizer drops at the start of a text."""


class StopStrings:
    """Finds the first of some stop strings in text that grows token by token.

    A stop string may end inside a token and span many. The reply keeps its tokens as they were sampled, the
    last one completing the string; its text is cut behind the string.

    A token that cannot complete any string costs one dict lookup. Others cost the decoding of the last
    tokens, as many as the longest string has bytes and a few more; the whole reply is decoded only if a
    string is found in those.

    Args:
        strings: The stop strings, none of them empty.
        decode: Tokens to text.
    """

    def __init__(self, strings: Sequence[str], decode: Callable[[Sequence[int]], str]) -> None:
        self._strings = tuple(strings)
        self._decode = decode
        # Every token has at least one byte, so no string spans more tokens than it has bytes.
        self._window = max((len(string.encode()) for string in strings), default=0) + _CONTEXT
        self._last_characters = {string[-1] for string in strings}
        self._may_complete: dict[int, bool] = {}

    def ends(self, sampled: Sequence[int], count: int) -> bool:
        """Whether the newest token completes a stop string.

        Args:
            sampled: Tokens that end with the reply so far.
            count: How many of them are the reply's.
        """
        if not self._strings:
            return False
        newest = sampled[-1]
        possible = self._may_complete.get(newest)
        if possible is None:
            possible = self._may_complete[newest] = self._can_complete(newest)
        return possible and all(
            first_stop(self._decode(sampled[-length:]), self._strings) is not None
            for length in (min(count, self._window), count)
        )

    def cut(self, text: str) -> str:
        """Return the text up to and including the stop string that is complete first, or all of it."""
        found = first_stop(text, self._strings)
        return text if found is None else text[: found[0]]

    def _can_complete(self, token: int) -> bool:
        # Twice, since a tokenizer may drop a space at the start of a text.
        text = self._decode([token, token])
        return _UNFINISHED in text or not self._last_characters.isdisjoint(text)
