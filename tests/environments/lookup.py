"""Answer a question about a price list that only a tool can read."""

import gymnasium as gym
import numpy as np

from art_gym import Outcome, Task, TaskSet, TextEnv, ToolError, tool

ITEMS = "apple pear plum melon bread milk cheese butter sugar flour salt rice tea coffee honey jam".split()


def make_task(number: int) -> Task:
    rng = np.random.default_rng(number)
    prices = dict(zip(ITEMS, map(int, rng.integers(1, 30, len(ITEMS))), strict=True))
    item = str(rng.choice(ITEMS))
    split = "test" if number % 4 == 0 else "train"
    return Task(f"price-{number}", f"How much is the {item}?", split, {"prices": prices, "item": item})


TASKS = TaskSet(make_task(number) for number in range(400))


class Lookup(TextEnv):
    """Look a price up, then answer."""

    instructions = "Answer the question. The prices change every day: look them up."

    def __init__(self, split: str = "train", render_mode: str | None = None) -> None:
        super().__init__(TASKS, split=split, max_turns=4, render_mode=render_mode)

    @tool
    def price(self, item: str) -> str:
        """Look up the price of an item.

        Args:
            item: Its name, such as bread.
        """
        if item not in self.task.data["prices"]:
            raise ToolError(f"there is no {item!r}; there are {', '.join(ITEMS)}")
        return f"{item}: {self.task.data['prices'][item]}"

    @tool(ends=True)
    def answer(self, amount: int) -> Outcome:
        """Answer the question.

        Args:
            amount: The price.
        """
        right = amount == self.task.data["prices"][self.task.data["item"]]
        return Outcome("right" if right else "wrong", {"right": float(right)}, success=right)


gym.register("small/Lookup-v0", entry_point=Lookup)
