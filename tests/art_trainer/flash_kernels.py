"""What PyTorch's CUDA kernels for flash attention compute, by a plain formula on any device and dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from art_trainer.models import flash_attention


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the formula in place of the kernels, and say that they take everything."""
    monkeypatch.setattr(flash_attention, "_forward", forward)
    monkeypatch.setattr(flash_attention, "_backward", backward)
    for user in ("models.tree_attention", "inference.cache_attention"):
        monkeypatch.setattr(f"art_trainer.{user}.has_kernels", lambda states: True)


def _runs(query: torch.Tensor, key: torch.Tensor, starts: Any, ends: Any, used: Any) -> list[Any]:
    assert starts.dtype == ends.dtype == torch.int32
    assert query.stride(-1) == key.stride(-1) == 1
    bounds = starts.tolist(), ends.tolist()
    lengths = [last - first for first, last in zip(bounds[1], bounds[1][1:], strict=False)]
    counts = lengths if used is None else used.tolist()
    firsts = zip(bounds[0], bounds[0][1:], bounds[1], counts, strict=False)
    return [(slice(first, last), slice(key, key + count)) for first, last, key, count in firsts]


def _scores(query: torch.Tensor, key: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    """Scores [H, U, T] of queries [U, H, D] and keys [T, K, D], in float64."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = scale * query.double().transpose(0, 1) @ key.double().permute(1, 2, 0)
    if causal:
        queries, keys = scores.shape[1:]
        scores = scores.masked_fill(torch.ones(queries, keys).triu(keys - queries + 1).bool(), -torch.inf)
    return scores


def forward(
    query: Any, key: Any, value: Any, starts: Any, ends: Any, most_queries: int, most_keys: int,
    dropout: float, causal: bool, debug: bool, *, scale: float, seqused_k: Any = None,
) -> Any:  # fmt: skip
    """``_flash_attention_forward``; what belongs to no run is not a number."""
    out = torch.full_like(query, torch.nan)
    sums = torch.full((query.shape[1], len(query)), torch.nan)
    for queries, keys in _runs(query, key, starts, ends, seqused_k):
        assert queries.stop - queries.start <= most_queries
        assert keys.stop - keys.start <= most_keys
        scores = _scores(query[queries], key[keys], causal, scale)
        several = value[keys].repeat_interleave(query.shape[1] // key.shape[1], 1).double()
        found = scores.softmax(-1).nan_to_num(0) @ several.transpose(0, 1)
        out[queries] = found.transpose(0, 1).to(out.dtype)
        sums[:, queries] = scores.logsumexp(-1).nan_to_num(neginf=torch.inf).float()
    return out, sums, None, None, None


def backward(
    gradient: Any, query: Any, key: Any, value: Any, out: Any, sums: Any, starts: Any, ends: Any,
    most_queries: int, most_keys: int, dropout: float, causal: bool, state: Any, unused: Any, *, scale: float,
) -> Any:  # fmt: skip
    """``_flash_attention_backward``: the share of these keys in the gradients."""
    assert sums.is_contiguous()
    grads = [torch.full_like(x, torch.nan, dtype=torch.float64) for x in (query, key, value)]
    for queries, keys in _runs(query, key, starts, ends, None):
        shape, times = (
            (keys.stop - keys.start, key.shape[1], -1, key.shape[2]),
            query.shape[1] // key.shape[1],
        )
        scores = _scores(query[queries], key[keys], causal, scale)
        weights = (scores - sums[:, queries, None].double()).exp()
        mine, asked, result = (x[queries].double().transpose(0, 1) for x in (gradient, query, out))
        several = [x[keys].repeat_interleave(times, 1).double().transpose(0, 1) for x in (key, value)]
        slope = weights * (mine @ several[1].mT - (mine * result).sum(-1, keepdim=True))
        grads[0][queries] = (scale * slope @ several[0]).transpose(0, 1)
        grads[1][keys] = (scale * slope.mT @ asked).transpose(0, 1).reshape(shape).sum(2)
        grads[2][keys] = (weights.mT @ mine).transpose(0, 1).reshape(shape).sum(2)
    return tuple(grad.to(query.dtype) for grad in grads)
