"""Choosing the next token: one uniform number in, one token and its log-probability out.

Every conversation brings its own uniforms, and a token is found by inverting the distribution's cumulative
sum. So what a conversation samples does not depend on what it is batched with, on the device's generator or
on the order of scheduling.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How replies are sampled; names follow TRL's ``GRPOConfig`` and Transformers' ``GenerationConfig``.

    Raises:
        ValueError: For a value out of range.
    """

    temperature: float = 1.0
    """Divides the logits; 0 always takes the most likely token."""
    top_p: float = 1.0
    """Keep the fewest most likely tokens whose probabilities sum to at least this; 1 keeps all."""
    top_k: int = 0
    """Keep this many most likely tokens; 0 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this times the most likely one; 0 drops none."""
    repetition_penalty: float = 1.0
    """Above 1 makes tokens of the context (prompt and reply) less likely, see :func:`penalize_repetition`."""
    max_new_tokens: int = 256
    """Most tokens in one reply, the end-of-turn token included."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a turn, besides the tokenizer's and the chat template's own."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a turn: its last token is the one that completes such a text, and the environment gets
    the reply up to and including the text, without what the token says beyond it."""

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature is at least 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p lies in (0, 1], got {self.top_p}; 1 keeps every token")
        if self.top_k < 0:
            raise ValueError(f"top_k is at least 0, got {self.top_k}; 0 keeps every token")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p lies in [0, 1], got {self.min_p}; 0 keeps every token")
        if not 0 < self.repetition_penalty < float("inf"):
            raise ValueError(
                f"repetition_penalty is a finite number above 0, got {self.repetition_penalty}; "
                "1 changes nothing"
            )
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is at least 1, got {self.max_new_tokens}")
        if isinstance(self.stop_strings, str) or not all(self.stop_strings):
            raise ValueError(f"stop_strings is a tuple of texts, none empty, got {self.stop_strings!r}")

    def unfiltered(self, temperature: float) -> SamplingParams:
        """The same with nothing but a temperature between the model and its tokens, as evaluations sample."""
        return dataclasses.replace(
            self, temperature=temperature, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0
        )

    @property
    def greedy(self) -> bool:
        """Whether sampling needs no randomness."""
        return self.temperature == 0


def penalize_repetition(
    logits_B_V: torch.Tensor, contexts: Sequence[Sequence[int]], penalty: float
) -> torch.Tensor:
    """Make tokens that a context holds less likely (CTRL, arXiv:1909.05858, section 4.1).

    A positive logit is divided by the penalty and a negative one multiplied, as Transformers does, so that
    both fall; once, however often the token occurs. It applies before temperature and filters.

    Args:
        logits_B_V: The model's logits, any float type.
        contexts: For each row all tokens before the one to sample, read ones and sampled ones.
        penalty: Above 0; below 1 it rewards repetition.

    Returns:
        Logits of the same shape, at least 32-bit.
    """
    rows = np.repeat(np.arange(len(contexts)), [len(context) for context in contexts])
    tokens = np.fromiter(itertools.chain.from_iterable(contexts), np.int64, len(rows))
    # The embedding may know more tokens than the head.
    known = tokens < logits_B_V.shape[-1]
    seen = torch.zeros(logits_B_V.shape, dtype=torch.bool)
    seen[torch.from_numpy(rows[known]), torch.from_numpy(tokens[known])] = True
    logits = logits_B_V.to(torch.promote_types(logits_B_V.dtype, torch.float32))
    penalized = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(seen.to(logits.device), penalized, logits)


def sampling_logprobs(logits_B_V: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The log-probabilities tokens are sampled from, with temperature and filters applied.

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
        drop = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= params.top_p)
        logits = logits.masked_fill(drop, -torch.inf)
    if params.min_p > 0:
        best = logits.max(dim=-1, keepdim=True).values
        least = best + torch.log(torch.tensor(params.min_p, dtype=dtype, device=logits.device))
        logits = logits.masked_fill(logits < least, -torch.inf)
    return logits.log_softmax(dim=-1)


def sample(
    logits_B_V: torch.Tensor, uniforms_B: torch.Tensor, params: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token a row by inverting the cumulative distribution.

    Args:
        logits_B_V: The model's logits.
        uniforms_B: One number in [0, 1) a row; not looked at when greedy.
        params: How to sample.

    Returns:
        The tokens ``[B]``, and for each its log-probability ``[B]`` under the distribution it was sampled
        from: 0 when greedy, since that distribution has one token only.
    """
    if params.greedy:
        tokens = logits_B_V.argmax(dim=-1)
        return tokens, torch.zeros(tokens.shape, dtype=torch.float32, device=tokens.device)
    logprobs = sampling_logprobs(logits_B_V, params)
    cumulative = logprobs.exp().cumsum(dim=-1)
    total = cumulative[:, -1:]
    # Rounding may lift the point onto the total itself, beyond which no token lies.
    below_total = torch.nextafter(total, torch.zeros_like(total))
    point = torch.minimum(uniforms_B.to(total.dtype)[:, None] * total, below_total)
    tokens = torch.searchsorted(cumulative, point, right=True)
    return tokens[:, 0], logprobs.gather(-1, tokens)[:, 0]
