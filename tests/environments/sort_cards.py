"""Sort four cards by exchanging two at a time."""

import gymnasium as gym

from art_gym import Outcome, Task, TextEnv, ToolError, tool


class SortCards(TextEnv):
    """Bring the cards into rising order within five exchanges."""

    instructions = "Sort the cards, the smallest first. Places are counted from 1."

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(max_turns=5, render_mode=render_mode)

    def begin(self, task: Task) -> str:
        while True:
            self.cards = [int(card) for card in self.np_random.permutation(9)[:4] + 1]
            if self.cards != sorted(self.cards):
                return self.hand()

    def hand(self) -> str:
        return f"Cards: {' '.join(map(str, self.cards))}"

    def observation_after_error(self) -> str:
        return self.hand()

    @tool
    def swap(self, first: int, second: int) -> Outcome:
        """Exchange two cards.

        Args:
            first: Place of one card, from 1 to 4.
            second: Place of the other card, from 1 to 4.
        """
        if first == second or not {first, second} <= {1, 2, 3, 4}:
            raise ToolError("give two different places from 1 to 4")
        a, b = first - 1, second - 1
        self.cards[a], self.cards[b] = self.cards[b], self.cards[a]
        if self.cards == sorted(self.cards):
            return Outcome(f"{self.hand()}\nSorted.", {"sorted": 1.0}, ends=True, success=True)
        return Outcome(self.hand())


gym.register("small/SortCards-v0", entry_point=SortCards)
