"""``toy/FrozenLake-v0``: Gymnasium's FrozenLake as text, on maps that are drawn, some of them held out.

::

    . . O .
    O . . .
    . @ O .
    . . . G
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, is_valid
from numpy.typing import NDArray

from art_gym.base import require_choice
from art_gym.baselines import Act, Baseline
from art_gym.tasks import Task, TaskSet
from art_gym.wrappers.adapters.common import split_tasks
from art_gym.wrappers.text_adapter import EpisodeProgress, TextAdapter, random_player

ACTIONS = ("left", "down", "right", "up")
"""In the order of FrozenLake's numbers."""
MAPS = {"train": 2000, "validation": 100, "test": 200}
"""How many maps each split has; no map is in two of them."""

_WORDS = {"S": ".", "F": ".", "H": "O", "G": "G"}
_ENDINGS = {"H": "You fell into a hole.", "G": "You are at the goal."}
_SEED = 20_260  # of the maps
_TRIES = 32  # maps drawn for each that is needed
_SWEEPS = 300
_DISCOUNT = 0.999
_NOWHERE = (0.0, 0, 0, True)
_MOST_OUTCOMES = 3


@lru_cache(maxsize=16)
def lake_tasks(size: int, frozen: float) -> TaskSet:
    """The maps of a size, drawn once for all: the same ones in every process.

    Args:
        size: Fields on a side.
        frozen: The chance of each field to be ice.
    """
    rng = np.random.default_rng((_SEED, size))
    wanted = sum(MAPS.values())
    found: dict[tuple[str, ...], None] = {}
    for ice in rng.random((_TRIES * wanted, size, size)) < frozen:
        board = [["F" if whole else "H" for whole in line] for line in ice.tolist()]
        board[0][0], board[-1][-1] = "S", "G"
        if is_valid(board, size):
            found[tuple(map("".join, board))] = None
        if len(found) == wanted:
            break
    else:
        raise ValueError(
            f"maps of size {size} with frozen={frozen} hardly differ: only {len(found)} were found for "
            f"{wanted} tasks; take a larger size, or frozen nearer to 0.7"
        )
    boards = list(found)
    return split_tasks(MAPS, lambda number: {"map": list(boards[number])})


def action_values(chances: Mapping[int, Mapping[int, Sequence[tuple[Any, ...]]]]) -> NDArray[np.float64]:
    """What each action is worth in each state to an optimal policy, by value iteration.

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


def at_goal(progress: EpisodeProgress) -> bool:
    """Whether the goal, which alone is rewarded, was reached."""
    return progress.env_return > 0


def right_down(env: FrozenLakeTextEnv, rng: np.random.Generator) -> Act:
    """Right and down by turns without a look at the map; the other one at the edge."""

    def act(observation: str) -> str:
        row, column = env.place
        turn = "right" if (row + column) % 2 == 0 else "down"
        if column == env.size - 1:
            return "down"
        return "right" if row == env.size - 1 else turn

    return act


def optimal(env: FrozenLakeTextEnv, rng: np.random.Generator) -> Act:
    """The best that can be done: a shortest way, and on slippery ice the safest."""
    values = action_values(env.env.P)

    def act(observation: str) -> str:
        worth = values[env.env.s]
        best = np.flatnonzero(worth >= worth.max() - 1e-9)  # equal ones are equally likely
        return ACTIONS[best[rng.integers(len(best))]]

    return act


class FrozenLakeTextEnv(TextAdapter):
    """Cross a frozen lake that is shown as a text map.

    ## Description
    Gymnasium's ``FrozenLake-v1``: walk from the upper left corner to the goal in the lower right one and fall
    into no hole. On slippery ice a step goes astray to one of the two sides, more often than not.

    ## Action Space
    Text: ``left``, ``down``, ``right``, ``up``, or a call of ``act``.

    ## Observation Space
    Text: the map, a blank and a mark a field: ``@`` is you, ``O`` a hole, ``.`` ice, ``G`` the goal. It
    shows the whole state, so a policy needs no memory of earlier turns.

    ## Starting State
    The upper left corner of a map of the split. Maps are drawn once for all; each has a
    way to the goal, and no map is in two splits.

    ## Rewards
    1 at the goal, else 0. A reply that is no move costs ``-invalid_reward``.

    ## Episode End
    Terminated at the goal, which is a success, and in a hole; truncated after ``max_turns`` replies.

    ## Information
    The standard keys, and at the end the metric ``env_return``.

    ## Arguments
    * ``size``: fields on a side, 4 or more.
    * ``frozen``: the chance of a field to be ice when maps are drawn.
    * ``is_slippery``, ``success_rate``: as in ``FrozenLake-v1``.
    * ``start``: ``"corner"``, or ``"anywhere"``: a field from which the goal can be reached, drawn for each
      episode. To learn from, since from the corner few attempts reach the goal by chance.
    * ``split``: ``"train"``, ``"validation"`` or ``"test"``.
    * ``max_turns``: by default six for each field of a side, four times as many on slippery ice.
    * ``invalid_reward``, ``render_mode``: as in :class:`~art_gym.wrappers.TextAdapter`.

    ## References
    Gymnasium, ``FrozenLake-v1``.

    ## Version History
    * v0: first version.
    """

    instructions: ClassVar[str] = (
        "You cross a frozen lake. The map shows you as @, holes as O, ice as a dot, and the goal as G. "
        "Reply with the direction alone: left, down, right or up."
    )
    baselines: ClassVar[Mapping[str, Baseline]] = {
        "random": random_player,
        "right-down": right_down,
        "optimal": optimal,
    }

    def __init__(
        self,
        *,
        size: int = 4,
        frozen: float = 0.8,
        is_slippery: bool = False,
        success_rate: float = 1 / 3,
        start: str = "corner",
        split: str = "train",
        max_turns: int | None = None,
        invalid_reward: float = -0.1,
        render_mode: str | None = None,
    ) -> None:
        if size < 4:
            raise ValueError(f"size must be at least 4, not {size}: smaller lakes have too few maps")
        require_choice("start", start, ("corner", "anywhere"))
        self.size, self.start = size, start
        self._rules: dict[str, Any] = {"is_slippery": is_slippery, "success_rate": success_rate}
        tasks = lake_tasks(size, frozen)
        super().__init__(
            FrozenLakeEnv(desc=tasks[0].data["map"], **self._rules),
            actions=ACTIONS,
            tasks=tasks,
            split=split,
            max_turns=(24 if is_slippery else 6) * size if max_turns is None else max_turns,
            invalid_reward=invalid_reward,
            success=at_goal,
            render_mode=render_mode,
        )

    @property
    def place(self) -> tuple[int, int]:
        """Row and column of the field you stand on."""
        return divmod(int(self.env.s), self.size)

    def restart(self, task: Task, seed: int) -> tuple[Any, dict[str, Any]]:
        """Go to the task's map."""
        self.env = FrozenLakeEnv(desc=task.data["map"], **self._rules)
        if self.start == "anywhere":
            fields = np.flatnonzero(action_values(self.env.P).max(axis=1))
            begun = np.zeros(self.size**2)
            begun[fields[self.np_random.integers(len(fields))]] = 1
            self.env.initial_state_distrib = begun
        observation, info = self.env.reset(seed=seed)
        return observation, info

    def describe(self, observation: Any) -> str:
        """The map."""
        marks = [[_WORDS[letter] for letter in line] for line in self.task.data["map"]]
        row, column = divmod(int(observation), self.size)
        marks[row][column] = "@"
        # A blank before every mark, so that to a tokenizer a field is the same wherever it lies.
        shown = "\n".join("".join(f" {mark}" for mark in line) for line in marks)
        ending = _ENDINGS.get(self.task.data["map"][row][column])
        return f"{shown}\n{ending}" if ending else shown
