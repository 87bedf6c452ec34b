"""Playing perfectly where an environment tells its chances, as Gymnasium's toy texts do in ``P``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SWEEPS = 300
_DISCOUNT = 0.999
_NOWHERE = (0.0, 0, 0, True)
_MOST_OUTCOMES = 3


def action_values(chances: Mapping[int, Mapping[int, Sequence[tuple[Any, ...]]]]) -> NDArray[np.float64]:
    """What each action is worth in each state to a player that cannot do better, by value iteration.

    Args:
        chances: By state and action the outcomes: probability, next state, reward, whether the episode ends.
            At most three outcomes.

    Returns:
        Expected returns, later rewards counting a little less; shape (states, actions).
    """
    outcomes = np.array(
        [
            [(*chances[state][action], _NOWHERE, _NOWHERE)[:_MOST_OUTCOMES] for action in chances[state]]
            for state in chances
        ]
    )
    chance, after, reward, over = np.moveaxis(outcomes, -1, 0)
    after = after.astype(int)
    values = np.zeros(chance.shape[:2])
    for _ in range(_SWEEPS):
        later = np.where(over, 0, values.max(axis=1)[after])
        values = (chance * (reward + _DISCOUNT * later)).sum(axis=2)
    return values


def best_action(values: NDArray[np.float64], rng: np.random.Generator) -> int:
    """One of the best actions, given what each is worth; equal ones are equally likely."""
    best = np.flatnonzero(values >= values.max() - 1e-9)
    return int(best[rng.integers(len(best))])
