from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from art_gym.envs.game_2048 import snake
from art_gym.envs.game_2048.board import ACTIONS, Rules
from art_gym.envs.game_2048.env import Game2048Env
from art_gym.envs.game_2048.players import BASELINES, cycle, expectimax, greedy_choice, random_legal

QUICK = [name for name in BASELINES if not name.startswith("expectimax")]


def begin(name: str, seed: int = 0, **arguments: Any) -> tuple[Game2048Env, Callable[[str], str]]:
    env = Game2048Env(**arguments)
    env.reset(seed=seed)
    return env, env.baselines[name](env, np.random.default_rng(seed))


def scores(name: str, games: int, **arguments: Any) -> np.ndarray:
    """Whole games on the test split."""
    found = []
    for seed in range(games):
        env, act = begin(name, seed, split="test", **arguments)
        info: dict[str, Any] = {}
        while "metrics" not in info:
            info = env.step(act(""))[4]
        found.append(info["metrics"]["score"])
    return np.array(found)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("size", [3, 4, 6])
def test_players_make_only_legal_moves_to_the_end(name: str, size: int) -> None:
    env, act = begin(name, board_size=size, max_turns=600)
    info: dict[str, Any] = {}
    while "metrics" not in info:
        reply = act("")
        assert reply in ACTIONS
        info = env.step(reply)[4]
    assert info["metrics"]["illegal_moves"] == info["metrics"]["invalid_actions"] == 0


@pytest.mark.parametrize(
    ("name", "size"), [("expectimax", 3), ("expectimax", 4), ("expectimax", 5), ("expectimax-deep", 4)]
)
def test_expectimax_plays_on_every_size(name: str, size: int) -> None:
    env, act = begin(name, board_size=size, max_turns=40)
    info: dict[str, Any] = {}
    while "metrics" not in info:
        info = env.step(act(""))[4]
    assert info["metrics"]["illegal_moves"] == 0
    assert info["metrics"]["moves"] == 40


@pytest.mark.parametrize("name", QUICK)
def test_players_repeat_themselves(name: str) -> None:
    assert (scores(name, 2) == scores(name, 2)).all()


def test_random_plays_each_legal_move_equally_often() -> None:
    env = Game2048Env()
    env.reset(seed=0)
    env.board = env.rules.pack((1,) + (0,) * 15)
    env.legal = env.rules.legal(env.board)
    act = random_legal(env, np.random.default_rng(0))
    replies = [act("") for _ in range(4_000)]
    assert set(replies) == {"right", "down"}
    assert abs(replies.count("right") - 2_000) < 150


def test_a_cycle_skips_what_is_illegal_and_goes_on_from_there() -> None:
    env = Game2048Env()
    env.reset(seed=0)
    act = cycle("left", "down", "right", "down")(env, np.random.default_rng(0))
    env.legal = (True,) * 4
    assert [act("") for _ in range(5)] == ["left", "down", "right", "down", "left"]
    env.legal = (True, True, False, True)
    assert [act("") for _ in range(3)] == ["right", "left", "right"]
    env.legal = (True, False, False, False)
    assert act("") == "up"  # no move of the cycle is legal


def test_greedy_takes_points_then_room() -> None:
    rules = Rules.of(4)
    row = (3, 3, 0, 0, 2, 2, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0)
    assert ACTIONS[greedy_choice(rules, rules.pack(row))] in ("left", "right")
    column = (3, 1, 0, 0, 3, 2, 0, 0) + (0,) * 8
    assert ACTIONS[greedy_choice(rules, rules.pack(column))] == "up"
    # Left and up both make 8 points; up makes them of four tiles and leaves more room.
    room = (2, 2, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 3, 0, 0, 0)
    points = {action: rules.slide(rules.pack(room), action)[1] for action in range(4)}
    assert points == {0: 8, 1: 16, 2: 8, 3: 16}
    assert ACTIONS[greedy_choice(rules, rules.pack(room))] == "right"


def test_the_players_order_is_what_it_is_known_to_be() -> None:
    names = ("random", "left-down", "left-down-right-down", "greedy")
    mean = {name: scores(name, 30).mean() for name in names}
    assert mean["random"] < mean["left-down"] < mean["left-down-right-down"]
    assert 900 < mean["random"] < 1_300
    assert 2 * mean["random"] < mean["greedy"]


def test_a_search_is_a_baseline_with_arguments() -> None:
    env, _ = begin("random")
    act = expectimax(1, cutoff=0.1)(env, np.random.default_rng(0))
    assert act("") in ACTIONS


def test_policies_of_the_trainer_find_the_players() -> None:
    env = gym.make("art/2048-v0").unwrapped
    assert isinstance(env, Game2048Env)
    assert list(env.baselines)[:3] == ["random", "left-down", "left-down-right-down"]
    assert env.baselines["random"] is random_legal


def test_the_snake_plays_better_than_any_cycle_and_keeps_its_best_tile_in_its_corner() -> None:
    found, corner = [], 0
    for seed in range(4):
        env, act = begin("snake", seed, split="test", max_turns=700)
        over = False
        while not over:
            _, _, terminated, truncated, _ = env.step(act(""))
            over = terminated or truncated
        found.append(env.score)
        corner += env.exponents[12] == max(env.exponents)
    assert np.mean(found) > 6_000
    assert corner >= 3


def test_the_snake_plays_boards_of_every_size() -> None:
    for size in (3, 5):
        env, act = begin("snake", 1, board_size=size, max_turns=40)
        for _ in range(20):
            assert "call" in env.step(act(""))[4]
        assert env.illegal_moves == 0


def test_the_snake_values_a_board_by_looking_at_every_tile_and_reply() -> None:
    rules = Rules.of(3)
    weights = [w for row in snake._weights(3) for w in row]
    assert weights[6:] == [1.0, 0.5, 0.25]  # the bottom row falls to the right, the next one back
    assert weights[3:6] == [1 / 32, 1 / 16, 1 / 8]

    def value(board: int) -> float:
        cells = rules.exponents(board)
        return sum(w * 2**e if e else 2.0 for w, e in zip(weights, cells, strict=True))

    def expected(board: int) -> float:
        places = [cell for cell, e in enumerate(rules.exponents(board)) if not e]
        boards = [rules.place(board, cell, 1) for cell in places]
        replies = [[rules.slide(b, a)[0] for a in range(4) if rules.slide(b, a)[0] != b] for b in boards]
        return float(np.mean([max(map(value, after)) if after else -1e9 for after in replies]))

    board = rules.pack([0, 1, 2, 0, 3, 1, 4, 2, 1])
    slides = {a: rules.slide(board, a)[0] for a in range(4) if rules.slide(board, a)[0] != board}
    best = max(slides, key=lambda action: expected(slides[action]))
    assert snake.snake_choice(rules, board) == best
    assert snake._Snake.of(3).expected(slides[best]) == pytest.approx(expected(slides[best]))
