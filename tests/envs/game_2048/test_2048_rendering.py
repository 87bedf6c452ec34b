from __future__ import annotations

import importlib.util
import re
from itertools import pairwise
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import RecordVideo, RenderCollection

from art_gym.envs.game_2048.env import Game2048Env
from art_gym.envs.game_2048.rendering import ansi, colored, picture

BOARD = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 17)


def tile(image: np.ndarray, row: int, column: int) -> np.ndarray:
    """A tile's pixels, cut out of the picture of a board."""
    top, left = 48 + 8 + 88 * row, 8 + 88 * column
    return image[top : top + 80, left : left + 80]


def test_ansi_is_the_board_and_the_score() -> None:
    assert ansi((0, 1, 2) + (0,) * 6, 3, 12) == ". 2 4\n. . .\n. . .\nscore 12"


@pytest.mark.parametrize("size", [3, 4, 8])
def test_colours_stand_around_the_same_numbers(size: int) -> None:
    exponents = (BOARD * 4)[: size * size]
    plain = re.sub(r"\x1b\[[\d;]*m", "", colored(exponents, size, 7))
    assert plain.split() == ansi(exponents, size, 7).split()
    assert len({len(line) for line in plain.split("\n")[:-1]}) == 1
    assert all(line.endswith("\x1b[0m") for line in colored(exponents, size, 7).split("\n")[:-1])


@pytest.mark.parametrize("size", [3, 4, 5, 8])
def test_a_picture_has_the_shape_that_video_codecs_want(size: int) -> None:
    image = picture((BOARD * 4)[: size * size], size, 10**6)
    assert image.shape == (88 * size + 56, 88 * size + 8, 3)
    assert image.dtype == np.uint8
    assert image.shape[0] % 2 == image.shape[1] % 2 == 0


def test_each_tile_has_a_look_of_its_own() -> None:
    exponents = tuple(range(64))
    image = picture(exponents, 8, 0)
    tiles = [tile(image, cell // 8, cell % 8) for cell in exponents]
    assert len({pixels.tobytes() for pixels in tiles}) == 64
    backgrounds = [tuple(pixels[40, 2]) for pixels in tiles]
    assert len(set(backgrounds[:18])) == 18  # every tile that a 4 x 4 board can hold


def test_numbers_are_readable_and_lie_within_their_tiles() -> None:
    for exponent in range(1, 66):
        pixels = tile(picture((exponent,) + (0,) * 8, 3, 0), 0, 0).astype(int)
        # Where a pixel is neither the tile's colour nor its corner, it belongs to the number.
        inked = np.abs(pixels - pixels[40, 2]).sum(axis=2) > 0
        inside = inked[4:-4, 4:-4]
        rows, columns = np.nonzero(inside)
        middle = (rows.min() + rows.max()) / 2, (columns.min() + columns.max()) / 2
        assert middle == pytest.approx((35.5, 35.5), abs=6)
        assert not inked[8:-8, :4].any()
        assert not inked[8:-8, -4:].any()
        assert np.abs(pixels[4:-4, 4:-4][inside] - pixels[40, 2]).sum(axis=1).min() > 150


def test_the_digits_differ() -> None:
    headers = [picture((1,) + (0,) * 8, 3, score)[:48].tobytes() for score in range(100)]
    assert len(set(headers)) == 100


def test_a_picture_is_fresh_and_can_be_drawn_over() -> None:
    before = picture(BOARD, 4, 0)
    before[:] = 0
    assert picture(BOARD, 4, 0).any()


def test_frames_change_with_the_board() -> None:
    env = RenderCollection(Game2048Env(render_mode="rgb_array"))
    env.reset(seed=0)
    for reply in ("left", "nonsense", "down", "right"):
        env.step(reply)
    frames = env.render()
    assert isinstance(frames, list)
    same = [np.array_equal(one, other) for one, other in pairwise(frames)]
    assert same == [False, True, False, False]


def test_videos_can_be_recorded(tmp_path: Path) -> None:
    if importlib.util.find_spec("moviepy") is None:
        pytest.skip("moviepy is not installed")
    env: gym.Env[str, str] = RecordVideo(Game2048Env(render_mode="rgb_array"), str(tmp_path))
    env.reset(seed=0)
    for reply in ("left", "down") * 5:
        env.step(reply)
    env.close()
    assert (tmp_path / "rl-video-episode-0.mp4").stat().st_size > 1_000


def test_ansi_mode_shows_the_latest_exchange() -> None:
    env = Game2048Env(render_mode="ansi")
    env.reset(seed=0)
    words = env.step("left")[0]
    assert env.render() == f"> left\n{words}"


def test_human_mode_prints_the_board_in_colours(capsys: pytest.CaptureFixture[str]) -> None:
    env = Game2048Env(render_mode="human")
    env.reset(seed=0)
    env.step("left")
    assert env.render() is None
    printed = capsys.readouterr().out
    assert printed.endswith(f"> left\n{colored(env.exponents, 4, env.score)}\n")
    assert printed.count("score") == 2
