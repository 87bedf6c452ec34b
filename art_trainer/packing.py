"""Token histories laid out as padded batches, a common prompt once.

A :class:`Row` is one history with what its sampled tokens are worth. Rows of one group start with the same
prompt; :func:`pack` cuts it off where that saves work, so that a :class:`Batch` is a small batch of prefixes
and a larger one of what follows them. The last prompt token always stays in the suffix: the first sampled
token is predicted there, so nothing in a prefix ever needs logits.

Shape letters: P prefixes, L prefix tokens, B rows, Q suffix tokens, N sampled tokens of all rows together.
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

WORTHWHILE = 0.9
"""Prefixes are shared where that leaves at most this fraction of the tokens: a second, smaller forward and
an explicit attention mask cost something too."""

MAX_PADDING = 1024
"""Padding a batch may hold before it is cut, tokens: about what the overhead of one more forward and backward
is worth with a tiny model."""


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
        prefix_ids_PL: Common prompts, padded on the right; ``None`` where nothing is shared.
        prefix_lengths_B: Length of each row's prefix.
        prefix_index_B: Which prefix each row continues.
        ids_BQ: What follows the prefixes, padded on the right.
        positions_N: Flat indices into [B, Q] of the positions that predict the sampled tokens.
        targets_N: The sampled tokens.
        old_logprobs_N: Their log-probs when sampled.
        advantages_N: Their advantages.
        weights_N: Their weights in the loss.
        sequences_N: The row each of them is in.
        reference_logprobs_N: Their log-probs under the reference, where there is one.
        corrections_N: Their corrections, where there are any.
        values_N: Their values before the update, where there is a value head; see :class:`Row`.
        returns_N: What those should be.
        rows: The rows, in the order of B.
    """

    prefix_ids_PL: Tensor | None
    prefix_lengths_B: Tensor
    prefix_index_B: Tensor
    ids_BQ: Tensor
    positions_N: Tensor
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


@dataclass(frozen=True, slots=True)
class _Bundle:
    """Rows that stay together, how many leading tokens they share, and the longest row's other tokens."""

    rows: tuple[Row, ...]
    shared: int
    suffix: int


def pack(rows: Sequence[Row], max_tokens: int, *, share: bool, device: torch.device) -> Iterator[Batch]:
    """Cut rows into batches of at most about ``max_tokens`` padded tokens, rows of like length together.

    Args:
        rows: Rows in any order; rows without a sampled token are left out.
        max_tokens: Padded tokens of a batch, prefixes included; a single longer row is a batch of its own.
        share: Whether prefixes may be shared; they are where it saves at least a tenth of the tokens.
        device: Where the tensors go.
    """
    rows = [row for row in rows if row.targets.size]
    bundles = _bundles(rows, max_tokens) if share else []
    plain_cost = sum(len(row.token_ids) for row in rows)
    if not bundles or sum(map(_cost, bundles)) > WORTHWHILE * plain_cost:
        bundles = [_Bundle((row,), 0, len(row.token_ids)) for row in rows]
    bundles.sort(key=lambda bundle: (bundle.suffix, bundle.shared))
    for batch in _fill(bundles, max_tokens):
        yield _to_batch(batch, device)


def _bundles(rows: Sequence[Row], max_tokens: int) -> list[_Bundle]:
    """Group rows by what they share; a group too large for one batch is cut up."""
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    bundles: list[_Bundle] = []
    for members in groups.values():
        members.sort(key=lambda row: len(row.token_ids))
        shared = _common_prompt(members)
        longest = len(members[-1].token_ids) - shared
        size = max((max_tokens - shared) // max(longest, 1), 1)
        for start in range(0, len(members), size):
            part = tuple(members[start : start + size])
            bundles.append(_Bundle(part, shared, len(part[-1].token_ids) - shared))
    return bundles


def _common_prompt(rows: Sequence[Row]) -> int:
    """Return how many leading tokens all rows have in common and predict nothing."""
    length = min(int(row.targets[0]) - 1 for row in rows)
    first = rows[0].token_ids
    for row in rows[1:]:
        differing = np.flatnonzero(row.token_ids[:length] != first[:length])
        if differing.size:
            length = int(differing[0])
    return length


def _cost(bundle: _Bundle) -> int:
    return bundle.shared + sum(len(row.token_ids) - bundle.shared for row in bundle.rows)


def _fill(bundles: Sequence[_Bundle], max_tokens: int) -> Iterator[list[_Bundle]]:
    """Cut bundles, sorted by suffix, into runs of at most ``max_tokens`` and not too much padding."""
    batch: list[_Bundle] = []
    rows = longest = tokens = 0
    for bundle in bundles:
        size = len(bundle.rows)
        longest = max(longest, bundle.shared)
        padded = (len(batch) + 1) * longest + (rows + size) * bundle.suffix
        padding = padded - tokens - _cost(bundle)
        if batch and (padded > max_tokens or padding > MAX_PADDING):
            yield batch
            batch, rows, longest, tokens = [], 0, bundle.shared, 0
        batch.append(bundle)
        rows += size
        tokens += _cost(bundle)
    if batch:
        yield batch


def _to_batch(bundles: Sequence[_Bundle], device: torch.device) -> Batch:
    rows = [row for bundle in bundles for row in bundle.rows]
    shared = np.asarray([bundle.shared for bundle in bundles for _ in bundle.rows])
    index = np.asarray([i for i, bundle in enumerate(bundles) for _ in bundle.rows])
    width = max(len(row.token_ids) - length for row, length in zip(rows, shared, strict=True))
    ids = np.zeros((len(rows), width), dtype=np.int64)
    positions = []
    for i, (row, length) in enumerate(zip(rows, shared, strict=True)):
        ids[i, : len(row.token_ids) - length] = row.token_ids[length:]
        positions.append(row.targets - 1 - length + i * width)
    prefixes = np.zeros((len(bundles), int(shared.max())), dtype=np.int64)
    for i, bundle in enumerate(bundles):
        prefixes[i, : bundle.shared] = bundle.rows[0].token_ids[: bundle.shared]
    weights = np.asarray([row.weight for row in rows], dtype=np.float32)
    sizes = [row.targets.size for row in rows]

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    def column(values: Sequence[NDArray[np.float32] | None]) -> Tensor | None:
        present = [value for value in values if value is not None]
        return tensor(np.concatenate(present)) if len(present) == len(rows) else None

    return Batch(
        prefix_ids_PL=tensor(prefixes) if prefixes.shape[1] else None,
        prefix_lengths_B=tensor(shared),
        prefix_index_B=tensor(index),
        ids_BQ=tensor(ids),
        positions_N=tensor(np.concatenate(positions)),
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
    )
