"""Three slot machines; one pays more often than the others."""

import gymnasium as gym

from art_gym import Outcome, Task, TextEnv, ToolError, tool

MACHINES = ("red", "green", "blue")


class Bandit(TextEnv):
    """Earn as many coins as possible in ten plays; which machine is good changes from game to game."""

    instructions = "Play the machines red, green and blue ten times. One of them pays more often: find it."

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(max_turns=10, render_mode=render_mode)

    def begin(self, task: Task) -> str:
        self.good = str(self.np_random.choice(MACHINES))
        self.plays = self.coins = 0
        return "Choose a machine."

    def on_truncation(self) -> Outcome:
        return Outcome(f"You earned {self.coins} coins.", success=self.coins >= 7)

    @tool
    def play(self, machine: str) -> Outcome:
        """Play a machine.

        Args:
            machine: red, green or blue.
        """
        if machine not in MACHINES:
            raise ToolError("the machines are red, green and blue")
        paid = bool(self.np_random.random() < (0.9 if machine == self.good else 0.1))
        self.coins += paid
        return Outcome(f"{machine} paid {int(paid)}", {"coins": 0.1 * paid})


gym.register("small/Bandit-v0", entry_point=Bandit)
