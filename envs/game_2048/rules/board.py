"""The rules of 2048 on packed boards.

A board is one Python integer with a byte per cell, row by row, the top left cell in the lowest byte. A cell
holds the exponent of its tile: 0 is empty, 1 is the tile 2, 11 is 2048, and 17 is 131,072, the largest that a
4 x 4 board can reach; the largest of an 8 x 8 board, 2 to the 65th, fits as well. ``board.to_bytes(size *
size, "little")`` is the board as NumPy would hold it.

A slide looks each of its lines up in a table that is filled as lines are met: rows and columns both sit in
the integer with a fixed distance between their cells, so a shift and a mask cut either of them out. Questions
about all cells at once (which are empty, which equal their neighbour) are answered by arithmetic on the whole
integer: a cell never needs the highest bit of its byte, so that bit takes the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

ACTIONS: tuple[str, ...] = ("up", "right", "down", "left")
"""The moves; the index is the action's number."""
SIZES = range(3, 9)
"""The sizes of board there are."""
FOUR = 2**32 // 10
"""A draw whose lower half is below this gives a 4, any other a 2."""

_LARGEST = 126  # the largest exponent a cell takes: one more still leaves the byte's highest bit free
_MOST_LINES = 2**17  # entries a table remembers; all 18**4 lines of a 4 x 4 board fit


def merge(line: Sequence[int]) -> tuple[list[int], int]:
    """Slide one line towards its first cell, the slow and obvious way.

    Args:
        line: Exponents, the cell that the tiles move towards first.

    Returns:
        The exponents after the slide, and the points: the sum of the tiles that merging made. A tile made by
        this slide does not merge again.
    """
    tiles = [exponent for exponent in line if exponent]
    merged: list[int] = []
    points = 0
    while tiles:
        first = tiles.pop(0)
        if tiles and tiles[0] == first:
            tiles.pop(0)
            first += 1
            points += 2**first
        merged.append(first)
    return merged + [0] * (len(line) - len(merged)), points


class _Lines(dict[int, tuple[int, int]]):
    """From a line cut out of a board to (what the slide changes in it, as an XOR; the points)."""

    __slots__ = ("_shifts",)

    def __init__(self, shifts: Sequence[int]) -> None:
        """``shifts``: where the line's cells sit, the one that the tiles move towards first."""
        super().__init__()
        self._shifts = tuple(shifts)

    def __missing__(self, line: int) -> tuple[int, int]:
        cells, points = merge([line >> shift & 0xFF for shift in self._shifts])
        after = sum(cell << shift for cell, shift in zip(cells, self._shifts, strict=True))
        if len(self) >= _MOST_LINES:
            self.clear()
        self[line] = result = (line ^ after, points)
        return result


class _Cells(dict[int, tuple[int, ...]]):
    """From the top bits of some cells to a board for each of them, with a 1 in that cell alone."""

    def __missing__(self, tops: int) -> tuple[int, ...]:
        if len(self) >= _MOST_LINES:
            self.clear()
        places = range(7, tops.bit_length(), 8)
        self[tops] = result = tuple(1 << place - 7 for place in places if tops >> place & 1)
        return result


class Rules:
    """What the moves of 2048 do on a square board of one size.

    Holds no game: every method is a pure function. Use :meth:`of`: the tables of a size are filled while
    games are played and shared by all of them.

    Args:
        size: Cells on a side, 3 to 8.

    Raises:
        ValueError: For any other size.
        TypeError: If ``size`` is no integer.
    """

    __slots__ = ("_cells", "_filler", "_has_below", "_has_right", "_plans", "_top", "size")

    def __init__(self, size: int) -> None:
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"board size must be an int from 3 to 8, not {size!r}")
        if size not in SIZES:
            raise ValueError(f"board size must be from 3 to 8, not {size}")
        self.size = size
        along, across = [8 * i for i in range(size)], [8 * size * i for i in range(size)]
        row, column = sum(0xFF << shift for shift in along), sum(0xFF << shift for shift in across)
        self._plans = (
            (_Lines(across), column, tuple(along)),
            (_Lines(along[::-1]), row, tuple(across)),
            (_Lines(across[::-1]), column, tuple(along)),
            (_Lines(along), row, tuple(across)),
        )
        self._cells = _Cells()
        ones = sum(1 << 8 * cell for cell in range(size * size))
        self._top = 0x80 * ones
        self._filler = 0x7F * ones
        self._has_right = sum(0x80 << 8 * cell for cell in range(size * size) if (cell + 1) % size)
        self._has_below = sum(0x80 << 8 * cell for cell in range(size * (size - 1)))

    @staticmethod
    @cache
    def of(size: int) -> Rules:
        """The rules for boards of this size, one instance a process."""
        return Rules(size)

    def __reduce__(self) -> tuple[object, ...]:
        return Rules.of, (self.size,)

    def __repr__(self) -> str:
        return f"Rules.of({self.size})"

    def slide(self, board: int, action: int) -> tuple[int, int]:
        """Move all tiles, without the new tile that follows a move.

        Args:
            board: A packed board.
            action: An index into ``ACTIONS``; not checked beyond that.

        Returns:
            The board after, and the merged points. A move that leaves the board as it was is illegal.
        """
        lines, mask, shifts = self._plans[action]
        after = board
        points = 0
        for shift in shifts:
            change, gained = lines[board >> shift & mask]
            if change:
                after ^= change << shift
                points += gained
        return after, points

    def legal(self, board: int) -> tuple[bool, bool, bool, bool]:
        """Whether each of ``ACTIONS`` would change the board. Four times ``False``: the game is over."""
        top, filler, height = self._top, self._filler, 8 * self.size
        filled = board + filler & top
        gaps = filled ^ top
        # In the top bit of each cell: is it filled and equal to its neighbour? Then both directions are open.
        if filled & ((board ^ board >> 8) + filler ^ top) & self._has_right:
            left = right = True
        else:
            left = gaps & filled >> 8 & self._has_right > 0
            right = filled & gaps >> 8 & self._has_right > 0
        if filled & ((board ^ board >> height) + filler ^ top) & self._has_below:
            return True, right, True, left
        up = gaps & filled >> height & self._has_below > 0
        return up, right, filled & gaps >> height & self._has_below > 0, left

    def spawn(self, board: int, draw: int) -> int:
        """Put a new tile into an empty cell: each equally likely, a 2 in nine of ten cases, else a 4.

        Args:
            board: A packed board with an empty cell.
            draw: 64 random bits. The upper half chooses the cell (the chances of two cells differ by less
                than one in 2**32), the lower half the tile.

        Returns:
            The board with the tile.

        Raises:
            ValueError: If no cell is empty.
        """
        top = self._top
        gaps = self._cells[board + self._filler & top ^ top]
        if not gaps:
            raise ValueError("there is no empty cell to put a tile into")
        cell = gaps[(draw >> 32) * len(gaps) >> 32]
        return board | (cell << 1 if draw & 0xFFFFFFFF < FOUR else cell)

    def start(self, draws: Iterator[int]) -> int:
        """The board that a game begins with: two tiles, from the first two of ``draws``."""
        return self.spawn(self.spawn(0, next(draws)), next(draws))

    def exponents(self, board: int) -> tuple[int, ...]:
        """The cells' exponents, row by row."""
        return tuple(board.to_bytes(self.size * self.size, "little"))

    def pack(self, exponents: Sequence[int]) -> int:
        """The board with these exponents, row by row: the inverse of :meth:`exponents`.

        Raises:
            ValueError: If their number is not ``size * size`` or one of them is not from 0 to 126.
        """
        cells = self.size * self.size
        if len(exponents) != cells:
            raise ValueError(f"a board of size {self.size} has {cells} cells, not {len(exponents)}")
        for cell, exponent in enumerate(exponents):
            _check_exponent(exponent, cell)
        return int.from_bytes(bytes(exponents), "little")

    def empties(self, board: int) -> int:
        """How many cells are empty."""
        return self.size * self.size - (board + self._filler & self._top).bit_count()

    def best(self, board: int) -> int:
        """The exponent of the largest tile; 0 on an empty board."""
        return max(board.to_bytes(self.size * self.size, "little"))

    def place(self, board: int, cell: int, exponent: int) -> int:
        """Put a tile into an empty cell by hand.

        Args:
            board: A packed board.
            cell: ``row * size + column``.
            exponent: The tile's, at least 1.

        Raises:
            ValueError: If the cell does not exist or is taken, or the exponent is out of range.
        """
        if not 0 <= cell < self.size * self.size:
            raise ValueError(f"cell must be from 0 to {self.size * self.size - 1}, not {cell}")
        _check_exponent(exponent, cell)
        if not exponent:
            raise ValueError("a tile's exponent is at least 1")
        if board >> 8 * cell & 0xFF:
            raise ValueError(f"cell {cell} (row {cell // self.size}, column {cell % self.size}) is taken")
        return board | exponent << 8 * cell


def _check_exponent(exponent: int, cell: int) -> None:
    if not 0 <= exponent <= _LARGEST:
        raise ValueError(f"the exponent in cell {cell} must be from 0 to {_LARGEST}, not {exponent}")
