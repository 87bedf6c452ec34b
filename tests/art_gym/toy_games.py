"""Two small games in text: one in turns, with chance and a best strategy; in the other both move at once."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pettingzoo
from gymnasium import spaces
from numpy.typing import NDArray

from art_gym import Task, ToolError, tool
from art_gym.games.aec import MoveResult, TextAECEnv, seat

FIRST, SECOND = "first_0", "second_1"


def _any(env: Any, rng: np.random.Generator) -> Callable[[str], str]:
    return lambda observation: str(1 + int(rng.integers(2)))


def _best(env: Any, rng: np.random.Generator) -> Callable[[str], str]:
    return lambda observation: str((env.goal - env.count) % 3 or 1)


class Race(TextAECEnv):
    """Add 1 or 2 to a count in turns; who reaches the goal wins. The first may also pass, once."""

    metadata = {"name": "toy_race_v0", "render_modes": ["ansi", "human"], "is_parallelizable": False}  # noqa: RUF012
    seats = (FIRST, SECOND)
    instructions = dict.fromkeys(seats, "Reach the goal.")
    players = {name: {"any": _any, "best": _best} for name in (FIRST, SECOND)}  # noqa: RUF012
    shared = ("goal",)

    def __init__(self, goal: int = 10, lowest: int = 0, highest: int = 3, **options: Any) -> None:
        self.goal = goal
        self.range = lowest, highest
        self.count = 0
        self.passed = False
        super().__init__(**({"max_cycles": 12} | options))

    def begin(self, task: Task) -> str:
        self.count = int(self.np_random.integers(*self.range, endpoint=True))
        self.passed = False
        return FIRST

    @tool
    def add(self, number: int) -> MoveResult:
        """Add to the count.

        Args:
            number: 1 or 2.
        """
        if number not in (1, 2):
            raise ToolError(f"add 1 or 2, not {number}")
        actor = self.agent_selection
        other = SECOND if actor == FIRST else FIRST
        self.count += number
        if self.count < self.goal:
            return MoveResult({other: f"+{number}"})
        return MoveResult(
            dict.fromkeys(self.seats, f"{actor} wins"),
            {actor: {"win": 1.0}, other: {"win": -1.0}},
            ends=True,
            success=frozenset([actor]),
            metrics={"count": self.count},
        )

    @seat(FIRST)
    @tool
    def wait(self) -> MoveResult:
        """Do nothing, once a game; it is still your turn then."""
        if self.passed:
            raise ToolError("you have waited already")
        self.passed = True
        return MoveResult({SECOND: "waited"}, {FIRST: {"waited": -0.25}}, next=FIRST)

    def view(self, name: str) -> str:
        return f"count {self.count}"

    def choices(self, name: str) -> Sequence[str]:
        return ["1", "2"]

    def array_space(self, name: str) -> spaces.Box:
        return spaces.Box(0, 2 * self.goal, (2,), np.int64)

    def array(self, name: str) -> NDArray[np.int64]:
        return np.array([self.count, self.goal], np.int64)


class Pennies(TextAECEnv):
    """Matching pennies, round after round: what the first shows is seen when the second has shown too."""

    metadata = {"name": "toy_pennies_v0", "render_modes": ["ansi", "human"], "is_parallelizable": True}  # noqa: RUF012
    seats = ("even_0", "odd_1")

    def begin(self, task: Task) -> None:
        self.shown = ""
        self.seen = "nothing yet"

    @tool
    def show(self, side: Literal["heads", "tails"]) -> MoveResult:
        """Show a side of the penny.

        Args:
            side: Which.
        """
        if self.agent_selection == "even_0":
            self.shown = side
            return MoveResult()
        even = 1.0 if side == self.shown else -1.0
        self.seen = f"{self.shown} and {side}"
        return MoveResult(score_terms={"even_0": {"match": even}, "odd_1": {"match": -even}})

    def view(self, name: str) -> str:
        return f"shown: {self.seen}"

    def choices(self, name: str) -> Sequence[str]:
        return ["heads", "tails"]


if "toy/Race-v0" not in pettingzoo.aec_registry:
    pettingzoo.register("aec", "toy/Race-v0", entry_point=Race)
