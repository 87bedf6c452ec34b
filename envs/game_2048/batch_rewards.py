"""The rewards of ``rewards.py`` for many games at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from art_gym.envs.game_2048 import rewards
from art_gym.envs.game_2048.options import GameOptions


def batch_rewards(
    options: GameOptions,
    points: NDArray[np.float64],
    moved: NDArray[np.bool_],
    grids: NDArray[np.uint8],
    ended: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """What each of N games pays for its turn.

    Args:
        options: Which reward, and its figures.
        points: (N,); merged points.
        moved: (N,); whether the move was legal.
        grids: (N, size * size); the exponents after the turn.
        ended: (N,); whether the episode ended with it.

    Returns:
        (N,); may be ``points`` itself.
    """
    penalty = -options.illegal_move_penalty
    if options.reward == "score":
        return np.where(moved, points, penalty) if penalty else points
    if options.reward == "shaped":
        paid = np.zeros(len(points))
        for values in shaped_terms(points, grids, options.board_size).values():
            paid += values  # in the order in which single games add them up, so that no bit differs
        return np.where(moved, paid, penalty)
    paid = np.where(moved, 0.0, penalty)
    for game in ended.nonzero()[0].tolist():
        exponents = tuple(grids[game].tolist())
        reached = 1 << max(exponents) >= options.target
        terms = rewards.target_terms(exponents, options.board_size, options.target, reached=reached)
        for value in terms.values():
            paid[game] += value
    return paid


def shaped_terms(
    points: NDArray[np.float64], grids: NDArray[np.uint8], size: int
) -> dict[str, NDArray[np.float64]]:
    """``rewards.shaped_terms`` for N legal moves: their points (N,), and the boards after (N, cells)."""
    boards = grids.reshape(-1, size, size).view(np.int8)
    differences = np.zeros(len(boards), np.int64)
    for one, other in ((boards[:, :-1], boards[:, 1:]), (boards[:, :, :-1], boards[:, :, 1:])):
        differences += (np.abs(one - other) * ((one > 0) & (other > 0))).sum((1, 2))
    return {
        "points": rewards.POINTS * points,
        "empty_cells": rewards.EMPTY * (grids == 0).sum(1),
        "best_tile": rewards.BEST * grids.max(1),
        "smoothness": rewards.SMOOTH * (-differences / (2 * size * (size - 1))),
    }
