"""Players of ``art/2048Duel-v0`` that use no model, for each seat.

Each is ``player(env, rng) -> act``; ``act(text)`` gives the next reply. The slider's are the quick ones of
the ordinary game, against which hundreds of games are played in seconds; its others, such as expectimax, play
this game just as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from art_gym.envs.game_2048.board import ACTIONS
from art_gym.envs.game_2048.players import BASELINES

if TYPE_CHECKING:
    from art_gym.env import Baseline
    from art_gym.envs.game_2048.duel import Duel2048Env

Player = Callable[[str], str]


def random_cell(env: Duel2048Env, rng: np.random.Generator) -> Player:
    """Any empty cell, each equally likely: the ordinary game."""

    def act(observation: str) -> str:
        empty = [cell for cell, exponent in enumerate(env.exponents, 1) if not exponent]
        return str(empty[int(rng.integers(len(empty)))])

    return act


def worst_cell(env: Duel2048Env, rng: np.random.Generator) -> Player:
    """The cell that leaves the slider the fewest legal moves; of equal ones the fewest points, then any."""

    def act(observation: str) -> str:
        empty = [cell for cell, exponent in enumerate(env.exponents) if not exponent]
        left = [_options(env, cell) for cell in empty]
        worst = [cell for cell, options in zip(empty, left, strict=True) if options == min(left)]
        return str(worst[int(rng.integers(len(worst)))] + 1)

    return act


def _options(env: Duel2048Env, cell: int) -> tuple[int, int]:
    """What the slider could do with the tile in this cell: its legal moves, and the most points of one."""
    board = env.rules.place(env.board, cell, env.tile)
    points = (env.rules.slide(board, action)[1] for action in range(len(ACTIONS)))
    return sum(env.rules.legal(board)), max(points)


SLIDERS: Mapping[str, Baseline] = {
    name: BASELINES[name] for name in ("random", "left-down-right-down", "greedy")
}
PLACERS: Mapping[str, Baseline] = {"random": random_cell, "worst": worst_cell}
