from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_gym.envs.game_2048 import expectimax
from art_gym.envs.game_2048.board import ACTIONS, Rules, merge
from art_gym.envs.game_2048.chance import Chance
from art_gym.envs.game_2048.expectimax import Expectimax
from art_gym.envs.game_2048.line_values import Weights, line_value, row_values

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="needs numba")

RULES = Rules.of(4)
cells = st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, 2, 3, 4, 5, 7, 9]), min_size=16, max_size=16)


def play(search: Expectimax, key: int, rules: Rules = RULES, moves: int = 10**6) -> tuple[int, int, int]:
    """A game's score, its best tile and the number of its moves."""
    chance = Chance(key)
    board, score = rules.start(chance.opening()), 0
    for move in range(moves):
        if not any(rules.legal(board)):
            return score, 2 ** rules.best(board), move
        after, points = rules.slide(board, search(rules, board))
        assert after != board
        score += points
        board = rules.spawn(after, chance.draw(move + 2, after))
    return score, 2 ** rules.best(board), moves


def obvious_value(board: int, depth: int, weights: Weights) -> float:
    """The best move's value by the definition: no tables, no memory, no cutoff."""
    best = 0.0
    for action in range(4):
        after, _ = RULES.slide(board, action)
        if after != board:
            best = max(best, obvious_average(after, depth - 1, weights))
    return best


def obvious_average(board: int, depth: int, weights: Weights) -> float:
    exponents = RULES.exponents(board)
    if depth == 0:
        lines = [exponents[4 * i : 4 * i + 4] for i in range(4)] + [exponents[i::4] for i in range(4)]
        return sum(line_value(line, weights) for line in lines)
    empty = [cell for cell in range(16) if not exponents[cell]]
    total = 0.0
    for cell in empty:
        total += 0.9 * obvious_value(RULES.place(board, cell, 1), depth, weights)
        total += 0.1 * obvious_value(RULES.place(board, cell, 2), depth, weights)
    return total / len(empty)


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_numba), False])
@settings(max_examples=15, deadline=None)
@given(cells=cells)
def test_values_are_what_expectimax_means(cells: list[int], compiled: bool) -> None:
    board = RULES.pack(cells)
    search = Expectimax(2, cutoff=0, compiled=compiled)
    for action, value in enumerate(search.values(RULES, board)):
        after, _ = RULES.slide(board, action)
        if after == board:
            assert value == -np.inf
        else:
            assert value == pytest.approx(obvious_average(after, 1, search.weights), rel=1e-6)


@needs_numba
@settings(max_examples=25, deadline=None)
@given(cells=cells, cutoff=st.sampled_from([0.0, 0.004, 0.05]))
def test_compiled_and_python_search_are_the_same(cells: list[int], cutoff: float) -> None:
    board = RULES.pack(cells)
    if not any(RULES.legal(board)):
        return
    depth = 3 if cells.count(0) < 6 else 2
    one = Expectimax(depth, cutoff=cutoff, compiled=True)
    other = Expectimax(depth, cutoff=cutoff, compiled=False)
    assert one.values(RULES, board) == pytest.approx(other.values(RULES, board), rel=1e-9)
    assert one(RULES, board) == other(RULES, board)


@needs_numba
def test_compiled_and_python_search_play_the_same_game() -> None:
    games = [play(Expectimax(2, compiled=compiled), key=3, moves=250) for compiled in (True, False)]
    assert games[0] == games[1]


@needs_numba
def test_what_was_searched_before_does_not_matter() -> None:
    search, other = Expectimax(3), Expectimax(3)
    play(search, key=1, moves=300)
    board = RULES.pack((1, 2, 3, 1, 0, 0, 4, 2, 0, 0, 1, 5, 0, 1, 2, 6))
    assert search.values(RULES, board) == other.values(RULES, board)


@needs_numba
def test_the_tables_of_rows_are_the_slow_ones() -> None:
    from art_gym.envs.game_2048 import search_kernels as kernels

    left, right = kernels.slides()
    values = row_values(Weights())
    rng = np.random.default_rng(0)
    for row in rng.integers(0, 1 << 16, 2_000).tolist():
        line = [row >> shift & 15 for shift in (0, 4, 8, 12)]
        back = line[::-1]
        assert left[row] == kernels.pack(merge(line)[0])
        assert right[row] == kernels.pack(merge(back)[0][::-1])
        assert values[row] == pytest.approx(line_value(line, Weights()), rel=1e-6)
        assert line_value(line, Weights()) == pytest.approx(line_value(back, Weights()))


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ((1, 2, 0, 0), (1, 2, 1, 0)),  # room
        ((3, 3, 1, 2), (3, 1, 3, 2)),  # a merge
        ((5, 4, 3, 1), (5, 1, 4, 3)),  # order
        ((6, 0, 0, 0), (5, 5, 0, 0)),  # few large tiles
    ],
)
def test_what_makes_a_line_good(better: tuple[int, ...], worse: tuple[int, ...]) -> None:
    assert line_value(better, Weights()) > line_value(worse, Weights())


def test_a_game_that_goes_on_is_worth_more_than_one_that_is_over() -> None:
    rows = np.arange(1 << 16)
    usual = np.max([rows >> shift & 15 for shift in (0, 4, 8, 12)], axis=0) <= 11
    assert row_values(Weights())[usual].min() > 0
    assert line_value((15, 14, 13, 12), Weights()) > 0


@needs_numba
def test_tiles_beyond_a_nibble_are_searched_as_the_largest_and_legally() -> None:
    # 65,536 and 32,768 look alike to the search: left and right merge them, which the rules forbid.
    board = RULES.pack((16, 15, 1, 2, 1, 2, 3, 4, 2, 1, 4, 3, 1, 2, 3, 3))
    search = Expectimax(2)
    assert [value > -np.inf for value in search.values(RULES, board)] == list(RULES.legal(board))
    assert RULES.legal(board)[search(RULES, board)]
    only_up_down = RULES.pack((16, 15, 1, 2, 1, 2, 3, 4, 2, 1, 4, 3, 2, 3, 1, 4))
    assert ACTIONS[search(RULES, only_up_down)] in ("up", "down")


@needs_numba
def test_it_reaches_2048() -> None:
    games = [play(Expectimax(3), key) for key in range(4)]
    assert all(best >= 2048 for _, best, _ in games)
    assert np.mean([score for score, _, _ in games]) > 30_000


@needs_numba
def test_deeper_is_better() -> None:
    means = [np.mean([play(Expectimax(depth), key)[0] for key in range(12)]) for depth in (1, 2)]
    assert means[1] > 3 * means[0]


@pytest.mark.parametrize("size", [3, 5, 8])
def test_other_sizes_are_searched_in_python(size: int) -> None:
    rules = Rules.of(size)
    score, _, moves = play(Expectimax(2, cutoff=0.05), key=0, rules=rules, moves=30)
    assert moves == 30
    assert score > 0


@needs_numba
def test_a_compiled_search_refuses_other_sizes() -> None:
    rules = Rules.of(5)
    with pytest.raises(ValueError, match="boards of size 4, not 5"):
        Expectimax(2, compiled=True).values(rules, rules.start(Chance(0).opening()))


def test_a_time_budget_is_kept_and_used() -> None:
    board = RULES.pack((1, 2, 3, 1, 0, 0, 4, 2, 0, 0, 1, 5, 0, 1, 2, 6))
    Expectimax(3).values(RULES, board)  # what is compiled once is not the move's time
    deep, timed = Expectimax(3), Expectimax(3, seconds=10)
    assert timed.values(RULES, board) == deep.values(RULES, board)
    started = time.perf_counter()
    Expectimax(16, seconds=0.05, cutoff=0).values(RULES, board)
    assert time.perf_counter() - started < 2
    hasty = Expectimax(16, seconds=1e-9).values(RULES, board)
    assert hasty == Expectimax(1).values(RULES, board)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"depth": 0}, "from 1 to 16, not 0"),
        ({"depth": 17}, "from 1 to 16, not 17"),
        ({"seconds": 0}, "more than 0"),
        ({"cutoff": 1.5}, "from 0 to 1, not 1.5"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(arguments: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Expectimax(**arguments)  # type: ignore[arg-type]


def test_without_numba_it_searches_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expectimax, "find_spec", lambda name: None)
    assert play(Expectimax(1), key=0, moves=20)[2] == 20
    with pytest.raises(ModuleNotFoundError, match=r'pip install "art-gym\[fast\]"'):
        Expectimax(2, compiled=True)


def test_numba_is_not_imported_before_a_search() -> None:
    program = (
        "import sys, art_gym.envs.game_2048.env, art_gym.envs.game_2048.expectimax as e; e.Expectimax(2);"
        "print('numba' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


@needs_numba
def test_the_compiled_search_is_taken_from_disk_by_the_next_process(tmp_path: Path) -> None:
    # Numba crashes where it loads functions that call each other in a circle; so these must not.
    program = (
        "from art_gym.envs.game_2048.board import Rules\n"
        "from art_gym.envs.game_2048.expectimax import Expectimax\n"
        "rules = Rules.of(4)\n"
        "print(Expectimax(3).values(rules, rules.pack((1, 2, 3, 1, 0, 0, 4, 2, 0, 0, 1, 5, 0, 1, 2, 6))))\n"
        "from art_gym.envs.game_2048 import search_kernels as k\n"
        "print(sum(k.value_moves.stats.cache_hits.values()))\n"
    )
    Expectimax(3).values(RULES, RULES.start(Chance(0).opening()))
    outputs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert outputs[0].split("\n")[0] == outputs[1].split("\n")[0]
    assert outputs[1].split("\n")[1] == "1"
