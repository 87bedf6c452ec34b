"""The rules of 2048 against a slow and obvious implementation, and the random tiles."""

import copy
import itertools
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from art_gym.envs.game_2048.rules.board import ACTIONS, FOUR, SIZES, Rules
from art_gym.envs.game_2048.rules.tile_rng import SPLITS, TileRng, draw_key, fold


def slow_line(tiles: Sequence[int]) -> tuple[list[int], int]:
    """Slide tiles (their values, 0 for an empty cell) to the front, as one would say it."""
    left = [tile for tile in tiles if tile]
    after, points, at = [], 0, 0
    while at < len(left):
        if at + 1 < len(left) and left[at] == left[at + 1]:
            after.append(2 * left[at])
            points += 2 * left[at]
            at += 2
        else:
            after.append(left[at])
            at += 1
    return after + [0] * (len(tiles) - len(after)), points


def slow_slide(grid: NDArray[np.object_], action: int) -> tuple[NDArray[np.object_], int]:
    """Turn the board until the move goes to the left, slide every row, turn it back."""
    turns = {"left": 0, "up": 1, "right": 2, "down": 3}[ACTIONS[action]]
    lines = [slow_line(list(row)) for row in np.rot90(grid, turns)]
    after = np.array([line for line, _ in lines], dtype=object)
    return np.rot90(after, -turns), sum(points for _, points in lines)


def tiles_of(rules: Rules, board: int) -> NDArray[np.object_]:
    values = [2**exponent if exponent else 0 for exponent in rules.exponents(board)]
    return np.array(values, dtype=object).reshape(rules.size, rules.size)


@st.composite
def boards(draw: st.DrawFn) -> tuple[Rules, int]:
    """A board of any size, often with few kinds of tiles so that many merge, sometimes full."""
    size = draw(st.sampled_from(SIZES))
    largest = draw(st.sampled_from([1, 2, 4, size * size]))
    smallest = draw(st.sampled_from([0, 0, 1]))
    cells = st.lists(st.integers(smallest, largest), min_size=size * size, max_size=size * size)
    rules = Rules.of(size)
    return rules, rules.pack(draw(cells))


@pytest.mark.parametrize("action", range(4), ids=ACTIONS)
def test_every_one_of_the_65536_rows_slides_as_the_obvious_implementation_says(action: int) -> None:
    rules = Rules(4)  # not the shared instance: 65,536 lines would stay in its tables
    backwards = ACTIONS[action] in ("right", "down")
    upright = ACTIONS[action] in ("up", "down")
    spread = [[32 * i for i in range(4)], [8 * i for i in range(4)]]
    for number, line in enumerate(itertools.product(range(16), repeat=4)):
        tiles = [2**exponent if exponent else 0 for exponent in line]
        expected, points = slow_line(tiles[::-1] if backwards else tiles)
        expected = expected[::-1] if backwards else expected
        along, across = spread if upright else spread[::-1]
        place = along, across[number % 4]  # in each of the four rows or columns in turn
        board = sum(exponent << shift + place[1] for exponent, shift in zip(line, place[0], strict=True))
        after, gained = rules.slide(board, action)
        assert gained == points
        cells = [after >> shift + place[1] & 0xFF for shift in place[0]]
        assert [2**cell if cell else 0 for cell in cells] == expected
        assert rules.legal(board)[action] == (tiles != expected)


@given(boards(), st.integers(0, 3))
def test_boards_of_every_size_follow_the_obvious_implementation(case: tuple[Rules, int], action: int) -> None:
    rules, board = case
    expected, points = slow_slide(tiles_of(rules, board), action)
    after, gained = rules.slide(board, action)
    assert (tiles_of(rules, after) == expected).all()
    assert gained == points
    assert rules.legal(board) == tuple(rules.slide(board, each)[0] != board for each in range(4))
    exponents = rules.exponents(board)
    assert rules.pack(exponents) == board
    assert (rules.empties(board), rules.best(board)) == (exponents.count(0), max(exponents))


@given(boards(), st.integers(0, 2**64 - 1))
def test_a_new_tile_is_a_2_or_a_4_in_an_empty_cell(case: tuple[Rules, int], draw: int) -> None:
    rules, board = case
    if not rules.empties(board):
        with pytest.raises(ValueError, match="no empty cell"):
            rules.spawn(board, draw)
        return
    before, after = rules.exponents(board), rules.exponents(rules.spawn(board, draw))
    changed = [cell for cell in range(len(before)) if before[cell] != after[cell]]
    assert len(changed) == 1
    assert before[changed[0]] == 0
    assert after[changed[0]] == (2 if draw % 2**32 < FOUR else 1)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 15, 16, 64])
def test_each_empty_cell_owns_its_share_of_the_draws_and_a_tenth_are_4(count: int) -> None:
    rules = Rules.of(8)
    board = rules.pack([0] * count + [1] * (64 - count))
    edges = [-(-cell * 2**32 // count) for cell in range(count + 1)]  # the next cell's share begins here
    for cell in range(count):
        for upper in (edges[cell], edges[cell + 1] - 1):
            assert rules.spawn(board, upper << 32 | 2**32 - 1) == board | 1 << 8 * cell
    assert abs(FOUR / 2**32 - 0.1) < 1e-9


def test_place_puts_a_tile_by_hand() -> None:
    rules = Rules.of(3)
    board = rules.place(0, 5, 2)
    assert rules.exponents(board) == (0, 0, 0, 0, 0, 2, 0, 0, 0)
    for cell, exponent, words in (
        (5, 1, "taken"),
        (9, 1, "not 9"),
        (0, 0, "at least 1"),
        (0, 127, "not 127"),
    ):
        with pytest.raises(ValueError, match=words):
            rules.place(board, cell, exponent)


@pytest.mark.parametrize(
    ("size", "error"),
    [
        *((size, ValueError) for size in (0, 2, 9, -4)),
        *((size, TypeError) for size in (4.0, "4", None, True)),
    ],
)
def test_what_is_no_size_is_refused(size: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="from 3 to 8"):
        Rules.of(size)


def test_what_is_no_board_is_refused() -> None:
    for cells, words in (([0] * 8, "9 cells, not 8"), ([0, 0, 0, -1, 0, 0, 0, 0, 0], "cell 3")):
        with pytest.raises(ValueError, match=words):
            Rules.of(3).pack(cells)


def test_one_instance_a_size_even_after_pickling() -> None:
    rules = Rules.of(5)
    assert pickle.loads(pickle.dumps(rules)) is copy.deepcopy(rules) is rules


def test_tables_forget_rather_than_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art_gym.envs.game_2048.rules.board._MOST_LINES", 10)
    rules = Rules(4)
    for line in itertools.product(range(3), repeat=4):
        after, _ = rules.slide(rules.pack([*line, *[0] * 12]), ACTIONS.index("left"))
        expected, _ = slow_line([2**exponent if exponent else 0 for exponent in line])
        assert [2**cell if cell else 0 for cell in rules.exponents(after)[:4]] == expected
    assert all(len(lines) <= 10 for lines, _, _ in rules._plans)


def test_the_stream_is_splitmix64() -> None:
    # The values that the generator's published C code gives for the seed 1234567.
    known = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [TileRng(1234567).draw(count, 0) for count in range(5)] == known


def test_shared_chance_depends_on_the_count_alone_and_other_chance_on_the_board_too() -> None:
    shared, own = TileRng(99), TileRng(99, shared=False)
    assert shared.draw(7, 0) == shared.draw(7, 12345)
    assert len({shared.draw(7, 0), shared.draw(8, 0), TileRng(100).draw(7, 0)}) == 3
    assert own.draw(7, 5) == TileRng(99, shared=False).draw(7, 5)
    assert len({own.draw(7, 5), own.draw(7, 6), own.draw(8, 5)}) == 3
    for size in SIZES:  # boards that differ in their highest cells alone
        tops = [exponent << 8 * (size * size - 1) for exponent in (1, 2, 3)]
        assert len({own.draw(7, board) for board in tops}) == 3
    assert list(shared.opening()) == [shared.draw(0, 0), shared.draw(1, 0)] == list(own.opening())


@pytest.mark.parametrize("shared", [True, False])
def test_bits_are_balanced_and_do_not_follow_the_count(shared: bool) -> None:
    chance = TileRng(2**63 + 12345, shared)
    draws = np.array([chance.draw(count, 3 << 96) for count in range(4_000)], np.uint64)
    bits = (draws[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(bits.mean(0) - 0.5).max() < 4.5 * 0.5 / 4_000**0.5
    flips = (bits[1:] != bits[:-1]).mean(0)
    assert np.abs(flips - 0.5).max() < 4.5 * 0.5 / 4_000**0.5


def test_fold_takes_the_board_word_by_word() -> None:
    assert fold(17, 0) == 17
    assert fold(17, 5 | 9 << 64) == fold(fold(17, 5), 9)
    assert fold(17, 5) != fold(17, 5 << 64)


def test_no_key_is_in_two_splits() -> None:
    keys = {split: {draw_key(np.random.default_rng(n), split) for n in range(500)} for split in SPLITS}
    assert [{key & 3 for key in keys[split]} for split in SPLITS] == [{0}, {1}, {2}]
    assert all(len(found) == 500 for found in keys.values())
