"""``art/2048-v0``: the game as text, its rewards and its pictures."""

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_gym.envs.game_2048.env import Game2048Env
from art_gym.envs.game_2048.rendering import ansi, board_text, colored, picture
from art_gym.envs.game_2048.rules.board import ACTIONS, Rules
from art_gym.envs.game_2048.rules.rewards import REWARDS, shaped_terms, smoothness, target_terms
from art_gym.envs.game_2048.rules.tile_rng import SPLITS, TileRng, draw_key

BOARD = (0, 0, 1, 2, 0, 1, 3, 4, 1, 2, 4, 6, 2, 4, 5, 7)


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
    shown, _ = env.reset(seed=3)
    for _ in range(40):
        score, *rows, moves = shown.splitlines()[-6:]
        assert (score, len(rows)) == (f"score {env.score}", 4)
        words = moves.split()
        gains = dict(zip(words[::2], words[1::2], strict=True))
        assert list(gains) == list(ACTIONS)
        assert [gains[name] != "-" for name in gains] == list(env.legal)
        reply = rng.choice([name for name in gains if gains[name] != "-"])
        shown, reward, *_ = env.step(str(reply))
        assert reward == float(gains[reply])


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


def test_the_split_chooses_the_game_and_the_board_its_target() -> None:
    boards = {split: Game2048Env(split=split).reset(seed=1) for split in SPLITS}
    assert len({text for text, _ in boards.values()}) == 3
    assert all(info["task_id"] == split for split, (_, info) in boards.items())
    assert [Game2048Env(board_size=size).options.target for size in (3, 4, 8)] == [1024, 2048, 2048]


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
    assert longer[0] < game(reward, ["up", "left"], max_turns=400)[0]  # soon all of these are illegal, too


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
    assert (shown["ansi"], shown["human"]) == (f"> left\n{words}", None)
    assert np.array_equal(shown["rgb_array"], picture(env.exponents, 4, env.score))
    printed = capsys.readouterr().out
    assert printed.endswith(f"> left\n{colored(env.exponents, 4, env.score)}\n")
    assert printed.count("score") == 2
