"""Tic-tac-toe against a script that wins where it can and plays anywhere else."""

import gymnasium as gym

from art_gym import Outcome, Task, TextEnv, ToolError, tool

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


class TicTacToe(TextEnv):
    """You are X and begin."""

    instructions = "You are X. Choose a free cell; three in a line win."

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(max_turns=9, render_mode=render_mode)

    def begin(self, task: Task) -> str:
        self.cells = [str(number) for number in range(1, 10)]
        return self.board()

    def board(self) -> str:
        return "\n".join(" ".join(self.cells[row : row + 3]) for row in (0, 3, 6))

    def observation_after_error(self) -> str:
        return self.board()

    def free(self) -> list[int]:
        return [place for place, mark in enumerate(self.cells) if mark not in "XO"]

    def won(self, mark: str) -> bool:
        return any(all(self.cells[place] == mark for place in line) for line in LINES)

    def reply(self) -> None:
        free = self.free()
        for place in free:
            before, self.cells[place] = self.cells[place], "O"
            if self.won("O"):
                return
            self.cells[place] = before
        self.cells[int(self.np_random.choice(free))] = "O"

    @tool
    def place(self, cell: int) -> Outcome:
        """Put your X into a cell.

        Args:
            cell: Its number.
        """
        if cell - 1 not in self.free():
            raise ToolError(f"{cell} is not free")
        self.cells[cell - 1] = "X"
        if self.won("X"):
            return Outcome(f"{self.board()}\nYou won.", {"won": 1.0}, ends=True, success=True)
        if not self.free():
            return Outcome(f"{self.board()}\nA draw.", {"draw": 0.5}, ends=True)
        self.reply()
        if self.won("O"):
            return Outcome(f"{self.board()}\nYou lost.", ends=True)
        return Outcome(self.board())


gym.register("small/TicTacToe-v0", entry_point=TicTacToe)
