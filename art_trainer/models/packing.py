"""Pack token histories into batches for one forward and backward, each shared token once.

A :class:`TokenRow` is one history with what its sampled tokens are worth. Rows begin alike: all with the same
instructions, those of a group with the same prompt and often more. If the model can attend over a tree
(:mod:`art_trainer.models.tree_attention`), :func:`pack` merges them (:mod:`art_trainer.models.prefix_tree`)
in one row of tokens, without padding. Otherwise rows are padded and every row is computed whole.

A position that predicts sampled tokens of several rows is computed once: N counts the sampled tokens of all
rows, U the positions that predict them.

Shape letters: B rows, Q tokens of the longest (a tree: B = 1 and Q all its tokens), U positions, N sampled
tokens, T turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from art_trainer.models.prefix_tree import TokenTree, build_tree, common_length
from art_trainer.models.tree_attention import TreePlan
from art_trainer.types import TokenHistory

MAX_PADDING = 1024
"""Padding tokens of a batch, at most: about the overhead of one more forward and backward of a tiny model."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenRow:
    """One token history ready for training.

    Attributes:
        token_ids: All tokens, int64.
        targets: Places of the sampled tokens, rising, each at least 1: the first token has no prediction.
        old_logprobs: The sampled tokens' log-probs when sampled, float32.
        advantages: What each sampled token's log-prob is multiplied by, float32.
        weight: The weight of each sampled token in the batch's loss.
        group: Rows of equal group go to the same process.
        reference_logprobs: The sampled tokens' log-probs under the reference model, if there is one.
        corrections: What each sampled token's loss is multiplied by, if the sampler is another program.
        values: The value head's outputs before the update at the first token of each turn, in the head's
            units; ``nan`` at the other tokens.
        returns: What the value head should output there.
    """

    token_ids: NDArray[np.int64]
    targets: NDArray[np.int64]
    old_logprobs: NDArray[np.float32]
    advantages: NDArray[np.float32]
    weight: float
    group: int
    reference_logprobs: NDArray[np.float32] | None = None
    corrections: NDArray[np.float32] | None = None
    values: NDArray[np.float32] | None = None
    returns: NDArray[np.float32] | None = None

    @classmethod
    def from_history(
        cls, history: TokenHistory, *, advantages_T: NDArray[np.float64], weight: float, group: int
    ) -> TokenRow:
        """Build the row of a history from the advantage of each of the episode's turns.

        A sampled first token, which nothing predicts, is left out.
        """
        token_ids: list[int] = []
        targets: list[int] = []
        logprobs: list[float] = []
        turns: list[int] = []
        for span in history.spans:
            if span.turn is not None:
                targets += range(len(token_ids), len(token_ids) + len(span.token_ids))
                logprobs += span.logprobs
                turns += [span.turn] * len(span.token_ids)
            token_ids += span.token_ids
        first = 1 if targets and targets[0] == 0 else 0
        # Tokens after the last sampled one predict nothing: leave them out of the forward pass.
        end = targets[-1] + 1 if targets else 0
        return cls(
            np.asarray(token_ids[:end], dtype=np.int64),
            np.asarray(targets[first:], dtype=np.int64),
            np.asarray(logprobs[first:], dtype=np.float32),
            np.asarray(advantages_T, dtype=np.float32)[turns[first:]],
            weight,
            group,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows as tensors, for one forward and backward.

    Attributes:
        ids_BQ: Tokens: a tree's, in one row, or those of the rows, padded on the right.
        positions_Q: Each token's position in its history; ``None`` (the column) if rows are padded.
        tree: Which token attends to which in a tree; ``None`` if rows are padded.
        last_tree: The same for the positions that predict, all that the last layer needs.
        positions_U: Flat indices into [B, Q], sorted, of the positions that predict sampled tokens.
        predictors_N: Which of these predicts each sampled token.
        some_N_U: For each of the positions one sampled token that it predicts.
        targets_N: The sampled tokens.
        old_logprobs_N: Their log-probs when sampled.
        advantages_N: Their advantages.
        weights_N: Their weights in the loss.
        sequences_N: The row each of them is in.
        reference_logprobs_N: Their log-probs under the reference model; ``None`` without one.
        corrections_N: Factors of their losses; ``None`` without a correction.
        values_N: Their values before the update; ``None`` without a value head.
        returns_N: What those should be.
        rows: The rows whose sampled tokens these are, in their order.
    """

    ids_BQ: Tensor
    positions_Q: Tensor | None
    tree: TreePlan | None
    last_tree: TreePlan | None
    positions_U: Tensor
    predictors_N: Tensor
    some_N_U: Tensor
    targets_N: Tensor
    old_logprobs_N: Tensor
    advantages_N: Tensor
    weights_N: Tensor
    sequences_N: Tensor
    reference_logprobs_N: Tensor | None
    corrections_N: Tensor | None
    values_N: Tensor | None
    returns_N: Tensor | None
    rows: tuple[TokenRow, ...]


def pack(rows: Sequence[TokenRow], max_tokens: int, *, share: bool, device: torch.device) -> Iterator[Batch]:
    """Cut rows into batches of at most ``max_tokens`` tokens.

    Args:
        rows: Rows in any order; rows without a sampled token are left out.
        max_tokens: Tokens of a batch, padding included; a single longer row is a batch of its own.
        share: Whether to merge the rows' common prefixes into trees, without padding. It needs a model that
            can attend over a tree.
        device: Where the tensors go.
    """
    rows = [row for row in rows if row.targets.size]
    if share:
        for members, tree in _shared_batches(rows, max_tokens):
            predicting = [at[row.targets - 1] for row, at in zip(members, tree.places, strict=True)]
            yield _batch(members, tree.token_ids[None], predicting, device, tree)
    else:
        for padded in _padded_batches(sorted(rows, key=_length), max_tokens):
            yield _to_padded_batch(padded, device)


def _length(row: TokenRow) -> int:
    """Return how many tokens of a row the model reads: all but the last sampled one."""
    return int(row.targets[-1])


def _shared_batches(
    rows: Sequence[TokenRow], max_tokens: int
) -> Iterator[tuple[Sequence[TokenRow], TokenTree]]:
    """Cut rows into trees of at most ``max_tokens``; neighbours in token order share most."""
    waiting = sorted(rows, key=lambda row: row.token_ids.astype(">i8").tobytes())
    while waiting:
        count = _fitting(waiting, max_tokens)
        tree = _tree(waiting[:count])
        # Branchings that do not pay are not used, so a tree may be larger than estimated.
        while len(tree.token_ids) > max_tokens and count > 1:
            count = max(1, min(count - 1, count * max_tokens // len(tree.token_ids)))
            tree = _tree(waiting[:count])
        yield waiting[:count], tree
        waiting = waiting[count:]


def _fitting(ordered: Sequence[TokenRow], max_tokens: int) -> int:
    """Return about how many of the first rows fit into a tree; at least one."""
    size = _length(ordered[0])
    for count, (before, row) in enumerate(pairwise(ordered), start=1):
        size += _length(row) - common_length(before.token_ids, row.token_ids[: _length(row)])
        if size > max_tokens:
            return count
    return len(ordered)


def _tree(rows: Sequence[TokenRow]) -> TokenTree:
    return build_tree([row.token_ids[: _length(row)] for row in rows])


def _padded_batches(rows: Sequence[TokenRow], max_tokens: int) -> Iterator[list[TokenRow]]:
    """Cut rows, sorted by length, into runs of at most ``max_tokens`` and not too much padding."""
    batch: list[TokenRow] = []
    tokens = 0
    for row in rows:
        padded = (len(batch) + 1) * _length(row)
        if batch and (padded > max_tokens or padded - tokens - _length(row) > MAX_PADDING):
            yield batch
            batch, tokens = [], 0
        batch.append(row)
        tokens += _length(row)
    if batch:
        yield batch


def _to_padded_batch(rows: Sequence[TokenRow], device: torch.device) -> Batch:
    width = max(map(_length, rows))
    ids = np.zeros((len(rows), width), dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : _length(row)] = row.token_ids[: _length(row)]
    return _batch(rows, ids, [row.targets - 1 + i * width for i, row in enumerate(rows)], device, None)


def _batch(
    rows: Sequence[TokenRow],
    ids_BQ: NDArray[np.int64],
    predicting: Sequence[NDArray[np.int64]],
    device: torch.device,
    tree: TokenTree | None,
) -> Batch:
    """Return the tensors of rows whose tokens are laid out.

    Args:
        rows: The rows.
        ids_BQ: Their tokens.
        predicting: For each row the flat places in [B, Q] that predict its sampled tokens.
        device: Where the tensors go.
        tree: The tree that the tokens form, unless they are padded.
    """
    # Several tokens may be predicted at one place: N tokens, U different places.
    positions_U, some_N_U, predictors_N = np.unique(
        np.concatenate(predicting), return_index=True, return_inverse=True
    )
    weights = np.asarray([row.weight for row in rows], dtype=np.float32)
    sizes = [row.targets.size for row in rows]

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    def column(name: str) -> Tensor | None:
        values = [getattr(row, name) for row in rows]
        return None if any(value is None for value in values) else tensor(np.concatenate(values))

    return Batch(
        ids_BQ=tensor(ids_BQ),
        positions_Q=None if tree is None else tensor(tree.positions),
        tree=None if tree is None else TreePlan(tree.nodes, device),
        last_tree=None if tree is None else TreePlan(tree.nodes, device, positions_U),
        positions_U=tensor(positions_U),
        predictors_N=tensor(predictors_N),
        some_N_U=tensor(some_N_U),
        targets_N=tensor(np.concatenate([row.token_ids[row.targets] for row in rows])),
        old_logprobs_N=tensor(np.concatenate([row.old_logprobs for row in rows])),
        advantages_N=tensor(np.concatenate([row.advantages for row in rows])),
        weights_N=tensor(np.repeat(weights, sizes)),
        sequences_N=tensor(np.repeat(np.arange(len(rows)), sizes)),
        reference_logprobs_N=column("reference_logprobs"),
        corrections_N=column("corrections"),
        values_N=column("values"),
        returns_N=column("returns"),
        rows=tuple(rows),
    )
