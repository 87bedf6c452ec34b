"""Which games belong to which split.

A game needs no data, only a key for its chance (:mod:`art_gym.envs.game_2048.chance`). The two lowest bits of
the key say the split, so no game of the test split can ever be met in training, whatever the seeds.
"""

from __future__ import annotations

import numpy as np

from art_gym.errors import UnknownTask, did_you_mean

SPLITS = ("train", "validation", "test")
"""The splits, in the order of the two lowest bits of their games' keys."""


def draw_key(rng: np.random.Generator, split: str = "train") -> int:
    """A key for a new game of a split: 62 random bits and the split's number.

    Args:
        rng: Drawn from once.
        split: One of :data:`SPLITS`.

    Raises:
        UnknownTask: For any other split.
    """
    if split not in SPLITS:
        raise UnknownTask(f"no split `{split}`{did_you_mean(split, SPLITS)}")
    return int(rng.integers(0, 2**64, dtype=np.uint64)) & ~3 | SPLITS.index(split)
