"""The random numbers of one game."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from art_gym.envs.game_2048.board import Rules
from art_gym.envs.game_2048.chance import Chance, fold


def test_the_stream_is_splitmix64() -> None:
    # The values that the generator's published C code gives for the seed 1234567.
    known = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [Chance(1234567).draw(count, 0) for count in range(5)] == known


def test_shared_chance_depends_on_the_count_alone() -> None:
    chance = Chance(99)
    assert chance.draw(7, 0) == chance.draw(7, 12345)
    assert chance.draw(7, 0) != chance.draw(8, 0)
    assert chance.draw(7, 0) != Chance(100).draw(7, 0)


def test_chance_that_is_not_shared_parts_with_the_first_different_board() -> None:
    one, other = Chance(99, shared=False), Chance(99, shared=False)
    assert one.draw(7, 5) == other.draw(7, 5)
    assert one.draw(7, 5) != one.draw(7, 6)
    assert one.draw(7, 5) != one.draw(8, 5)
    # Boards that differ in their highest cells alone, of every size.
    for size in range(3, 9):
        boards = [exponent << 8 * (size * size - 1) for exponent in (1, 2, 3)]
        assert len({one.draw(7, board) for board in boards}) == 3


def test_the_opening_is_the_first_two_draws_and_the_same_for_every_attempt() -> None:
    shared = Chance(5)
    assert list(shared.opening()) == [shared.draw(0, 0), shared.draw(1, 0)]
    assert list(Chance(5, shared=False).opening()) == list(shared.opening())


@pytest.mark.parametrize("shared", [True, False])
def test_bits_are_balanced_and_do_not_follow_the_count(shared: bool) -> None:
    chance = Chance(2**63 + 12345, shared)
    draws = np.array([chance.draw(count, 3 << 96) for count in range(4_000)], np.uint64)
    bits = (draws[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(bits.mean(0) - 0.5).max() < 4.5 * 0.5 / 4_000**0.5
    flips = (bits[1:] != bits[:-1]).mean(0)
    assert np.abs(flips - 0.5).max() < 4.5 * 0.5 / 4_000**0.5


def test_fold_takes_the_board_word_by_word() -> None:
    assert fold(17, 0) == 17
    assert fold(17, 5 | 9 << 64) == fold(fold(17, 5), 9)
    assert fold(17, 5) != fold(17, 5 << 64)


def test_games_that_share_chance_meet_the_same_tiles_while_the_same_cells_are_empty() -> None:
    rules, key = Rules.of(4), 31
    start = rules.start(Chance(key).opening())
    for shared in (True, False):
        chance = Chance(key, shared)
        assert rules.start(chance.opening()) == start
    moved = [rules.slide(start, action)[0] for action in range(4)]
    tiles = {Chance(key).draw(2, board) for board in moved}
    assert len(tiles) == 1
    own = {Chance(key, shared=False).draw(2, board) for board in set(moved)}
    assert len(own) == len(set(moved)) > 1


def test_a_key_is_64_bits() -> None:
    for key in (-1, 2**64):
        with pytest.raises(ValueError, match="a key is from 0"):
            Chance(key)
    assert pickle.loads(pickle.dumps(Chance(7, shared=False))) == Chance(7, shared=False)
