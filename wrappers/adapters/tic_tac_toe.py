"""``classic/TicTacToe-v0``: PettingZoo's tic-tac-toe as text, for models and for self-play.

PettingZoo's own environment plays and pays; this describes the board, reads the replies, and answers an
illegal move with an error message instead of ending the game.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from art_gym.base import Snapshot
from art_gym.baselines import Act, Baseline
from art_gym.errors import ToolError
from art_gym.games.aec import TextAECEnv
from art_gym.games.moves import MoveResult
from art_gym.tasks import Task
from art_gym.tools import tool
from art_gym.wrappers.adapters.common import import_optional

SEATS = ("player_1", "player_2")
_MARKS = "XO"
_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
Cells = tuple[int, ...]
"""The nine cells: 0 for an empty one, 1 for the first seat's, 2 for the second's."""


def wins(cells: Cells, mark: int) -> bool:
    """Whether a seat has three in a line."""
    return any(all(cells[cell] == mark for cell in line) for line in _LINES)


def with_mark(cells: Cells, cell: int, mark: int) -> Cells:
    """The board after a cell was taken."""
    return (*cells[:cell], mark, *cells[cell + 1 :])


def free_cells(cells: Cells) -> list[int]:
    """The cells that can still be taken."""
    return [cell for cell, taken in enumerate(cells) if not taken]


@lru_cache(maxsize=6000)
def value(cells: Cells, mark: int) -> int:
    """What a position is worth to the seat that is to move, when both play perfectly: 1, 0 or -1."""
    if wins(cells, 3 - mark):
        return -1
    return max((-value(with_mark(cells, cell, mark), 3 - mark) for cell in free_cells(cells)), default=0)


def _pick(cells: Sequence[int], rng: np.random.Generator) -> str:
    return str(cells[int(rng.integers(len(cells)))] + 1)


def random_place(game: TicTacToe, rng: np.random.Generator) -> Act:
    """Any place that can be taken, each equally likely."""
    return lambda text: _pick(free_cells(game.cells), rng)


def win_or_block(game: TicTacToe, rng: np.random.Generator) -> Act:
    """Completes a line; else keeps the other from completing one; else takes any place."""

    def act(text: str) -> str:
        cells = game.cells
        for mark in (game.mark, 3 - game.mark):
            for cell in free_cells(cells):
                if wins(with_mark(cells, cell, mark), mark):
                    return str(cell + 1)
        return _pick(free_cells(cells), rng)

    return act


def perfect(game: TicTacToe, rng: np.random.Generator) -> Act:
    """Never loses; equally good places are equally likely."""

    def act(text: str) -> str:
        cells, mark = game.cells, game.mark
        worth = {cell: -value(with_mark(cells, cell, mark), 3 - mark) for cell in free_cells(cells)}
        return _pick([cell for cell, found in worth.items() if found == max(worth.values())], rng)

    return act


_PLAYERS: Mapping[str, Baseline] = {
    "random": random_place,
    "win-or-block": win_or_block,
    "perfect": perfect,
}


class TicTacToe(TextAECEnv):
    """Tic-tac-toe: three in a line win.

    The seat that wins earns 1, the other -1; a full board is a draw.

    Args:
        options: As in every ``TextAECEnv``.

    Raises:
        ModuleNotFoundError: If PettingZoo's classics cannot be imported.
    """

    metadata: dict[str, Any] = {**TextAECEnv.metadata, "name": "TicTacToe"}  # noqa: RUF012 (PettingZoo's own)
    seats: ClassVar[tuple[str, ...]] = SEATS
    instructions: ClassVar[Mapping[str, str]] = dict.fromkeys(
        SEATS,
        "You play tic-tac-toe: three of your marks in a line win. Reply with a free cell's number.",
    )
    players: ClassVar[Mapping[str, Mapping[str, Baseline]]] = dict.fromkeys(SEATS, _PLAYERS)

    def __init__(self, **options: Any) -> None:
        module = import_optional("pettingzoo.classic.tictactoe.tictactoe", "pettingzoo pygame-ce")
        self.raw = module.raw_env()
        self.moves: list[int] = []
        super().__init__(**options)
        self.raw.reset()

    @property
    def cells(self) -> Cells:
        """The nine cells, in PettingZoo's order."""
        return tuple(int(cell) for cell in self.raw.board.squares)

    @property
    def mark(self) -> int:
        """The mark of the seat that is to move: 1 or 2."""
        return 1 + SEATS.index(self.agent_selection)

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
        if place - 1 not in free_cells(self.cells):
            raise ToolError(f"{place} is not possible now; possible: {self._possible()}")
        name = self.agent_selection
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
        mine = _MARKS[self.seats.index(name)]
        return f"{self.picture()}\nyou are {mine}\npossible {self._possible()}"

    def picture(self) -> str:
        """The board."""
        shown = [_MARKS[cell - 1] if cell else str(number) for number, cell in enumerate(self.cells, 1)]
        return "\n".join(" ".join(shown[at : at + 3]) for at in (0, 3, 6))

    def choices(self, name: str) -> Sequence[str]:
        """The places' numbers."""
        return [str(place) for place in range(1, 10)]

    def legal_choices(self, name: str) -> Sequence[bool]:
        """The places that can still be taken."""
        return [not cell for cell in self.cells]

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

    def _possible(self) -> str:
        return " ".join(str(cell + 1) for cell in free_cells(self.cells)) or "none"
