"""Pack token histories into batches for one forward and backward, each shared token once.

A :class:`TokenRow` is one history with what its sampled tokens are worth. Rows of one group begin alike,
often in more than their prompt. If the model can attend over a tree
(:mod:`art_trainer.models.tree_attention`), :func:`pack` merges them (:mod:`art_trainer.models.prefix_tree`)
and puts whole groups beside each other in one row of tokens, without padding. Otherwise rows are padded and
every row is computed whole.

A position that predicts sampled tokens of several rows is computed once: N counts the sampled tokens of all
rows, U the positions that predict them.

Shape letters: B rows, Q tokens of the longest (a tree: B = 1 and Q all its tokens), U positions, N sampled
tokens, T turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from art_trainer.models.prefix_tree import TokenTree, build_tree, common_length, concat_trees
from art_trainer.models.tree_attention import TreePlan, plan_attention
from art_trainer.types import TokenHistory

MAX_PADDING = 1024
"""Padding tokens of a batch, at most: about the overhead of one more forward and backward of a tiny model."""

PAIRS_PER_TOKEN = 2048.0
"""Attending to so many tokens costs a token as much as the rest of a layer: six times the hidden size of the
usual layer, here of a small model."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenRow:
    """One token history ready for training.

    Attributes:
        token_ids: All tokens, int64.
        targets: Places of the sampled tokens, rising, each at least 1: the first token has no prediction.
        old_logprobs: The sampled tokens' log-probs when sampled, float32.
        advantages: What each sampled token's log-prob is multiplied by, float32.
        weight: The weight of each sampled token in the batch's loss.
        group: Rows of equal group may have a prompt in common.
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
        share: Whether to merge common prefixes of a group's rows into trees, without padding, in batches of
            about equal cost. It needs a model that can attend over a tree.
        device: Where the tensors go.
    """
    rows = [row for row in rows if row.targets.size]
    if share:
        for trees in balance_batches(_pack_groups(rows, max_tokens), max_tokens):
            yield _to_tree_batch(trees, device)
    else:
        for padded in _padded_batches(sorted(rows, key=_length), max_tokens):
            yield _to_padded_batch(padded, device)


def _length(row: TokenRow) -> int:
    """Return how many tokens of a row the model reads: all but the last sampled one."""
    return int(row.targets[-1])


@dataclass(frozen=True, slots=True, eq=False)
class PackedGroup:
    """Rows of one group and the tree of the tokens that the model reads."""

    rows: tuple[TokenRow, ...]
    tree: TokenTree

    @property
    def tokens(self) -> int:
        """Tokens of the tree."""
        return len(self.tree.token_ids)

    @property
    def cost(self) -> float:
        """Compute cost in tokens, attention included."""
        return self.tokens + self.tree.pairs / PAIRS_PER_TOKEN


def _pack_groups(rows: Sequence[TokenRow], max_tokens: int) -> list[PackedGroup]:
    """Build the trees of all groups; one too large for a batch is split where its rows differ most."""
    groups: dict[int, list[TokenRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    grown = []
    for members in groups.values():
        whole = _pack_group(members)
        grown += [whole] if whole.tokens <= max_tokens else _split_group(members, max_tokens)
    return grown


def _pack_group(rows: Sequence[TokenRow]) -> PackedGroup:
    return PackedGroup(tuple(rows), build_tree([row.token_ids[: _length(row)] for row in rows]))


def _split_group(rows: Sequence[TokenRow], max_tokens: int) -> list[PackedGroup]:
    """Split a group into trees of at most ``max_tokens``; neighbours in token order share most."""
    ordered = sorted(rows, key=lambda row: row.token_ids.astype(">i8").tobytes())
    parts: list[list[TokenRow]] = []
    size = 0
    for row in ordered:
        known = common_length(parts[-1][-1].token_ids, row.token_ids[: _length(row)]) if parts else 0
        if not parts or size + _length(row) - known > max_tokens:
            parts.append([])
            size = known = 0
        parts[-1].append(row)
        size += _length(row) - known
    found = []
    for part in parts:
        grown = _pack_group(part)
        # Branchings that do not pay are not used, so a tree may be larger than estimated above.
        half = len(part) // 2
        fits = grown.tokens <= max_tokens or not half
        found += (
            [grown]
            if fits
            else [*_split_group(part[:half], max_tokens), *_split_group(part[half:], max_tokens)]
        )
    return found


def balance_batches(pieces: Sequence[PackedGroup], max_tokens: int) -> list[list[PackedGroup]]:
    """Distribute trees over as few batches as hold them, evenly: largest cost first, to the cheapest batch.

    Only trees of a single row may have more than ``max_tokens`` tokens.
    """
    order = sorted(range(len(pieces)), key=lambda i: (-pieces[i].cost, i))
    count = -(-sum(piece.tokens for piece in pieces) // max_tokens)
    while True:
        batches: list[list[PackedGroup]] = [[] for _ in range(count)]
        tokens, costs = [0] * count, [0.0] * count
        for index in order:
            piece = pieces[index]
            open_to = [i for i in range(count) if not tokens[i] or tokens[i] + piece.tokens <= max_tokens]
            if not open_to:
                break
            cheapest = min(open_to, key=costs.__getitem__)
            batches[cheapest].append(piece)
            tokens[cheapest] += piece.tokens
            costs[cheapest] += piece.cost
        else:
            return [batch for batch in batches if batch]
        count += 1


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


def _to_tree_batch(pieces: Sequence[PackedGroup], device: torch.device) -> Batch:
    tree = concat_trees([piece.tree for piece in pieces])
    rows = [row for piece in pieces for row in piece.rows]
    predicting = [places[row.targets - 1] for row, places in zip(rows, tree.places, strict=True)]
    return _batch(rows, tree.token_ids[None], predicting, device, tree)


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
        tree=None if tree is None else plan_attention(tree.nodes, device),
        last_tree=None if tree is None else plan_attention(tree.nodes, device, positions_U),
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
