from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from art_gym.envs.game_2048.board import ACTIONS
from art_gym.envs.game_2048.env import Game2048Env
from art_gym.envs.game_2048.rewards import REWARDS, score_terms, shaped_terms, smoothness, target_terms

BOARD = (0, 0, 1, 2, 0, 1, 3, 4, 1, 2, 4, 6, 2, 4, 5, 7)


def test_score_pays_the_points() -> None:
    assert score_terms(36) == {"points": 36.0}


def test_shaped_pays_by_the_classic_recipe() -> None:
    terms = shaped_terms(36, BOARD, 4)
    assert terms["points"] == pytest.approx(0.36)
    assert terms["empty_cells"] == pytest.approx(0.03)
    assert terms["best_tile"] == pytest.approx(0.7)
    across = (1) + (2 + 1) + (1 + 2 + 2) + (2 + 1 + 2)
    down = (1) + (1 + 2) + (2 + 1 + 1) + (2 + 2 + 1)
    assert terms["smoothness"] == pytest.approx(-0.05 * (across + down) / 24)


@pytest.mark.parametrize("size", [3, 4, 8])
def test_smoothness_is_0_where_all_tiles_are_alike_and_worst_on_a_chessboard(size: int) -> None:
    assert smoothness([3] * size * size, size) == 0
    assert smoothness([0] * (size * size - 1) + [9], size) == 0
    chess = [1 + 4 * ((cell // size + cell % size) % 2) for cell in range(size * size)]
    assert smoothness(chess, size) == -4


def test_smoothness_leaves_empty_cells_out() -> None:
    assert smoothness((1, 0, 9) + (0,) * 6, 3) == 0
    assert smoothness((1, 3, 0) + (0,) * 6, 3) == pytest.approx(-2 / 12)


def test_target_pays_2_or_the_two_logarithms() -> None:
    assert target_terms(BOARD, 4, 128, reached=True) == {"target": 2.0}
    terms = target_terms(BOARD, 4, 2048, reached=False)
    total = sum(2**exponent for exponent in BOARD if exponent)
    assert terms["best_tile"] == pytest.approx(6 / 10)
    assert terms["total"] == pytest.approx(0.2 * (math.log2(total) - 1) / (math.log2(2048 * 16) - 1))


@pytest.mark.parametrize("size", [3, 4, 5])
def test_no_board_without_the_target_pays_as_much_as_reaching_it(size: int) -> None:
    almost = target_terms([10] * size * size, size, 2048, reached=False)
    assert 1 < sum(almost.values()) < 1.2
    assert sum(target_terms([1] + [0] * (size * size - 1), size, 2048, reached=False).values()) == 0


@pytest.mark.parametrize(("reward", "cost"), [("score", 0.0), ("shaped", 0.1), ("target", 1.0)])
def test_an_illegal_move_pays_nothing_and_costs(reward: str, cost: float) -> None:
    env = Game2048Env(reward=reward)
    env.reset(seed=0)
    env.board = env.rules.pack((1, 2) + (0,) * 14)
    env.legal = env.rules.legal(env.board)
    _, paid, *_, info = env.step("up")
    assert (paid, info["score_terms"]) == (-cost, {"illegal_move": -cost})
    dearer = Game2048Env(reward=reward, illegal_move_penalty=3)
    dearer.reset(seed=0)
    dearer.restore(env.snapshot())
    assert dearer.step("up")[1] == -3


def game(reward: str, replies: list[str], **arguments: Any) -> tuple[float, dict[str, Any]]:
    """The return of a game and its last ``info``; the replies come again and again."""
    env = Game2048Env(reward=reward, **arguments)
    env.reset(seed=4)
    total = 0.0
    for turn in range(100_000):
        _, paid, terminated, truncated, info = env.step(replies[turn % len(replies)])
        assert paid == pytest.approx(sum(info["score_terms"].values()))
        total += paid
        if terminated or truncated:
            return total, info
    raise AssertionError("the game did not end")


def test_the_return_under_score_is_the_score() -> None:
    total, info = game("score", list(ACTIONS))
    assert total == info["metrics"]["score"] > 100


def test_target_pays_at_the_end_alone() -> None:
    total, info = game("target", ["left", "down", "right", "up"], illegal_move_penalty=0.0)
    best = info["metrics"]["best_tile"]
    assert total == sum(info["score_terms"].values())
    assert info["score_terms"]["best_tile"] == pytest.approx((math.log2(best) - 1) / 10)
    reached, info = game("target", ["left", "down", "right", "up"], illegal_move_penalty=0.0, target=32)
    assert (reached, info["success"]) == (2.0, True)
    cut, info = game("target", ["left", "down", "right", "up"], illegal_move_penalty=0.0, max_turns=20)
    assert 0 < cut < 1
    assert info["metrics"]["turns"] == 20


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("stalling", [["nonsense"], ["up"], ["left"]])
def test_standing_still_never_pays(reward: str, stalling: list[str]) -> None:
    longer = game(reward, stalling, max_turns=400)
    shorter = game(reward, stalling, max_turns=200)
    assert longer[1]["metrics"]["moves"] == shorter[1]["metrics"]["moves"]
    assert longer[0] <= shorter[0]


def test_shaped_pays_most_for_lasting_not_for_merging() -> None:
    # What the environment's docstring says of it: the points are the lesser part of the reward.
    env = Game2048Env(reward="shaped", split="test")
    env.reset(seed=0)
    rng, parts = np.random.default_rng(0), dict.fromkeys(("points", "best_tile"), 0.0)
    for name in ("random", "left-down-right-down"):
        env.reset(seed=1)
        act = env.baselines[name](env, rng)
        terminated = False
        while not terminated:
            _, _, terminated, _, info = env.step(act(""))
            for part in parts:
                parts[part] += info["score_terms"][part]
    assert parts["points"] < parts["best_tile"] / 3
