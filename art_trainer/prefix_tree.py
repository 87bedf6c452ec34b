"""Token sequences as a tree in which what several of them begin with is there once.

Children lie directly behind their parent, so that a node and all its descendants are one run of tokens. That
is what makes attention over the tree cheap: the keys of a node are looked at by its own tokens, causally, and
by the run of its descendants, in full. Both are slices, and no mask is needed.

A branching is used only where it pays. Shared tokens are computed once; but a node costs each layer a call
of the attention of its own, and each of its descendants' tokens one more partial result to merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

NODE_TOKENS = 8.0
"""What a further node costs, in tokens through a layer: two calls of the attention, forward and backward.
Measured on a CPU with a model of 96 dimensions, where a token is cheap; to a larger model it is less."""

MERGE_TOKENS = 0.02
"""What merging one token's attention over one more ancestor costs, in tokens through a layer; likewise."""


@dataclass(frozen=True, slots=True)
class Node:
    """A run of tokens that share all that came before.

    Attributes:
        first: Place of its first token in the tree's tokens.
        last: Place after its last token.
        end: Place after the last token of its last descendant.
        position: How many tokens precede the first one in every sequence that runs through here.
    """

    first: int
    last: int
    end: int
    position: int

    def shifted(self, offset: int) -> Node:
        """Return the node behind so many other tokens."""
        return Node(self.first + offset, self.last + offset, self.end + offset, self.position)


@dataclass(frozen=True, slots=True, eq=False)
class TokenTree:
    """Sequences merged where they begin alike; several trees side by side are one, with several roots.

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

    @property
    def pairs(self) -> float:
        """Pairs of a token and one that it attends to."""
        return sum(
            (node.last - node.first) * (node.position + (node.last - node.first) / 2) for node in self.nodes
        )


@dataclass(frozen=True, slots=True)
class _Range:
    """Sorted sequences that share ``depth`` tokens, which the node ``parent`` and its ancestors hold."""

    low: int
    high: int
    depth: int
    parent: int


@dataclass(slots=True)
class _Draft:
    """A node before it is known where its descendants end."""

    parent: int
    tokens: Ids
    position: int


def build_tree(sequences: Sequence[Ids]) -> TokenTree:
    """Merge sequences where they begin alike and that saves work.

    Args:
        sequences: Token ids, none empty.
    """
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


def join(trees: Sequence[TokenTree]) -> TokenTree:
    """Return trees side by side; their sequences follow each other."""
    offsets = np.cumsum([0, *(len(tree.token_ids) for tree in trees)])[:-1].tolist()
    pairs = list(zip(trees, offsets, strict=True))
    return TokenTree(
        np.concatenate([tree.token_ids for tree in trees]),
        np.concatenate([tree.positions for tree in trees]),
        tuple(node.shifted(offset) for tree, offset in pairs for node in tree.nodes),
        tuple(places + offset for tree, offset in pairs for places in tree.places),
    )


def _sorting_key(ids: Ids) -> bytes:
    """Bytes whose order is the tokens' order, a prefix before what it begins."""
    return ids.astype(">i8").tobytes()


def _shared(piece: _Range, common: Ids, lengths: Ids) -> int:
    """How many tokens all sequences of a piece share."""
    if piece.high - piece.low == 1:
        return int(lengths[piece.low])
    return int(common[piece.low + 1 : piece.high].min())


def _cuts(piece: _Range, shared: int, common: Ids) -> Ids:
    """Where, behind a piece's first sequence, the next child begins."""
    inside = common[piece.low + 1 : piece.high]
    cuts: Ids = np.flatnonzero(inside == shared)
    return cuts


def _pays(piece: _Range, shared: int, common: Ids, lengths: Ids) -> bool:
    """Whether a node of its own for what the piece shares saves more than it costs."""
    saved = (shared - piece.depth) * _cuts(piece, shared, common).size
    known = common[piece.low : piece.high].copy()
    known[0] = shared
    below = int((lengths[piece.low : piece.high] - known).sum())
    return saved > NODE_TOKENS + MERGE_TOKENS * below


def _laid_out(drafts: Sequence[_Draft], leaves: Sequence[int]) -> TokenTree:
    """Return the tree of nodes in depth-first order, and where each sequence lies in it."""
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
