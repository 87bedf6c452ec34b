"""Find a free hour in a small calendar."""

import gymnasium as gym

from art_gym import Outcome, Task, TextEnv, ToolError, tool

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
HOURS = (9, 10, 11, 12, 13, 14)


class CalendarSlot(TextEnv):
    """Book a free hour on a day that somebody wishes."""

    instructions = "Book a meeting on the day that is asked for, in an hour that is free."

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(max_turns=4, render_mode=render_mode)

    def begin(self, task: Task) -> str:
        self.busy = {}
        for day in DAYS:
            taken = self.np_random.permutation(HOURS)[: int(self.np_random.integers(3, 6))]
            self.busy[day] = sorted(map(int, taken))
        self.wish = str(self.np_random.choice(DAYS))
        return f"Please book a meeting on {self.wish}."

    def known(self, day: str) -> str:
        if day not in DAYS:
            raise ToolError(f"the days are {', '.join(DAYS)}")
        return day

    @tool
    def show(self, day: str) -> str:
        """Show which hours of a day are taken.

        Args:
            day: Monday to Friday.
        """
        return f"taken: {' '.join(map(str, self.busy[self.known(day)]))}"

    @tool(ends=True)
    def book(self, day: str, hour: int) -> Outcome:
        """Book an hour.

        Args:
            day: Monday to Friday.
            hour: From 9 to 14.
        """
        if hour not in HOURS:
            raise ToolError("the hours are 9 to 14")
        right = self.known(day) == self.wish and hour not in self.busy[day]
        return Outcome(
            "booked" if right else "that was not what was asked for", {"right": float(right)}, success=right
        )


gym.register("small/CalendarSlot-v0", entry_point=CalendarSlot)
