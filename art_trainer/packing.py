"""Token histories laid out for one forward and backward, each shared token once.

A :class:`Row` is one history with what its sampled tokens are worth. Rows of one group begin alike, often in
more than their prompt. Where the model can attend over a tree (:mod:`art_trainer.tree_attention`),
:func:`pack` merges them (:mod:`art_trainer.prefix_tree`) and puts whole groups beside each other in one row
of tokens, without padding. Elsewhere rows are padded and every row is computed whole.

A position that predicts sampled tokens of several rows is looked at once: N counts the sampled tokens of all
rows, U the positions that predict them.

Shape letters: B rows, Q tokens of the longest (a tree: 1 and all its tokens), U positions, N sampled tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from art_trainer.episodes import TokenHistory
from art_trainer.prefix_tree import TokenTree, build_tree, common_length, join
from art_trainer.tree_attention import TreePlan, plan_attention

MAX_PADDING = 1024
"""Padding a batch may hold before it is cut, tokens: about what the overhead of one more forward and backward
is worth with a tiny model."""

PAIRS_PER_TOKEN = 2048.0
"""Attending to so many tokens costs a token as much as all else in a layer: six times the hidden size of the
usual layer, here that of a small model."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One token history ready for training.

    Attributes:
        token_ids: All tokens, int64.
        targets: Where the sampled tokens are, rising, each at least 1: the first token has no prediction.
        old_logprobs: The sampled tokens' log-probs when sampled, float32.
        advantages: What each sampled token's log-prob is multiplied by, float32.
        weight: The weight of each sampled token in the batch's loss.
        group: Rows of equal group may have a prompt in common.
        reference_logprobs: The sampled tokens' log-probs under a reference, where one is used.
        corrections: What each sampled token's loss is multiplied by, where the sampler is another program.
        values: Where there is a value head, what it said before the update at the first token of each turn,
            in the head's units; ``nan`` at the other tokens.
        returns: In the same places what it should learn to say.
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
    ) -> Row:
        """Build the row of a history; a sampled first token, which nothing predicts, is left out.

        Args:
            history: The tokens.
            advantages_T: The advantage of each of the episode's turns.
            weight: As in :class:`Row`.
            group: As in :class:`Row`.
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
        # What follows the last sampled token predicts nothing: leave it out of the forward pass.
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
        positions_Q: Each token's position in its history, for a tree; ``None`` where the column says it.
        tree: Who attends to whom in a tree; ``None`` where rows are padded.
        last_tree: The same for the positions that predict, all that the last layer needs.
        positions_U: Flat indices into [B, Q], sorted, of the positions that predict sampled tokens.
        predictors_N: Which of these predicts each sampled token.
        some_N_U: For each of these one sampled token that it predicts.
        targets_N: The sampled tokens.
        old_logprobs_N: Their log-probs when sampled.
        advantages_N: Their advantages.
        weights_N: Their weights in the loss.
        sequences_N: The row each of them is in.
        reference_logprobs_N: Their log-probs under the reference, where there is one.
        corrections_N: Their corrections, where there are any.
        values_N: Their values before the update, where there is a value head; see :class:`Row`.
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
    rows: tuple[Row, ...]


def pack(rows: Sequence[Row], max_tokens: int, *, share: bool, device: torch.device) -> Iterator[Batch]:
    """Cut rows into batches of at most ``max_tokens`` tokens.

    Args:
        rows: Rows in any order; rows without a sampled token are left out.
        max_tokens: Tokens of a batch, padding included; a single longer row is a batch of its own.
        share: Whether to merge what rows of a group begin with and to leave out padding, which needs a model
            that can attend over a tree: batches of about equal cost, each of trees side by side.
        device: Where the tensors go.
    """
    rows = [row for row in rows if row.targets.size]
    if share:
        for trees in balanced(_grown(rows, max_tokens), max_tokens):
            yield _to_tree_batch(trees, device)
    else:
        for padded in _fill(sorted(rows, key=_length), max_tokens):
            yield _to_padded_batch(padded, device)


def _length(row: Row) -> int:
    """How many tokens of a row the model reads: the last sampled one predicts nothing any more."""
    return int(row.targets[-1])


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """Rows of one group and the tree of what the model reads of them."""

    rows: tuple[Row, ...]
    tree: TokenTree

    @property
    def tokens(self) -> int:
        """Tokens of the tree."""
        return len(self.tree.token_ids)

    @property
    def cost(self) -> float:
        """What it costs to compute, attention included, in tokens."""
        return self.tokens + self.tree.pairs / PAIRS_PER_TOKEN


def _grown(rows: Sequence[Row], max_tokens: int) -> list[Grown]:
    """Make the trees of all groups; a group too large for one batch is cut where its rows differ most."""
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    grown = []
    for members in groups.values():
        whole = _grow(members)
        grown += [whole] if whole.tokens <= max_tokens else _cut(members, max_tokens)
    return grown


def _grow(rows: Sequence[Row]) -> Grown:
    return Grown(tuple(rows), build_tree([row.token_ids[: _length(row)] for row in rows]))


def _cut(rows: Sequence[Row], max_tokens: int) -> list[Grown]:
    """Cut a group into trees of at most ``max_tokens``; neighbours in token order share most."""
    ordered = sorted(rows, key=lambda row: row.token_ids.astype(">i8").tobytes())
    parts: list[list[Row]] = []
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
        grown = _grow(part)
        # A branching that does not pay is not used, so a tree may be larger than what its rows differ in.
        half = len(part) // 2
        fits = grown.tokens <= max_tokens or not half
        found += [grown] if fits else [*_cut(part[:half], max_tokens), *_cut(part[half:], max_tokens)]
    return found


def balanced(pieces: Sequence[Grown], max_tokens: int) -> list[list[Grown]]:
    """Spread trees over as few batches as hold them, and evenly: the costliest first, each to the cheapest.

    Args:
        pieces: Trees, all within ``max_tokens`` but those of a single row.
        max_tokens: Most tokens of a batch.
    """
    order = sorted(range(len(pieces)), key=lambda i: (-pieces[i].cost, i))
    count = -(-sum(piece.tokens for piece in pieces) // max_tokens)
    while True:
        batches: list[list[Grown]] = [[] for _ in range(count)]
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


def _fill(rows: Sequence[Row], max_tokens: int) -> Iterator[list[Row]]:
    """Cut rows, sorted by length, into runs of at most ``max_tokens`` and not too much padding."""
    batch: list[Row] = []
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


def _to_tree_batch(pieces: Sequence[Grown], device: torch.device) -> Batch:
    tree = join([piece.tree for piece in pieces])
    rows = [row for piece in pieces for row in piece.rows]
    predicting = [places[row.targets - 1] for row, places in zip(rows, tree.places, strict=True)]
    found = _Predictors.of(predicting)
    return _batch(
        rows,
        found,
        tree.token_ids[None],
        device,
        positions_Q=torch.from_numpy(tree.positions).to(device),
        tree=plan_attention(tree.nodes, device),
        last_tree=plan_attention(tree.nodes, device, found.positions_U),
    )


def _to_padded_batch(rows: Sequence[Row], device: torch.device) -> Batch:
    width = max(map(_length, rows))
    ids = np.zeros((len(rows), width), dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : _length(row)] = row.token_ids[: _length(row)]
    predicting = [row.targets - 1 + i * width for i, row in enumerate(rows)]
    found = _Predictors.of(predicting)
    return _batch(rows, found, ids, device, positions_Q=None, tree=None, last_tree=None)


@dataclass(frozen=True, slots=True, eq=False)
class _Predictors:
    """The places that predict sampled tokens, each once; see :class:`Batch`."""

    positions_U: NDArray[np.int64]
    some_N_U: NDArray[np.int64]
    predictors_N: NDArray[np.int64]

    @classmethod
    def of(cls, predicting: Sequence[NDArray[np.int64]]) -> _Predictors:
        """Take for each row the flat places that predict its sampled tokens."""
        return cls(*np.unique(np.concatenate(predicting), return_index=True, return_inverse=True))


def _batch(
    rows: Sequence[Row],
    predictors: _Predictors,
    ids: NDArray[np.int64],
    device: torch.device,
    **layout: Any,
) -> Batch:
    """Return a batch of rows whose tokens are laid out and whose predictors are known."""
    weights = np.asarray([row.weight for row in rows], dtype=np.float32)
    sizes = [row.targets.size for row in rows]

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    def column(values: Sequence[NDArray[np.float32] | None]) -> Tensor | None:
        present = [value for value in values if value is not None]
        return tensor(np.concatenate(present)) if len(present) == len(rows) else None

    return Batch(
        ids_BQ=tensor(ids),
        positions_U=tensor(predictors.positions_U),
        predictors_N=tensor(predictors.predictors_N),
        some_N_U=tensor(predictors.some_N_U),
        targets_N=tensor(np.concatenate([row.token_ids[row.targets] for row in rows])),
        old_logprobs_N=tensor(np.concatenate([row.old_logprobs for row in rows])),
        advantages_N=tensor(np.concatenate([row.advantages for row in rows])),
        weights_N=tensor(np.repeat(weights, sizes)),
        sequences_N=tensor(np.repeat(np.arange(len(rows)), sizes)),
        reference_logprobs_N=column([row.reference_logprobs for row in rows]),
        corrections_N=column([row.corrections for row in rows]),
        values_N=column([row.values for row in rows]),
        returns_N=column([row.returns for row in rows]),
        rows=tuple(rows),
        **layout,
    )
