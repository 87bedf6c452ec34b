"""Baselines of 2048 (scripted policies): random, fixed cycles, greedy, snake and expectimax.

Each is ``baseline(env, rng) -> act``; ``act(observation)`` gives the next reply. They look at the board
alone, never at the tiles to come, so they can be compared with a trained model. They answer at every
position, so they can also be imitated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from art_gym.baselines import Act, Baseline
from art_gym.envs.game_2048.rules.board import ACTIONS, Rules
from art_gym.envs.game_2048.search.expectimax import Expectimax
from art_gym.envs.game_2048.search.snake import snake_choice

if TYPE_CHECKING:
    from art_gym.envs.game_2048.env import Game2048Env

Chooser = Callable[[Rules, int], int]
"""From the rules and a packed board with a legal move to one of its legal actions."""


def random_legal(env: Game2048Env, rng: np.random.Generator) -> Act:
    """Any legal move, each equally likely."""

    def act(observation: str) -> str:
        legal = [name for name, allowed in zip(ACTIONS, env.legal, strict=True) if allowed]
        return legal[int(rng.integers(len(legal)))] if legal else ACTIONS[0]

    return act


def cycle(*directions: str) -> Baseline:
    """A policy that repeats a fixed cycle of moves.

    A move that is not legal is skipped: the next legal one of the cycle is played instead, and the cycle goes
    on from there. If none of its moves is legal, the first legal one of right, up, left and down is.

    Args:
        directions: The cycle, such as ``"left", "down"``.
    """
    actions = [ACTIONS.index(direction) for direction in directions]

    def player(env: Game2048Env, rng: np.random.Generator) -> Act:
        place = 0

        def act(observation: str) -> str:
            nonlocal place
            for _ in actions:
                action = actions[place]
                place = (place + 1) % len(actions)
                if env.legal[action]:
                    return ACTIONS[action]
            return next((name for name in _OTHERWISE if env.legal[ACTIONS.index(name)]), ACTIONS[0])

        return act

    return player


def greedy_choice(rules: Rules, board: int) -> int:
    """The move with the most points; of equal ones that with the most empty cells after it."""
    best, choice = (-1, -1), 0
    for action in range(len(ACTIONS)):
        after, points = rules.slide(board, action)
        if after != board and (points, rules.empties(after)) > best:
            best, choice = (points, rules.empties(after)), action
    return choice


def chooser(choose: Chooser) -> Baseline:
    """A policy that plays what a function chooses for each board."""

    def player(env: Game2048Env, rng: np.random.Generator) -> Act:
        return lambda observation: ACTIONS[choose(env.rules, env.board)]

    return player


def expectimax(depth: int = 8) -> Baseline:
    """A policy that searches, one :class:`~art_gym.envs.game_2048.search.expectimax.Expectimax` a game."""
    return lambda env, rng: chooser(Expectimax(depth))(env, rng)


_OTHERWISE = ("right", "up", "left", "down")

BASELINES: Mapping[str, Baseline] = {
    "random": random_legal,
    "left-down": cycle("left", "down"),
    "left-down-right-down": cycle("left", "down", "right", "down"),
    "greedy": chooser(greedy_choice),
    "snake": chooser(snake_choice),
    "expectimax": expectimax(2),
    "expectimax-deep": expectimax(),
}
