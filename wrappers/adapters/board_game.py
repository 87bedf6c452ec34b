"""Board games of PettingZoo's classics as text, for models and for self-play.

PettingZoo's own environment plays and pays; this describes the board, reads the replies, and answers an
illegal move with an error message instead of ending the game.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from art_gym.base import Snapshot
from art_gym.baselines import Act, Baseline
from art_gym.errors import ToolError
from art_gym.games.aec import TextAECEnv
from art_gym.games.moves import MoveResult
from art_gym.tasks import Task
from art_gym.tools import tool

Cells = tuple[int, ...]
"""A board row by row: 0 for an empty cell, 1 for the first seat's, 2 for the second's."""


class BoardGame(TextAECEnv):
    """A game in which two seats by turns take a numbered place; whoever gets a line wins.

    The seat that wins earns 1, the other -1; a full board is a draw. A subclass makes the PettingZoo
    environment and says what its board looks like.

    Args:
        options: As in every ``TextAECEnv``.
    """

    rows: ClassVar[int]
    columns: ClassVar[int]
    in_a_line: ClassVar[int]
    marks: ClassVar[str] = "XO"

    def __init__(self, **options: Any) -> None:
        self.raw = self.make_raw()
        self.moves: list[int] = []
        super().__init__(**options)
        self.raw.reset()

    def make_raw(self) -> Any:
        """PettingZoo's environment, without its wrappers."""
        raise NotImplementedError

    @property
    def cells(self) -> Cells:
        """The board."""
        raise NotImplementedError

    @classmethod
    def landing(cls, cells: Cells, place: int) -> int | None:
        """The cell that is taken by choosing a place, counted from 0; ``None`` if that is impossible."""
        return None if cells[place] else place

    def begin(self, task: Task) -> str | None:
        """An empty board; the first seat moves first."""
        self.moves = []
        self.raw.reset()
        return None

    @tool
    def play(self, place: int) -> MoveResult:
        """Take a place.

        Args:
            place: Its number, as on the board.
        """
        name = self.agent_selection
        if not 1 <= place <= len(self._choices[name]) or not self.legal_choices(name)[place - 1]:
            raise ToolError(f"{place} is not possible now; possible: {self._possible(name)}")
        self.moves.append(place - 1)
        self.raw.step(place - 1)
        taken = MoveResult(
            {other: f"The other player took {place}." for other in self.seats if other != name}
        )
        if not any(self.raw.terminations.values()):
            return taken
        rewards = {seat: float(self.raw.rewards[seat]) for seat in self.seats}
        winners = frozenset(seat for seat, reward in rewards.items() if reward > 0)
        endings = {
            seat: "You win." if seat in winners else "You lose." if winners else "A draw."
            for seat in self.seats
        }
        terms = {seat: {"env": reward} for seat, reward in rewards.items()}
        return MoveResult(endings, terms, ends=True, success=winners).after(taken)

    def view(self, name: str) -> str:
        """The board, with the numbers of places that can be taken."""
        mine = self.marks[self.seats.index(name)]
        return f"{self.board()}\nyou are {mine}\npossible {self._possible(name)}"

    def board(self) -> str:
        """The board as text."""
        cells = self.cells
        shown = [self.marks[cell - 1] if cell else str(number) for number, cell in enumerate(cells, 1)]
        rows = (shown[at : at + self.columns] for at in range(0, len(shown), self.columns))
        return "\n".join(map(" ".join, rows))

    def picture(self) -> str:
        """The board."""
        return self.board()

    def choices(self, name: str) -> Sequence[str]:
        """The places' numbers."""
        return [str(action + 1) for action in range(int(self.raw.action_space(self.seats[0]).n))]

    def legal_choices(self, name: str) -> Sequence[bool]:
        """The places that can still be taken."""
        cells = self.cells
        return [self.landing(cells, place) is not None for place in range(len(self._choices[name]))]

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot, which stays usable."""
        super().restore(snapshot)
        self._replay()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._replay()

    def _replay(self) -> None:
        # A copy of PettingZoo's classics is a new game (their EzPickle), so its moves are played again.
        self.raw.reset()
        for move in self.moves:
            self.raw.step(move)

    def _possible(self, name: str) -> str:
        legal = zip(self._choices[name], self.legal_choices(name), strict=True)
        return " ".join(choice for choice, allowed in legal if allowed) or "none"


def lines(rows: int, columns: int, length: int) -> tuple[Cells, ...]:
    """All lines of a length on a board, as the cells they go through."""
    found = []
    for row in range(rows):
        for column in range(columns):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                last = row + down * (length - 1), column + right * (length - 1)
                if 0 <= last[0] < rows and 0 <= last[1] < columns:
                    found.append(
                        tuple((row + n * down) * columns + column + n * right for n in range(length))
                    )
    return tuple(found)


def wins(cells: Cells, mark: int, among: Sequence[Cells]) -> bool:
    """Whether a seat has one of the lines."""
    return any(all(cells[cell] == mark for cell in line) for line in among)


def with_mark(cells: Cells, cell: int, mark: int) -> Cells:
    """The board after a cell was taken."""
    return (*cells[:cell], mark, *cells[cell + 1 :])


def random_place(game: BoardGame, rng: np.random.Generator) -> Act:
    """Any place that can be taken, each equally likely."""

    def act(text: str) -> str:
        legal = np.flatnonzero(game.legal_choices(game.agent_selection))
        return str(int(legal[rng.integers(len(legal))]) + 1)

    return act


def win_or_block(game: BoardGame, rng: np.random.Generator) -> Act:
    """Completes a line; else keeps the other from completing one; else takes any place."""
    among = lines(game.rows, game.columns, game.in_a_line)
    anywhere = random_place(game, rng)

    def act(text: str) -> str:
        cells = game.cells
        mine = 1 + game.seats.index(game.agent_selection)
        for mark in (mine, 3 - mine):
            for place in range(len(game.legal_choices(game.agent_selection))):
                cell = game.landing(cells, place)
                if cell is not None and wins(with_mark(cells, cell, mark), mark, among):
                    return str(place + 1)
        return anywhere(text)

    return act


PLAYERS: Mapping[str, Baseline] = {"random": random_place, "win-or-block": win_or_block}
