"""Guess a number from 1 to 20 in five turns."""

import gymnasium as gym

from art_gym import Outcome, Task, TextEnv, ToolError, tool


class GuessNumber(TextEnv):
    """Guess a number; each wrong guess is answered "too low" or "too high"."""

    instructions = "A number from 1 to 20 is hidden. Find it in five guesses."

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(max_turns=5, render_mode=render_mode)

    def begin(self, task: Task) -> str:
        self.hidden = int(self.np_random.integers(1, 21))
        return "Guess the number."

    @tool
    def guess(self, number: int) -> Outcome:
        """Guess the number.

        Args:
            number: From 1 to 20.
        """
        if not 1 <= number <= 20:
            raise ToolError(f"{number} is not from 1 to 20")
        if number == self.hidden:
            return Outcome("Right!", {"found": 1.0}, ends=True, success=True)
        return Outcome("too high" if number > self.hidden else "too low")


gym.register("small/Guess-v0", entry_point=GuessNumber)
