"""Prefix tree (trie) of token sequences: a prefix that several of them share is stored once.

Children lie directly behind their parent, so that a node and all its descendants are one run of tokens. That
makes attention over the tree cheap: the keys of a node are attended to by its own tokens, causally, and by
the run of its descendants, in full. Both are slices, and no mask is needed.

A branching is used only if it pays. Shared tokens are computed once; but a node costs each layer an attention
call of its own, and each of its descendants' tokens one more partial result to merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

NODE_TOKENS = 8.0
"""Cost of a further node, in tokens through a layer: two attention calls, forward and backward. Measured on a
CPU with a model of 96 dimensions, for which a token is cheap; for a larger model it is less."""

MERGE_TOKENS = 0.02
"""Cost of merging one token's attention over one more ancestor, in the same unit."""


@dataclass(frozen=True, slots=True)
class Node:
    """A run of tokens ``[first, last)`` that share all that came before."""

    first: int
    last: int
    end: int
    """Place after the last token of its last descendant."""
    position: int
    """How many tokens precede the first one in every sequence through this node."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenTree:
    """Sequences with common prefixes merged; where nothing is common there are several roots.

    Attributes:
        token_ids: The tokens of all nodes, each node's children behind it.
        positions: Each token's position in its sequences.
        nodes: The nodes, each before its children.
        places: For each sequence the places of its tokens.
    """

    token_ids: Ids
    positions: Ids
    nodes: tuple[Node, ...]
    places: tuple[Ids, ...]


@dataclass(frozen=True, slots=True)
class _Range:
    """Sorted sequences that share ``depth`` tokens, which the node ``parent`` and its ancestors hold."""

    low: int
    high: int
    depth: int
    parent: int


@dataclass(slots=True)
class _Draft:
    """A node whose end is not known yet."""

    parent: int
    tokens: Ids
    position: int


def build_tree(sequences: Sequence[Ids]) -> TokenTree:
    """Merge common prefixes of sequences (none empty) wherever that saves work."""
    order = sorted(range(len(sequences)), key=lambda i: _sorting_key(sequences[i]))
    ordered = [sequences[i] for i in order]
    common = np.zeros(len(ordered), dtype=np.int64)
    common[1:] = [common_length(a, b) for a, b in pairwise(ordered)]
    lengths = np.asarray([len(ids) for ids in ordered], dtype=np.int64)
    drafts: list[_Draft] = []
    leaves = [-1] * len(sequences)
    waiting = [_Range(0, len(ordered), 0, -1)] if ordered else []
    while waiting:
        piece = waiting.pop()
        shared = _shared(piece, common, lengths)
        parent = piece.parent
        if piece.high - piece.low == 1 or _pays(piece, shared, common, lengths):
            if shared > piece.depth:
                drafts.append(_Draft(parent, ordered[piece.low][piece.depth : shared], piece.depth))
                parent = len(drafts) - 1
            depth = shared
        else:
            depth = piece.depth
        if piece.high - piece.low == 1:
            leaves[order[piece.low]] = parent
        else:
            cuts = [piece.low, *(piece.low + 1 + _cuts(piece, shared, common)), piece.high]
            pieces = [_Range(a, b, depth, parent) for a, b in pairwise(cuts)]
            waiting.extend(reversed(pieces))
    return _laid_out(drafts, leaves)


def common_length(a: Ids, b: Ids) -> int:
    """Return how many tokens two sequences begin with in common."""
    length = min(len(a), len(b))
    differing = np.flatnonzero(a[:length] != b[:length])
    return int(differing[0]) if differing.size else length


def _sorting_key(ids: Ids) -> bytes:
    """Return bytes whose order is the tokens' order, a prefix before its continuations."""
    return ids.astype(">i8").tobytes()


def _shared(piece: _Range, common: Ids, lengths: Ids) -> int:
    """Return how many tokens all sequences of a piece share."""
    if piece.high - piece.low == 1:
        return int(lengths[piece.low])
    return int(common[piece.low + 1 : piece.high].min())


def _cuts(piece: _Range, shared: int, common: Ids) -> Ids:
    """Return at which sequences, counted behind the piece's first, a new child begins."""
    inside = common[piece.low + 1 : piece.high]
    cuts: Ids = np.flatnonzero(inside == shared)
    return cuts


def _pays(piece: _Range, shared: int, common: Ids, lengths: Ids) -> bool:
    """Whether a node for the piece's common prefix saves more than it costs."""
    saved = (shared - piece.depth) * _cuts(piece, shared, common).size
    known = common[piece.low : piece.high].copy()
    known[0] = shared
    below = int((lengths[piece.low : piece.high] - known).sum())
    return saved > NODE_TOKENS + MERGE_TOKENS * below


def _laid_out(drafts: Sequence[_Draft], leaves: Sequence[int]) -> TokenTree:
    """Return the tree of drafts in depth-first order; ``leaves`` are the sequences' last nodes."""
    bounds = np.cumsum([0, *(len(draft.tokens) for draft in drafts)]).tolist()
    ends = bounds[1:]
    for index in reversed(range(len(drafts))):
        parent = drafts[index].parent
        if parent >= 0:
            ends[parent] = max(ends[parent], ends[index])
    nodes = tuple(
        Node(bounds[index], bounds[index + 1], ends[index], draft.position)
        for index, draft in enumerate(drafts)
    )
    nothing = np.zeros(0, dtype=np.int64)
    places = []
    for leaf in leaves:
        path = []
        while leaf >= 0:
            path.append(np.arange(nodes[leaf].first, nodes[leaf].last))
            leaf = drafts[leaf].parent
        places.append(np.concatenate([nothing, *reversed(path)]))
    positions = [node.position + np.arange(node.last - node.first) for node in nodes]
    return TokenTree(
        np.concatenate([nothing, *(draft.tokens for draft in drafts)]),
        np.concatenate([nothing, *positions]),
        nodes,
        tuple(places),
    )
