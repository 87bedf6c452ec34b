"""Small environments that the tests play with."""

from datetime import date
from typing import Any, ClassVar, Literal

import gymnasium as gym

from art_gym.env import TextEnv
from art_gym.errors import ToolError
from art_gym.spaces import UnicodeText
from art_gym.tasks import Task
from art_gym.testing.format_checks import HEADINGS
from art_gym.tools import Outcome, tool

DOCSTRING = "\n\n".join(f"## {heading}\nWords about it." for heading in HEADINGS)
"""All headings that the docstring of an environment has."""


class CounterEnv(TextEnv):
    __doc__ = f"Add numbers until a task's target is reached, with a wind that adds 0 or 1.\n\n{DOCSTRING}"

    instructions: ClassVar[str] = "Reach the target."

    def __init__(self, **kwargs: object) -> None:
        splits = ["train"] * 7 + ["test"] * 3
        tasks = [Task(f"t{n}", f"Reach {n}.", split, {"target": n}) for n, split in enumerate(splits, 1)]
        super().__init__(tasks, **kwargs)  # type: ignore[arg-type]

    def begin(self, task: Task) -> str:
        self.count = 0
        self.history: list[int] = []
        return f"{task.prompt} The counter is 0."

    @tool
    def add(self, amount: int, times: int = 1) -> str:
        """Add to the counter.

        Args:
            amount: How much, from 1 to 9.
            times: How often,
                on two lines.
        """
        if not 1 <= amount <= 9:
            raise ToolError(f"amount must be from 1 to 9, not {amount}")
        self.count += amount * times + int(self.np_random.integers(2))
        self.history.append(self.count)
        return f"The counter is {self.count}."

    @tool
    def peek(self, what: Literal["target", "count"], day: date | None = None) -> Outcome:
        """Look at a number.

        Args:
            what: Which number.
            day: Has no effect.
        """
        value = self.task.data["target"] if what == "target" else self.count
        return Outcome(f"{what} = {value}", {"peek": -0.01})

    @tool(ends=True)
    def stop(self) -> Outcome:
        """Stop here."""
        right = self.count == self.task.data["target"]
        return Outcome("Done.", {"right": float(right)}, success=right, metrics={"count": float(self.count)})


class EchoEnv(gym.Env[str, str]):
    """Repeats its action until that is ``end``, at 2 points a step; no ``TextEnv``, and its info is empty."""

    def __init__(self, first: str = "begin", limit: int = 60) -> None:
        self.observation_space = UnicodeText(limit)
        self.action_space = UnicodeText(limit)
        self.first = first

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return self.first, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return action.encode(errors="replace").decode()[:60], 2.0, action == "end", False, {}
