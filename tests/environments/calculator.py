"""Multiply with a calculator."""

import gymnasium as gym

from art_gym import Outcome, Task, TaskSet, TextEnv, tool

PAIRS = [(a, b) for a in range(11, 60, 2) for b in range(3, 20)]
TASKS = TaskSet(
    Task(f"{a}x{b}", f"What is {a} times {b}?", "test" if n % 4 == 0 else "train", {"result": a * b})
    for n, (a, b) in enumerate(PAIRS)
)


class Calculator(TextEnv):
    """Use the calculator, then answer."""

    instructions = "Answer the question. You have a calculator."

    def __init__(self, split: str = "train", render_mode: str | None = None) -> None:
        super().__init__(TASKS, split=split, max_turns=3, render_mode=render_mode)

    @tool
    def multiply(self, first: int, second: int) -> str:
        """Multiply two numbers.

        Args:
            first: A number.
            second: A number.
        """
        return f"result: {first * second}"

    @tool(ends=True)
    def answer(self, number: int) -> Outcome:
        """Answer the question.

        Args:
            number: The result.
        """
        right = number == self.task.data["result"]
        return Outcome("right" if right else "wrong", {"right": float(right)}, success=right)


gym.register("small/Calculator-v0", entry_point=Calculator)
