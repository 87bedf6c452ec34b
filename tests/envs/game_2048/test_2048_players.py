"""Players of 2048 that use no model: cycles, greedy, the snake and expectimax."""

import subprocess
import sys
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_gym.envs.game_2048.env import Game2048Env
from art_gym.envs.game_2048.players import BASELINES, cycle, greedy_choice, random_legal
from art_gym.envs.game_2048.rules.board import ACTIONS, Rules, merge
from art_gym.envs.game_2048.rules.tile_rng import TileRng
from art_gym.envs.game_2048.search import expectimax, snake
from art_gym.envs.game_2048.search.expectimax import (
    CompiledSearch,
    Expectimax,
    PythonSearch,
    line_value,
    row_values,
)
from tests.envs.playing import last_info

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="needs numba")

QUICK = [name for name in BASELINES if not name.startswith("expectimax")]
RULES = Rules.of(4)
cells = st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, 2, 3, 4, 5, 7, 9]), min_size=16, max_size=16)


def scores(name: str, games: int, **arguments: Any) -> np.ndarray:
    """Whole games on the test split, without an illegal move."""
    metrics = [
        last_info(Game2048Env(**arguments), name, seed, split="test")["metrics"] for seed in range(games)
    ]
    assert not any(each["illegal_moves"] for each in metrics)
    return np.array([each["score"] for each in metrics])


SEARCHES = [("expectimax", 3), ("expectimax", 4), ("expectimax", 5), ("expectimax-deep", 4)]


@pytest.mark.parametrize(("name", "size"), [*product(QUICK, (3, 4, 6)), *SEARCHES])
def test_players_make_only_legal_moves_and_repeat_themselves(name: str, size: int) -> None:
    games, turns = (2, 300) if name in QUICK else (1, 40)
    one, again = (scores(name, games, board_size=size, max_turns=turns) for _ in range(2))
    assert (one == again).all()
    assert one.min() > 0


def test_random_plays_each_legal_move_equally_often() -> None:
    env = Game2048Env()
    env.reset(seed=0)
    env.legal = (False, True, True, False)
    act = random_legal(env, np.random.default_rng(0))
    replies = [act("") for _ in range(4_000)]
    assert set(replies) == {"right", "down"}
    assert abs(replies.count("right") - 2_000) < 150


def test_a_cycle_skips_what_is_illegal_and_continues_from_there() -> None:
    env = Game2048Env()
    env.reset(seed=0)
    act = cycle("left", "down", "right", "down")(env, np.random.default_rng(0))
    env.legal = (True,) * 4
    assert [act("") for _ in range(5)] == ["left", "down", "right", "down", "left"]
    env.legal = (True, True, False, True)
    assert [act("") for _ in range(3)] == ["right", "left", "right"]
    env.legal = (True, False, False, False)
    assert act("") == "up"  # no move of the cycle is legal


@pytest.mark.parametrize(
    ("board", "choice"),
    [
        ((3, 3, 0, 0, 2, 2, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0), "right"),
        ((3, 1, 0, 0, 3, 2, 0, 0) + (0,) * 8, "up"),
        # Left and up both make 8 points; up makes them of four tiles and leaves more room.
        ((2, 2, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 3, 0, 0, 0), "right"),
    ],
)
def test_greedy_takes_points_then_room(board: tuple[int, ...], choice: str) -> None:
    assert ACTIONS[greedy_choice(RULES, RULES.pack(board))] == choice


@pytest.mark.e2e
def test_the_players_order_is_what_it_is_known_to_be() -> None:
    names = ("random", "left-down", "left-down-right-down", "greedy")
    mean = {name: scores(name, 30).mean() for name in names}
    assert mean["random"] < mean["left-down"] < mean["left-down-right-down"]
    assert 900 < mean["random"] < 1_300
    assert 2 * mean["random"] < mean["greedy"]
    assert scores("snake", 4, max_turns=700).mean() > 6_000


def test_the_snake_values_a_board_by_looking_at_every_tile_and_reply() -> None:
    rules = Rules.of(3)
    # The bottom row falls to the right, the next one back.
    weights = [1 / 64, 1 / 128, 1 / 256, 1 / 32, 1 / 16, 1 / 8, 1.0, 0.5, 0.25]

    def value(board: int) -> float:
        exponents = rules.exponents(board)
        return sum(w * 2**e if e else 2.0 for w, e in zip(weights, exponents, strict=True))

    def expected(board: int) -> float:
        places = [cell for cell, e in enumerate(rules.exponents(board)) if not e]
        boards = [rules.place(board, cell, 1) for cell in places]
        replies = [[rules.slide(b, a)[0] for a in range(4) if rules.slide(b, a)[0] != b] for b in boards]
        return float(np.mean([max(map(value, after)) if after else -1e9 for after in replies]))

    board = rules.pack([0, 1, 2, 0, 3, 1, 4, 2, 1])
    slides = {a: rules.slide(board, a)[0] for a in range(4) if rules.slide(board, a)[0] != board}
    best = max(slides, key=lambda action: expected(slides[action]))
    assert snake.snake_choice(rules, board) == best
    assert snake.expected(rules, slides[best]) == pytest.approx(expected(slides[best]))


def play(search: Expectimax, key: int, rules: Rules = RULES, moves: int = 10**6) -> tuple[int, int, int]:
    """A game's score, its best tile and the number of its moves."""
    chance = TileRng(key)
    board, score = rules.start(chance.opening()), 0
    for move in range(moves):
        if not any(rules.legal(board)):
            return score, 2 ** rules.best(board), move
        after, points = rules.slide(board, search(rules, board))
        assert after != board
        score += points
        board = rules.spawn(after, chance.draw(move + 2, after))
    return score, 2 ** rules.best(board), moves


def obvious_value(board: int, depth: int) -> float:
    """The best move's value by the definition: no tables, no memory, no cutoff."""
    afters = [RULES.slide(board, action)[0] for action in range(4)]
    return max((obvious_average(after, depth - 1) for after in afters if after != board), default=0.0)


def obvious_average(board: int, depth: int) -> float:
    exponents = RULES.exponents(board)
    if depth == 0:
        lines = [exponents[4 * i : 4 * i + 4] for i in range(4)] + [exponents[i::4] for i in range(4)]
        return sum(line_value(line) for line in lines)
    empty = [cell for cell in range(16) if not exponents[cell]]
    tiles = [(cell, tile, chance) for cell in empty for tile, chance in ((1, 0.9), (2, 0.1))]
    total = sum(chance * obvious_value(RULES.place(board, cell, tile), depth) for cell, tile, chance in tiles)
    return total / len(empty)


@pytest.mark.parametrize("kind", [pytest.param(CompiledSearch, marks=needs_numba), PythonSearch])
@settings(max_examples=15)
@given(cells=cells)
def test_values_are_what_expectimax_means(
    cells: list[int], kind: type[CompiledSearch] | type[PythonSearch]
) -> None:
    board = RULES.pack(cells)
    for action, value in enumerate(kind(RULES, 0.0).values(board, 2)):
        after, _ = RULES.slide(board, action)
        assert value == pytest.approx(obvious_average(after, 1) if after != board else 0.0, rel=1e-6)


@needs_numba
@settings(max_examples=25)
@given(cells=cells, cutoff=st.sampled_from([0.0, 0.004, 0.05]))
def test_compiled_and_python_search_are_the_same(cells: list[int], cutoff: float) -> None:
    board, depth = RULES.pack(cells), 3 if cells.count(0) < 6 else 2
    one, other = (kind(RULES, cutoff).values(board, depth) for kind in (CompiledSearch, PythonSearch))
    assert one == pytest.approx(other, rel=1e-9)


@needs_numba
def test_what_was_searched_before_does_not_matter() -> None:
    search, other = Expectimax(3), Expectimax(3)
    play(search, key=1, moves=300)
    board = RULES.pack((1, 2, 3, 1, 0, 0, 4, 2, 0, 0, 1, 5, 0, 1, 2, 6))
    assert search.values(RULES, board) == other.values(RULES, board)


@needs_numba
def test_the_tables_of_rows_are_the_slow_ones() -> None:
    from art_gym.envs.game_2048.search import kernels

    left, right = kernels.slides()
    for row in np.random.default_rng(0).integers(0, 1 << 16, 2_000).tolist():
        line = [row >> shift & 15 for shift in (0, 4, 8, 12)]
        back = line[::-1]
        assert left[row] == kernels.pack(merge(line)[0])
        assert right[row] == kernels.pack(merge(back)[0][::-1])
        assert row_values()[row] == pytest.approx(line_value(line), rel=1e-6)
        assert line_value(line) == pytest.approx(line_value(back))


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
    assert line_value(better) > line_value(worse)


def test_a_game_that_continues_is_worth_more_than_one_that_is_over() -> None:
    rows = np.arange(1 << 16)
    usual = np.max([rows >> shift & 15 for shift in (0, 4, 8, 12)], axis=0) <= 11
    assert row_values()[usual].min() > 0
    assert line_value((15, 14, 13, 12)) > 0


@needs_numba
def test_tiles_beyond_a_nibble_are_searched_as_the_largest_and_legally() -> None:
    # 65,536 and 32,768 look alike to the search: left and right merge them, which the rules forbid.
    for rest in ((1, 2, 1, 2, 3, 4, 2, 1, 4, 3, 1, 2, 3, 3), (1, 2, 1, 2, 3, 4, 2, 1, 4, 3, 2, 3, 1, 4)):
        board = RULES.pack((16, 15, *rest))
        search = Expectimax(2)
        assert [value > -np.inf for value in search.values(RULES, board)] == list(RULES.legal(board))
        assert RULES.legal(board)[search(RULES, board)]


@needs_numba
@pytest.mark.e2e
def test_it_reaches_2048_and_deeper_is_better() -> None:
    games = [play(Expectimax(3), key) for key in range(4)]
    assert all(best >= 2048 for _, best, _ in games)
    assert np.mean([score for score, _, _ in games]) > 30_000
    means = [np.mean([play(Expectimax(depth), key)[0] for key in range(12)]) for depth in (1, 2)]
    assert means[1] > 3 * means[0]


@pytest.mark.parametrize("arguments", [{"depth": 0}, {"depth": 17}], ids=str)
def test_wrong_arguments_are_named(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        Expectimax(**arguments)  # type: ignore[arg-type]


def test_without_numba_it_searches_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expectimax, "find_spec", lambda name: None)
    search = Expectimax(1)
    assert play(search, key=0, moves=20)[2] == 20
    assert isinstance(search._search, PythonSearch)


@needs_numba
@pytest.mark.e2e
def test_the_compiled_search_is_taken_from_disk_by_the_next_process(tmp_path: Path) -> None:
    # Numba crashes when it loads functions that call each other in a circle; so these must not.
    program = (
        "from art_gym.envs.game_2048.rules.board import Rules\n"
        "from art_gym.envs.game_2048.search.expectimax import Expectimax\n"
        "rules = Rules.of(4)\n"
        "print(Expectimax(3).values(rules, rules.pack((1, 2, 3, 1, 0, 0, 4, 2, 0, 0, 1, 5, 0, 1, 2, 6))))\n"
        "from art_gym.envs.game_2048.search import kernels as k\n"
        "print(sum(k.value_moves.stats.cache_hits.values()))\n"
    )
    Expectimax(3).values(RULES, RULES.start(TileRng(0).opening()))
    outputs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert outputs[0].split("\n")[0] == outputs[1].split("\n")[0]
    assert outputs[1].split("\n")[1] == "1"
