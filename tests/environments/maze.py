"""Walk to the exit of a maze drawn with letters."""

import gymnasium as gym

from art_gym import Outcome, Task, TextEnv, ToolError, tool

SIZE = 4
MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


class Maze(TextEnv):
    """Reach the exit; a step into a wall costs a little."""

    instructions = "You are A. Walk to the exit E. # is a wall."

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(max_turns=12, render_mode=render_mode)

    def begin(self, task: Task) -> str:
        while True:  # until there is a way
            cells = [(row, column) for row in range(SIZE) for column in range(SIZE)]
            drawn = [cells[n] for n in self.np_random.permutation(len(cells))]
            self.place, self.exit, self.walls = drawn[0], drawn[1], set(drawn[2:6])
            reached = [self.place]
            for row, column in reached:
                ways = [(row + down, column + right) for down, right in MOVES.values()]
                reached += [way for way in ways if self.free(way) and way not in reached]
            if self.exit in reached:
                return self.drawing()

    def free(self, cell: tuple[int, int]) -> bool:
        return min(cell) >= 0 and max(cell) < SIZE and cell not in self.walls

    def drawing(self) -> str:
        marks = {**dict.fromkeys(self.walls, "#"), self.exit: "E", self.place: "A"}
        return "\n".join(
            " ".join(marks.get((row, column), ".") for column in range(SIZE)) for row in range(SIZE)
        )

    def observation_after_error(self) -> str:
        return self.drawing()

    @tool
    def move(self, direction: str) -> Outcome:
        """Take one step.

        Args:
            direction: up, down, left or right.
        """
        if direction not in MOVES:
            raise ToolError("the directions are up, down, left and right")
        down, right = MOVES[direction]
        cell = (self.place[0] + down, self.place[1] + right)
        if not self.free(cell):
            return Outcome(f"There is a wall.\n{self.drawing()}", {"wall": -0.05})
        self.place = cell
        if cell == self.exit:
            return Outcome("You are out.", {"out": 1.0}, ends=True, success=True)
        return Outcome(self.drawing())


gym.register("small/Maze-v0", entry_point=Maze)
