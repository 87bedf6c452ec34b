"""Show a board: as text for models, in terminal colours, and as an image drawn with NumPy alone.

The text is what a model reads each turn, so every character counts::

       .    .    2    4
       .    2    8   16
       2    4   16   64
       4   16   32  128
    score 724
    legal up left

Every cell is one word between blanks, a dot if it is empty, right-aligned in columns as wide as the widest
tile: a tokenizer that splits at blanks sees the same words for the same board, whatever its size.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from operator import getitem

import numpy as np
from numpy.typing import NDArray

from art_gym.envs.game_2048.rules.board import ACTIONS

_MOST = 127
"""Exponents in a cell."""


def board_text(exponents: Sequence[int], size: int) -> str:
    """The cells alone, one line a row.

    Args:
        exponents: The cells row by row, 0 for an empty one, 1 for the tile 2, 2 for 4, and so on.
        size: Cells in a row.
    """
    return "".join(map(getitem, _cells(size)[max(exponents)], exponents))


def observation(exponents: Sequence[int], size: int, score: int, legal: tuple[bool, ...]) -> str:
    """The board, the score and the legal moves.

    Args:
        exponents: The cells row by row, 0 for an empty one, 1 for the tile 2, 2 for 4, and so on.
        size: Cells in a row.
        score: Points so far.
        legal: Whether each of up, right, down and left changes the board.
    """
    return f"{board_text(exponents, size)}\nscore {score}\n{_LEGAL_LINES[legal]}"


def observation_with_points(
    exponents: Sequence[int], size: int, score: int, points: Sequence[int | None]
) -> str:
    """The score, the board, and what each move would score, with a dash if it is illegal.

    The score comes first: what follows then always stands equally far from the end, where the reply begins.

    Args:
        exponents: As in :func:`observation`.
        size: Cells in a row.
        score: Points so far.
        points: The points of up, right, down and left, ``None`` if the move is illegal.
    """
    moves = [f"{name} {'-' if gain is None else gain}" for name, gain in zip(ACTIONS, points, strict=True)]
    return f"score {score}\n{board_text(exponents, size)}\n{' '.join(moves)}"


@cache
def _cells(size: int) -> list[list[tuple[str, ...]]]:
    """By a board's largest exponent and a cell's place: the cell's text for each exponent.

    Before the cell stands a blank or, if it begins a row, the end of the line above.
    """
    columns: dict[int, list[tuple[str, ...]]] = {}
    found = []
    for best in range(_MOST):
        width = len(str(1 << best))
        if width not in columns:
            cells = [f"{1 << exponent if exponent else '.':>{width}}" for exponent in range(_MOST)]
            first, below, beside = (tuple(mark + cell for cell in cells) for mark in ("", "\n", " "))
            row = [beside] * (size - 1)
            columns[width] = [first, *row, *([below, *row] * (size - 1))]
        found.append(columns[width])
    return found


_LEGAL_LINES = {
    tuple(bool(mask >> index & 1) for index in range(4)): "legal "
    + (" ".join(name for index, name in enumerate(ACTIONS) if mask >> index & 1) or "none")
    for mask in range(16)
}


Image = NDArray[np.uint8]
Colour = list[int]

_TILE, _GAP, _HEADER, _RADIUS = 80, 8, 48, 6  # pixels; all even, as video codecs want it
_MARGIN = 4  # pixels between a number and the border of its tile
_LARGEST_SCALE = 5  # pixels a dot of the font
_BRIGHT = 160  # luminance from which on a number is dark
_LONGEST_NUMBER = 6  # digits; larger tiles are written as powers of two

_LOOK = tomllib.loads(files(__package__).joinpath("rendering.toml").read_text("utf-8"))
_COLOURS: dict[str, Colour] = _LOOK["colours"]
_BOARD, _EMPTY, _DARK = _COLOURS["board"], _COLOURS["empty"], _COLOURS["dark"]
_TILES: list[Colour] = _LOOK["tiles"]
_FONT: dict[str, str] = _LOOK["font"]


def ansi(exponents: Sequence[int], size: int, score: int) -> str:
    """The board as plain text, and the score.

    Args:
        exponents: The cells row by row, 0 for an empty one, 1 for the tile 2, 2 for 4, and so on.
        size: Cells in a row.
        score: Points so far.
    """
    return f"{board_text(exponents, size)}\nscore {score}"


def colored(exponents: Sequence[int], size: int, score: int) -> str:
    """The board for a terminal with 24-bit colours, each number on its tile's. Arguments as :func:`ansi`."""
    width = max(6, len(str(1 << max(exponents))) + 2)
    lines = []
    for row in range(size):
        cells = exponents[row * size : (row + 1) * size]
        lines.append("".join(_colored_cell(exponent, width) for exponent in cells))
    return "\n".join([*lines, f"score {score}"])


def picture(exponents: Sequence[int], size: int, score: int) -> Image:
    """The board as an image. Arguments as :func:`ansi`.

    Returns:
        RGB values of shape (height, width, 3), where width is ``88 * size + 8`` pixels and height 48 more.
    """
    side = size * _TILE + (size + 1) * _GAP
    image = np.empty((side + _HEADER, side, 3), np.uint8)
    image[:_HEADER] = _COLOURS["page"]
    image[_HEADER:] = _BOARD
    _write(image[:_HEADER, _GAP:-_GAP], f"SCORE {score}", _DARK, largest=3)
    for cell, exponent in enumerate(exponents):
        top = _HEADER + _GAP + cell // size * (_TILE + _GAP)
        left = _GAP + cell % size * (_TILE + _GAP)
        image[top : top + _TILE, left : left + _TILE] = _tile(exponent)
    return image


def _colour(exponent: int) -> Colour:
    return _TILES[min(exponent, len(_TILES)) - 1] if exponent else _EMPTY


def _ink(exponent: int) -> Colour:
    """The colour of the number: dark on a bright tile."""
    red, green, blue = _colour(exponent)
    return _DARK if 0.299 * red + 0.587 * green + 0.114 * blue > _BRIGHT else _COLOURS["light"]


def _colored_cell(exponent: int, width: int) -> str:
    text = f"{1 << exponent if exponent else '.':^{width}}"
    back = ";".join(map(str, _colour(exponent)))
    front = ";".join(map(str, _ink(exponent) if exponent else _BOARD))
    return f"\x1b[48;2;{back}m\x1b[38;2;{front}m{text}\x1b[0m"


@lru_cache(maxsize=128)
def _tile(exponent: int) -> Image:
    """One tile with its number, shape (80, 80, 3); not to be written to."""
    image = np.empty((_TILE, _TILE, 3), np.uint8)
    image[:] = _BOARD
    image[_rounded()] = _colour(exponent)
    if exponent:
        number = str(1 << exponent)
        text = number if len(number) <= _LONGEST_NUMBER else f"2^{exponent}"
        _write(image[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN], text, _ink(exponent), largest=_LARGEST_SCALE)
    image.flags.writeable = False
    return image


def _rounded() -> NDArray[np.bool_]:
    """Which pixels of a tile are inside its rounded corners, shape (80, 80)."""
    # How far each pixel's centre lies beyond the centres of the corners' circles, along one axis.
    places = np.arange(_TILE) + 0.5
    beyond = np.maximum(0.0, np.maximum(_RADIUS - places, places - (_TILE - _RADIUS)))
    inside: NDArray[np.bool_] = beyond[:, None] ** 2 + beyond[None, :] ** 2 <= _RADIUS**2
    return inside


def _write(area: Image, text: str, colour: Colour, *, largest: int) -> None:
    """Write a text into the middle of an area, as large as it fits, at most ``largest`` pixels a dot."""
    dots = np.concatenate([_glyph(letter) for letter in text], axis=1)[:, :-1]
    height, width = area.shape[:2]
    scale = max(1, min(largest, height // dots.shape[0], width // dots.shape[1]))
    pixels = dots.repeat(scale, axis=0).repeat(scale, axis=1)[:height, :width]
    top, left = (height - pixels.shape[0]) // 2, (width - pixels.shape[1]) // 2
    area[top : top + pixels.shape[0], left : left + pixels.shape[1]][pixels] = colour


def _glyph(letter: str) -> NDArray[np.bool_]:
    """A letter's dots and the blank column after it, shape (7, 6)."""
    rows = [[dot == "1" for dot in row + "0"] for row in _FONT[letter].split()]
    return np.array(rows)
