"""``classic/ConnectFour-v0``: PettingZoo's Connect Four as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from art_gym.env import Baseline
from art_gym.wrappers.adapters.board_game import PLAYERS, BoardGame, Cells
from art_gym.wrappers.adapters.common import import_optional

SEATS = ("player_0", "player_1")
_COLUMNS = 7


class ConnectFour(BoardGame):
    """Connect Four: a mark falls to the lowest free cell of its column; four in a line win.

    Args:
        options: As in every ``TextAECEnv``.

    Raises:
        ModuleNotFoundError: If PettingZoo's classics cannot be imported.
    """

    metadata: dict[str, Any] = {**BoardGame.metadata, "name": "ConnectFour"}  # noqa: RUF012 (PettingZoo's own)
    seats: ClassVar[tuple[str, ...]] = SEATS
    rows, columns, in_a_line = 6, _COLUMNS, 4
    instructions: ClassVar[Mapping[str, str]] = dict.fromkeys(
        SEATS,
        "You play Connect Four: a mark falls to the lowest free cell of its column, and four of your marks "
        "in a line win. Reply with the number of a column, from 1 to 7.",
    )
    players: ClassVar[Mapping[str, Mapping[str, Baseline]]] = dict.fromkeys(SEATS, PLAYERS)

    def make_raw(self) -> Any:
        """PettingZoo's ``connect_four_v3``."""
        return import_optional(
            "pettingzoo.classic.connect_four.connect_four", "pettingzoo pygame-ce"
        ).raw_env()

    @property
    def cells(self) -> Cells:
        """The 42 cells from the top row down."""
        return tuple(int(cell) for cell in self.raw.board)

    @classmethod
    def landing(cls, cells: Cells, place: int) -> int | None:
        """The lowest free cell of a column."""
        column = range(place, len(cells), _COLUMNS)
        return max((cell for cell in column if not cells[cell]), default=None)

    def board(self) -> str:
        """The columns' numbers above the board, a dot for a free cell."""
        shown = ["." if not cell else self.marks[cell - 1] for cell in self.cells]
        rows = [shown[at : at + _COLUMNS] for at in range(0, len(shown), _COLUMNS)]
        return "\n".join(map(" ".join, [[str(number) for number in range(1, _COLUMNS + 1)], *rows]))
