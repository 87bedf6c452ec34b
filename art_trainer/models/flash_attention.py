"""Flash attention over runs of tokens: PyTorch's CUDA kernels, which also return log-sum-exps.

One call computes many attentions: the queries of run *i* attend to the keys of run *i* and to no others.
Query heads may share key heads, and nothing is padded, masked or copied (arXiv:2307.08691). The results of
several calls over different keys can be merged by their log-sum-exps.

Shape letters: U queries, T keys, H query heads, K key heads, D channels of a head, R runs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_forward: Any = torch.ops.aten._flash_attention_forward
_backward: Any = torch.ops.aten._flash_attention_backward

_deterministic: Any = torch.utils.deterministic

MOST_CHANNELS = 256
"""Channels of a head that the kernels take at most; a multiple of eight."""


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Which queries attend to which keys.

    Attributes:
        queries: Where each run's queries start and the last one's end, int32 [R + 1].
        keys: Where each run's keys start, int32 [R + 1].
        most_queries: At least as many queries as the longest run has.
        most_keys: The same for keys.
        used: How many keys each run sees, int32 [R]; by default up to where the next run's start.
    """

    queries: Tensor
    keys: Tensor
    most_queries: int
    most_keys: int
    used: Tensor | None = None


def has_kernels(states: Tensor) -> bool:
    """Whether the kernels take queries like these, [..., D]: of 16 bits, on an NVIDIA GPU from Ampere on."""
    channels = states.shape[-1]
    fits = channels <= MOST_CHANNELS and channels % 8 == 0
    half = states.dtype in (torch.bfloat16, torch.float16)
    return states.device.type == "cuda" and half and fits and _supports(states.device)


@functools.cache
def _supports(device: torch.device) -> bool:
    built = torch.version.cuda is not None and torch.backends.cuda.is_flash_attention_available()
    return built and torch.cuda.get_device_capability(device) >= (8, 0)


def attend_runs(
    query: Tensor, key: Tensor, value: Tensor, runs: Runs, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute attention run by run; without a gradient.

    Args:
        query: [U, H, D].
        key: [T, K, D].
        value: [T, K, D].
        runs: Which queries attend to which keys.
        causal: Whether the last query of a run sees all of its keys, the one before all but one, and so on.
        scale: Factor of the scores.

    Returns:
        The results [U, H, D] and the log-sum-exps of the scores [H, U], float32. Queries of no run get
        anything, and those that see no key get zeros and infinity.
    """
    found: tuple[Tensor, Tensor] = _forward(
        query, key, value, runs.queries, runs.keys, runs.most_queries, runs.most_keys, 0.0, causal, False,
        scale=scale, seqused_k=runs.used,
    )[:2]  # fmt: skip
    return found


def attend_runs_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    result: Tensor,
    sums: Tensor,
    runs: Runs,
    *,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, each in at least one run.

    With the result and the log-sum-exps of a merged attention, they are this call's share.

    Args:
        gradient: That of the result, [U, H, D].
        query: As for :func:`attend_runs`, like all that follow.
        key: The keys.
        value: The values.
        result: [U, H, D].
        sums: [H, U].
        runs: The runs.
        causal: As in the forward pass.
        scale: Factor of the scores.
    """
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=query.device), query.new_empty(0)
    with _fixed_order():
        found: tuple[Tensor, Tensor, Tensor] = _backward(
            gradient, query, key, value, result, sums.contiguous(), runs.queries, runs.keys,
            runs.most_queries, runs.most_keys, 0.0, causal, *no_dropout, scale=scale,
        )  # fmt: skip
    return found


@contextmanager
def _fixed_order() -> Iterator[None]:
    """Within, the kernels add gradients in the same order each time."""
    strict, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    fill, _deterministic.fill_uninitialized_memory = _deterministic.fill_uninitialized_memory, False
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warn_only)
        _deterministic.fill_uninitialized_memory = fill
