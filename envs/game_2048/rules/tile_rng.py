"""The random tiles of one game of 2048, as a function of a key and a counter; and the splits of games.

A game takes one 64-bit key from its environment's generator when it begins, and everything random in it
follows from that key. The number of a draw is the number of tiles that have appeared before it: the opening
takes draws 0 and 1, the first move that changes the board draw 2. So a game is the same game as text, as
arrays and in a batch of thousands, and coming back to a position needs no generator's state but only the
count.

The two lowest bits of a key say the split, so no game of the test split is ever met in training, whatever
the seeds.

The function is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014):
the key-th stream is the sequence that the generator gives when seeded with the key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

GAMMA = 0x9E3779B97F4A7C15
"""SplitMix64's step: the odd number closest to 2**64 divided by the golden ratio."""
MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""The multipliers of SplitMix64's finisher; its shifts are 30, 27 and 31."""

_WORD = 2**64 - 1


@dataclass(frozen=True, slots=True)
class TileRng:
    """The random numbers of one game.

    Args:
        key: Any 64 bits.
        shared: Whether the n-th tile depends on the key and on n alone. Then all attempts at a game meet the
            same draws whatever they do, and their scores differ by how they played more than by luck (common
            random numbers). Otherwise a draw depends on the board that the move left as well: attempts that
            make the same moves still meet the same tiles, but from the first different move on each has luck
            of its own. (Two attempts that come to the very same board after equally many moves share it
            again.) Either way each game alone is a fair one.
    """

    key: int
    shared: bool = True

    def draw(self, count: int, board: int) -> int:
        """64 random bits for the tile that appears after ``count`` others.

        Args:
            count: Tiles that have appeared before, two of them in the opening.
            board: The packed board that the tile will appear on; without effect if chance is shared.
        """
        if self.shared:
            return _mix(self.key + (count + 1) * GAMMA)
        return _mix(fold(self.key, board) + (count + 1) * GAMMA)

    def opening(self) -> Iterator[int]:
        """The draws of the two tiles that a game begins with: the same for every attempt."""
        return iter((_mix(self.key + GAMMA), _mix(self.key + 2 * GAMMA)))


def fold(key: int, board: int) -> int:
    """A key for a board: its 64-bit words mixed into the key one by one, without the zeros that lead it."""
    while board:
        key = _mix(key ^ board & _WORD)
        board >>= 64
    return key


def _mix(state: int) -> int:
    """SplitMix64's finisher, a bijection of the 64-bit words that moves every bit by every other."""
    state &= _WORD
    state = (state ^ state >> 30) * MIX[0] & _WORD
    state = (state ^ state >> 27) * MIX[1] & _WORD
    return state ^ state >> 31


SPLITS = ("train", "validation", "test")
"""The splits, in the order of the two lowest bits of their games' keys."""


def draw_key(rng: np.random.Generator, split: str = "train") -> int:
    """A key for a new game of a split: 62 random bits and the split's number.

    Args:
        rng: Drawn from once.
        split: One of :data:`SPLITS`.
    """
    return int(rng.integers(0, 2**64, dtype=np.uint64)) & ~3 | SPLITS.index(split)
