"""``classic/TicTacToe-v0``: PettingZoo's tic-tac-toe as text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from art_gym.baselines import Act, Baseline
from art_gym.wrappers.adapters.board_game import PLAYERS, BoardGame, Cells, lines, wins, with_mark
from art_gym.wrappers.adapters.common import import_optional

SEATS = ("player_1", "player_2")
_LINES = lines(3, 3, 3)


@lru_cache(maxsize=6000)
def value(cells: Cells, mark: int) -> int:
    """What a position is worth to the seat that is to move, when both play perfectly: 1, 0 or -1."""
    if wins(cells, 3 - mark, _LINES):
        return -1
    free = [cell for cell, taken in enumerate(cells) if not taken]
    return max((-value(with_mark(cells, cell, mark), 3 - mark) for cell in free), default=0)


def perfect(game: TicTacToe, rng: np.random.Generator) -> Act:
    """Never loses; equally good places are equally likely."""

    def act(text: str) -> str:
        cells = game.cells
        mark = 1 + SEATS.index(game.agent_selection)
        worth = {
            cell: -value(with_mark(cells, cell, mark), 3 - mark)
            for cell, taken in enumerate(cells)
            if not taken
        }
        best = [cell for cell, found in worth.items() if found == max(worth.values())]
        return str(best[int(rng.integers(len(best)))] + 1)

    return act


class TicTacToe(BoardGame):
    """Tic-tac-toe: three in a line win.

    Args:
        options: As in every ``TextAECEnv``.

    Raises:
        ModuleNotFoundError: If PettingZoo's classics cannot be imported.
    """

    metadata: dict[str, Any] = {**BoardGame.metadata, "name": "TicTacToe"}  # noqa: RUF012 (PettingZoo's own)
    seats: ClassVar[tuple[str, ...]] = SEATS
    rows, columns, in_a_line = 3, 3, 3
    instructions: ClassVar[Mapping[str, str]] = dict.fromkeys(
        SEATS,
        "You play tic-tac-toe: three of your marks in a line win. Reply with a free cell's number.",
    )
    players: ClassVar[Mapping[str, Mapping[str, Baseline]]] = {
        name: {**PLAYERS, "perfect": perfect} for name in SEATS
    }

    def make_raw(self) -> Any:
        """PettingZoo's ``tictactoe_v3``."""
        return import_optional("pettingzoo.classic.tictactoe.tictactoe", "pettingzoo pygame-ce").raw_env()

    @property
    def cells(self) -> Cells:
        """The nine cells, in PettingZoo's order."""
        return tuple(int(cell) for cell in self.raw.board.squares)
