"""``art/2048-v0``: the game as text, its rewards and its pictures."""

from __future__ import annotations

import math
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_gym.envs.game_2048.env import Game2048Env
from art_gym.envs.game_2048.rendering import ansi, colored, picture
from art_gym.envs.game_2048.rules.board import ACTIONS, Rules
from art_gym.envs.game_2048.rules.rewards import REWARDS, shaped_terms, smoothness, target_terms
from art_gym.envs.game_2048.rules.tile_rng import SPLITS, TileRng, draw_key
from art_gym.envs.game_2048.text_board import board_text, observation

BOARD = (0, 0, 1, 2, 0, 1, 3, 4, 1, 2, 4, 6, 2, 4, 5, 7)


def at(exponents: tuple[int, ...], size: int = 4, **arguments: Any) -> Game2048Env:
    """An environment with a given board on the table."""
    env = Game2048Env(board_size=size, **arguments)
    env.reset(seed=0)
    env.board = env.rules.pack(exponents)
    env.legal = env.rules.legal(env.board)
    return env


# --- the text ---


def test_the_text_of_a_board() -> None:
    assert observation(BOARD, 4, 724, (True, False, False, True)) == (
        "  .   .   2   4\n"
        "  .   2   8  16\n"
        "  2   4  16  64\n"
        "  4  16  32 128\n"
        "score 724\n"
        "legal up left"
    )  # fmt: skip
    assert observation((1, 2) * 8, 4, 0, (False,) * 4).endswith("legal none")


@given(st.integers(3, 8).flatmap(lambda n: st.lists(st.integers(0, 126), min_size=n * n, max_size=n * n)))
def test_every_cell_is_one_word_in_aligned_columns(cells: list[int]) -> None:
    size = int(len(cells) ** 0.5)
    lines = board_text(tuple(cells), size).split("\n")
    read = [0 if word == "." else int(word).bit_length() - 1 for line in lines for word in line.split()]
    assert read == cells
    ends = [[match.end() for match in re.finditer(r"\S+", line)] for line in lines]
    assert all(row == ends[0] for row in ends)


def test_observations_can_tell_what_each_move_would_score() -> None:
    env = Game2048Env(show_points=True)
    rng = np.random.default_rng(0)
    told, _ = env.reset(seed=3)
    for _ in range(40):
        score, *rows, moves = told.splitlines()[-6:]
        assert (score, len(rows)) == (f"score {env.score}", 4)
        words = moves.split()
        gains = dict(zip(words[::2], words[1::2], strict=True))
        assert list(gains) == list(ACTIONS)
        assert [gains[name] != "-" for name in gains] == list(env.legal)
        reply = rng.choice([name for name in gains if gains[name] != "-"])
        told, reward, *_ = env.step(str(reply))
        assert reward == float(gains[reply])


# --- moves ---


@pytest.mark.parametrize(
    "reply",
    [
        "left",
        "Left.",
        "move left",
        'move("left")',
        "move(direction='left')",
        "<move>left</move>",
        "The best is to merge.\n<move> LEFT </move>",
        "<think>up? no</think>left",
        '{"name": "move", "arguments": {"direction": "left"}}',
        '<tool_call>\n{"name": "move", "arguments": {"direction": "left"}}\n</tool_call>',
    ],
)
def test_a_move_can_be_written_in_many_ways(reply: str) -> None:
    env = at((1, 1, 2, 0) + (0,) * 12)
    words, reward, terminated, truncated, info = env.step(reply)
    assert info["call"] == {"name": "move", "arguments": {"direction": "left"}}
    assert (reward, info["score_terms"], terminated, truncated) == (4.0, {"points": 4.0}, False, False)
    assert env.exponents[:2] == (2, 2)
    assert sum(map(bool, env.exponents)) == 3
    assert words == observation(env.exponents, 4, 4, env.legal)


def test_an_illegal_move_changes_nothing_and_uses_up_no_chance() -> None:
    env, other = (at((1, 2) + (0,) * 14) for _ in range(2))
    board = env.board
    words, reward, terminated, _, info = env.step("up")
    assert env.board == board
    assert words.startswith("up is illegal: it would change nothing.\n2 4 . .\n")
    assert (reward, info["score_terms"], terminated) == (0.0, {"illegal_move": 0.0}, False)
    assert "error" not in info  # it was a valid call
    env.step("right")
    other.step("right")
    assert (env.board, env.moves, env.illegal_moves) == (other.board, 1, 1)


def test_a_reply_that_is_no_move_costs_and_shows_the_board_again() -> None:
    env = at((1, 2) + (0,) * 14)
    words, reward, *_, info = env.step("I resign")
    assert (reward, info["error"]["kind"]) == (-0.1, "no_call")
    assert words.endswith(observation(env.exponents, 4, 0, env.legal))
    assert "did you mean `left`?" in env.step("lefft")[0]


def test_the_game_is_over_when_no_move_is_legal() -> None:
    env = at((3, 4, 3, 4, 4, 3, 4, 3, 3, 4, 3, 4, 7, 8, 9, 0))
    words, _, terminated, _, info = env.step("right")
    assert terminated
    assert words.endswith("legal none\nNo move is legal: the game is over.")
    assert info["success"] is False
    assert info["metrics"] == {
        "turns": 1.0, "invalid_actions": 0.0, "score": 0.0, "best_tile": 512.0, "moves": 1.0,
        "illegal_moves": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ({}, False),
        ({"stop_at_target": True}, True),
        ({"reward": "target"}, True),
        ({"reward": "target", "stop_at_target": False}, False),
    ],
)
def test_reaching_the_target_is_success_and_ends_the_game_if_asked(
    options: dict[str, Any], ends: bool
) -> None:
    env = at((10, 10) + (0,) * 14, **options)
    _, _, terminated, _, info = env.step("left")
    assert (terminated, env.reached, env.on_truncation().success) == (ends, True, True)
    if ends:
        assert (info["success"], info["metrics"]["best_tile"]) == (True, 2048.0)


def test_running_out_of_turns_truncates() -> None:
    env = at((3, 0) + (0,) * 14, max_turns=2, target=8)
    env.step("right")
    _, _, terminated, truncated, info = env.step("nonsense")
    assert (terminated, truncated, info["success"]) == (False, True, True)


# --- chance ---


def test_a_game_follows_from_one_draw_of_the_environments_generator() -> None:
    env = Game2048Env()
    env.reset(seed=9, options={"split": "test"})
    key = draw_key(np.random.Generator(np.random.PCG64(np.random.SeedSequence(9))), "test")
    rules, chance = Rules.of(4), TileRng(key)
    board, tiles = rules.start(chance.opening()), 2
    assert env.board == board
    for turn in range(100):
        action = turn * 7 % 4
        after, _ = rules.slide(board, action)
        if after != board:
            board = rules.spawn(after, chance.draw(tiles, after))
            tiles += 1
        if env.step(ACTIONS[action])[2]:
            break
        assert env.board == board


def test_the_split_chooses_the_game() -> None:
    boards = {split: Game2048Env(split=split).reset(seed=1) for split in SPLITS}
    assert len({text for text, _ in boards.values()}) == 3
    assert all(info["task_id"] == split for split, (_, info) in boards.items())


@pytest.mark.parametrize(
    ("options", "deep"), [({"opening_moves": 400, "target": 128}, 5), ({"opening_moves": 300}, 7)]
)
def test_opening_moves_begin_later_in_the_game_but_never_at_its_end(
    options: dict[str, Any], deep: int
) -> None:
    player = "random" if "target" in options else "left-down-right-down"
    best = []
    for seed in range(30):
        env, again = (Game2048Env(opening_player=player, **options) for _ in range(2))
        env.reset(seed=seed)
        again.reset(seed=seed)
        assert env.exponents == again.exponents
        assert any(env.legal)
        assert not env.reached
        assert (env.score, env.moves) == (0, 0)
        best.append(max(env.exponents))
    assert min(best) < deep <= max(best)


def test_the_default_target_fits_the_board() -> None:
    assert [Game2048Env(board_size=size).options.target for size in (3, 4, 8)] == [1024, 2048, 2048]


def test_seeds_and_actions_of_the_wrong_kind_are_refused() -> None:
    env = Game2048Env()
    with pytest.raises(gym.error.Error, match="-1"):
        env.reset(seed=-1)
    env.reset(seed=0)
    with pytest.raises(TypeError, match="not float"):
        env.step(1.0)  # type: ignore[arg-type]


# --- rewards ---


def test_shaped_pays_by_the_classic_recipe() -> None:
    across = (1) + (2 + 1) + (1 + 2 + 2) + (2 + 1 + 2)
    down = (1) + (1 + 2) + (2 + 1 + 1) + (2 + 2 + 1)
    assert shaped_terms(36, BOARD, 4) == pytest.approx(
        {"points": 0.36, "empty_cells": 0.03, "best_tile": 0.7, "smoothness": -0.05 * (across + down) / 24}
    )


@pytest.mark.parametrize("size", [3, 4, 8])
def test_smoothness_is_0_if_all_tiles_are_alike_and_worst_on_a_chessboard(size: int) -> None:
    assert smoothness([3] * size * size, size) == 0
    assert smoothness([0] * (size * size - 1) + [9], size) == 0
    assert smoothness([1, 0, 9] + [0] * (size * size - 3), size) == 0
    assert smoothness([1 + 4 * ((cell // size + cell % size) % 2) for cell in range(size * size)], size) == -4


def test_target_pays_2_or_the_two_logarithms() -> None:
    assert target_terms(BOARD, 4, 128, reached=True) == {"target": 2.0}
    total = sum(2**exponent for exponent in BOARD if exponent)
    assert target_terms(BOARD, 4, 2048, reached=False) == pytest.approx(
        {"best_tile": 6 / 10, "total": 0.2 * (math.log2(total) - 1) / (math.log2(2048 * 16) - 1)}
    )
    for size in (3, 4, 5):
        almost = target_terms([10] * size * size, size, 2048, reached=False)
        assert 1 < sum(almost.values()) < 1.2
        assert sum(target_terms([1] + [0] * (size * size - 1), size, 2048, reached=False).values()) == 0


@pytest.mark.parametrize(("reward", "cost"), [("score", 0.0), ("shaped", 0.1), ("target", 1.0)])
def test_an_illegal_move_pays_nothing_and_costs(reward: str, cost: float) -> None:
    board = (1, 2) + (0,) * 14
    _, paid, *_, info = at(board, reward=reward).step("up")
    assert (paid, info["score_terms"]) == (-cost, {"illegal_move": -cost})
    assert at(board, reward=reward, illegal_move_penalty=3).step("up")[1] == -3


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
    replies = ["left", "down", "right", "up"]
    total, info = game("target", replies, illegal_move_penalty=0.0)
    assert total == sum(info["score_terms"].values())
    reached, info = game("target", replies, illegal_move_penalty=0.0, target=32)
    assert (reached, info["success"]) == (2.0, True)
    assert 0 < game("target", replies, illegal_move_penalty=0.0, max_turns=20)[0] < 1


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("stalling", [["nonsense"], ["up"], ["left"]])
def test_standing_still_never_pays(reward: str, stalling: list[str]) -> None:
    longer, shorter = (game(reward, stalling, max_turns=turns) for turns in (400, 200))
    assert longer[1]["metrics"]["moves"] == shorter[1]["metrics"]["moves"]
    assert longer[0] <= shorter[0]


# --- pictures ---


@pytest.mark.parametrize("size", [3, 4, 8])
def test_colours_and_pictures_show_the_board(size: int) -> None:
    exponents = (BOARD * 4)[: size * size]
    shown = colored(exponents, size, 7)
    assert re.sub(r"\x1b\[[\d;]*m", "", shown).split() == ansi(exponents, size, 7).split()
    assert all(line.endswith("\x1b[0m") for line in shown.split("\n")[:-1])
    image = picture(exponents, size, 10**6)
    assert (image.dtype, image.shape) == (np.uint8, (88 * size + 56, 88 * size + 8, 3))
    image[:] = 0
    assert picture(exponents, size, 10**6).any()


def tile(image: np.ndarray, row: int, column: int) -> np.ndarray:
    """A tile's pixels, cut out of the picture of a board."""
    top, left = 48 + 8 + 88 * row, 8 + 88 * column
    return image[top : top + 80, left : left + 80]


def test_each_tile_has_a_look_of_its_own() -> None:
    image = picture(tuple(range(64)), 8, 0)
    tiles = [tile(image, cell // 8, cell % 8) for cell in range(64)]
    assert len({pixels.tobytes() for pixels in tiles}) == 64
    assert len({tuple(pixels[40, 2]) for pixels in tiles[:18]}) == 18  # all that a 4 x 4 board can hold
    headers = [picture((1,) + (0,) * 8, 3, score)[:48].tobytes() for score in range(100)]
    assert len(set(headers)) == 100


def test_numbers_are_readable_and_lie_within_their_tiles() -> None:
    for exponent in range(1, 66):
        pixels = tile(picture((exponent,) + (0,) * 8, 3, 0), 0, 0).astype(int)
        # A pixel that has neither the tile's colour nor its corner's belongs to the number.
        inked = np.abs(pixels - pixels[40, 2]).sum(axis=2) > 0
        inside = inked[4:-4, 4:-4]
        rows, columns = np.nonzero(inside)
        middle = (rows.min() + rows.max()) / 2, (columns.min() + columns.max()) / 2
        assert middle == pytest.approx((35.5, 35.5), abs=6)
        assert not inked[8:-8, :4].any()
        assert not inked[8:-8, -4:].any()
        assert np.abs(pixels[4:-4, 4:-4][inside] - pixels[40, 2]).sum(axis=1).min() > 150


def test_the_render_modes(capsys: pytest.CaptureFixture[str]) -> None:
    shown: dict[str, Any] = {}
    for mode in ("ansi", "rgb_array", "human"):
        env = Game2048Env(render_mode=mode)
        env.reset(seed=0)
        words = env.step("left")[0]
        shown[mode] = env.render()
    assert shown["ansi"] == f"> left\n{words}"
    assert np.array_equal(shown["rgb_array"], picture(env.exponents, 4, env.score))
    assert shown["human"] is None
    printed = capsys.readouterr().out
    assert printed.endswith(f"> left\n{colored(env.exponents, 4, env.score)}\n")
    assert printed.count("score") == 2
