"""The rules of 2048 against a slow and obvious implementation."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from art_gym.envs.game_2048.board import ACTIONS, FOUR, SIZES, Rules


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
    turned = np.rot90(grid, {"left": 0, "up": 1, "right": 2, "down": 3}[ACTIONS[action]])
    lines = [slow_line(list(row)) for row in turned]
    after = np.array([line for line, _ in lines], dtype=object)
    return (
        np.rot90(after, -{"left": 0, "up": 1, "right": 2, "down": 3}[ACTIONS[action]]),
        sum(points for _, points in lines),
    )


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
def test_boards_of_every_size_slide_as_the_obvious_implementation_says(
    case: tuple[Rules, int], action: int
) -> None:
    rules, board = case
    expected, points = slow_slide(tiles_of(rules, board), action)
    after, gained = rules.slide(board, action)
    assert (tiles_of(rules, after) == expected).all()
    assert gained == points
    assert tiles_of(rules, after).sum() == tiles_of(rules, board).sum()


@given(boards())
def test_a_move_is_legal_exactly_when_it_changes_the_board(case: tuple[Rules, int]) -> None:
    rules, board = case
    assert rules.legal(board) == tuple(rules.slide(board, action)[0] != board for action in range(4))


@given(boards())
def test_exponents_pack_and_counts_agree(case: tuple[Rules, int]) -> None:
    rules, board = case
    exponents = rules.exponents(board)
    assert rules.pack(exponents) == board
    assert rules.empties(board) == exponents.count(0)
    assert rules.best(board) == max(exponents)


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


def test_the_cell_of_a_new_tile_is_uniform_and_one_tile_in_ten_is_a_4() -> None:
    rules = Rules.of(4)
    board = rules.pack([1, 2, 3, 4, 0, 0, 1, 1, 2, 2, 0, 0, 1, 5, 0, 0])
    rng = np.random.default_rng(0)
    draws = rng.integers(0, 2**64, 30_000, dtype=np.uint64).tolist()
    seen = Counter((rules.spawn(board, draw) ^ board) for draw in draws)
    cells = Counter[int]()
    for difference, times in seen.items():
        cells[(difference.bit_length() - 1) // 8] += times
    assert sorted(cells) == [4, 5, 10, 11, 14, 15]
    chi_squared = sum((times - 5_000) ** 2 / 5_000 for times in cells.values())
    assert chi_squared < 20.5  # 5 degrees of freedom: more happens once in a thousand
    assert abs(FOUR / 2**32 - 0.1) < 1e-9
    fours = sum(times for difference, times in seen.items() if difference.bit_length() % 8 == 2)
    assert abs(fours - 3_000) < 4 * (30_000 * 0.1 * 0.9) ** 0.5


@pytest.mark.parametrize("count", [1, 2, 3, 7, 15, 16, 64])
def test_each_empty_cell_owns_its_share_of_the_draws(count: int) -> None:
    rules = Rules.of(8)
    board = rules.pack([0] * count + [1] * (64 - count))
    edges = [-(-cell * 2**32 // count) for cell in range(count + 1)]  # where the next cell's share begins
    for cell in range(count):
        for upper in (edges[cell], edges[cell + 1] - 1):
            assert rules.spawn(board, upper << 32 | 2**32 - 1) == board | 1 << 8 * cell


def test_tiles_beyond_65536_merge_like_any_other() -> None:
    rules = Rules.of(4)
    board = rules.pack([16, 16, 0, 0] + [0] * 12)
    after, points = rules.slide(board, ACTIONS.index("left"))
    assert rules.exponents(after)[:2] == (17, 0)
    assert points == 131_072
    board = rules.pack([17, 15, 15, 16] + [1] + [0] * 11)
    after, points = rules.slide(board, ACTIONS.index("right"))
    assert rules.exponents(after)[:4] == (0, 17, 16, 16)
    assert points == 65_536
    large = Rules.of(8)
    after, points = large.slide(large.pack([64, 64] + [0] * 62), ACTIONS.index("left"))
    assert large.best(after) == 65
    assert points == 2**65


def test_a_tile_merges_once_a_move() -> None:
    rules = Rules.of(4)
    after, points = rules.slide(rules.pack([1, 1, 1, 1] + [2, 1, 1, 0] + [0] * 8), ACTIONS.index("left"))
    assert rules.exponents(after)[:8] == (2, 2, 0, 0, 2, 2, 0, 0)
    assert points == 4 + 4 + 4


def test_the_game_goes_on_while_a_full_board_can_merge() -> None:
    rules = Rules.of(3)
    assert rules.legal(rules.pack([1, 2, 1, 2, 1, 2, 1, 2, 1])) == (False,) * 4
    assert rules.legal(rules.pack([1, 2, 1, 2, 1, 2, 3, 3, 1])) == (False, True, False, True)
    assert rules.legal(rules.pack([1, 2, 1, 2, 1, 1, 1, 2, 3])) == (True, True, True, True)


def test_a_game_begins_with_two_tiles_in_different_cells() -> None:
    rules = Rules.of(3)
    for seed in range(200):
        draws = np.random.default_rng(seed).integers(0, 2**64, 2, dtype=np.uint64).tolist()
        exponents = rules.exponents(rules.start(iter(draws)))
        assert exponents.count(0) == 7
        assert set(exponents) <= {0, 1, 2}


def test_place_puts_a_tile_by_hand() -> None:
    rules = Rules.of(3)
    board = rules.place(0, 5, 2)
    assert rules.exponents(board) == (0, 0, 0, 0, 0, 2, 0, 0, 0)
    with pytest.raises(ValueError, match=r"cell 5 \(row 1, column 2\) is taken"):
        rules.place(board, 5, 1)
    with pytest.raises(ValueError, match="from 0 to 8, not 9"):
        rules.place(board, 9, 1)
    with pytest.raises(ValueError, match="at least 1"):
        rules.place(board, 0, 0)
    with pytest.raises(ValueError, match="not 127"):
        rules.place(board, 0, 127)


def test_what_is_no_board_is_refused() -> None:
    for size in (0, 2, 9, -4):
        with pytest.raises(ValueError, match=f"from 3 to 8, not {size}"):
            Rules.of(size)
    for nonsense in (4.0, "4", None, True):
        with pytest.raises(TypeError, match="must be an int"):
            Rules.of(nonsense)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="9 cells, not 8"):
        Rules.of(3).pack([0] * 8)
    with pytest.raises(ValueError, match="cell 3 must be from 0 to 126, not -1"):
        Rules.of(3).pack([0, 0, 0, -1, 0, 0, 0, 0, 0])


def test_one_instance_a_size_even_after_pickling() -> None:
    rules = Rules.of(5)
    assert pickle.loads(pickle.dumps(rules)) is rules
    assert copy.deepcopy(rules) is rules
    assert repr(rules) == "Rules.of(5)"


def test_tables_forget_rather_than_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art_gym.envs.game_2048.board._MOST_LINES", 10)
    rules = Rules(4)
    for line in itertools.product(range(3), repeat=4):
        after, _ = rules.slide(rules.pack([*line, *[0] * 12]), ACTIONS.index("left"))
        expected, _ = slow_line([2**exponent if exponent else 0 for exponent in line])
        assert [2**cell if cell else 0 for cell in rules.exponents(after)[:4]] == expected
    assert all(len(lines) <= 10 for lines, _, _ in rules._plans)
