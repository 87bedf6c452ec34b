from __future__ import annotations

import pickle
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from art_gym import check_text_env
from art_gym.envs.game_2048.board import ACTIONS, Rules
from art_gym.envs.game_2048.chance import Chance
from art_gym.envs.game_2048.env import Game2048Env
from art_gym.envs.game_2048.splits import SPLITS, draw_key
from art_gym.envs.game_2048.words import board_text, observation
from art_gym.errors import UnknownTask


def at(exponents: tuple[int, ...], size: int = 4, **arguments: Any) -> Game2048Env:
    """An environment with a given board on the table."""
    env = Game2048Env(board_size=size, **arguments)
    env.reset(seed=0)
    env.board = env.rules.pack(exponents)
    env.legal = env.rules.legal(env.board)
    return env


def play(env: Game2048Env, replies: list[str]) -> list[Any]:
    return [env.step(reply) for reply in replies]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"reward": "shaped", "board_size": 3},
        {"reward": "target", "target": 16, "max_turns": 7},
        {"opening_moves": 30, "shared_chance": False, "board_size": 5},
    ],
    ids=str,
)
def test_keeps_the_contract_of_text_environments(arguments: dict[str, Any]) -> None:
    check_text_env(Game2048Env(**arguments))


@pytest.mark.parametrize("mode", ["ansi", "rgb_array", "human"])
def test_passes_gymnasiums_check_without_a_warning(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    gym.register("Check2048-v0", Game2048Env, order_enforce=False, disable_env_checker=True)
    try:
        check_env(gym.make("Check2048-v0", render_mode=mode).unwrapped)
    finally:
        del gym.registry["Check2048-v0"]


def test_the_words_of_a_board() -> None:
    exponents = (0, 0, 1, 2, 0, 1, 3, 4, 1, 2, 4, 6, 2, 4, 5, 7)
    assert observation(exponents, 4, 724, (True, False, False, True)) == (
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
    assert len({len(line) for line in lines}) == 1
    ends = [[match.end() for match in re.finditer(r"\S+", line)] for line in lines]
    assert all(row == ends[0] for row in ends)


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
def test_a_move_can_be_said_in_many_ways(reply: str) -> None:
    env = at((0, 0, 1, 1) + (0,) * 12)
    _, reward, *_, info = env.step(reply)
    assert info["call"] == {"name": "move", "arguments": {"direction": "left"}}
    assert reward == 4
    assert env.exponents[0] == 2


def test_a_legal_move_slides_scores_and_brings_one_tile() -> None:
    env = at((1, 1, 2, 0) + (0,) * 12)
    words, reward, terminated, truncated, info = env.step("left")
    assert env.exponents[:2] == (2, 2)
    assert sum(map(bool, env.exponents)) == 3
    assert (reward, info["score_terms"]) == (4.0, {"points": 4.0})
    assert (terminated, truncated) == (False, False)
    assert words == observation(env.exponents, 4, 4, env.legal)


def test_an_illegal_move_changes_nothing_and_is_answered_in_words() -> None:
    env = at((1, 2) + (0,) * 14)
    board = env.board
    words, reward, terminated, _, info = env.step("up")
    assert env.board == board
    assert words.startswith("up is illegal: it would change nothing.\n2 4 . .\n")
    assert (reward, info["score_terms"], terminated) == (0.0, {"illegal_move": 0.0}, False)
    assert "error" not in info  # it was a valid call
    assert env.step("right")[1] == 0
    assert (env.moves, env.illegal_moves) == (1, 1)


def test_an_illegal_move_does_not_use_up_chance() -> None:
    boards = []
    for replies in (["left"], ["up", "up", "left"]):
        env = at((0, 1) + (0,) * 14)
        play(env, replies)
        boards.append(env.board)
    assert boards[0] == boards[1]


def test_a_reply_that_is_no_move_costs_and_shows_the_board_again() -> None:
    env = at((1, 2) + (0,) * 14)
    words, reward, *_, info = env.step("I resign")
    assert reward == -0.1
    assert info["error"]["kind"] == "no_call"
    assert words.endswith(observation(env.exponents, 4, 0, env.legal))
    near = env.step("lefft")[0]
    assert "did you mean `left`?" in near


def test_the_game_is_over_only_when_no_move_is_legal() -> None:
    top = (3, 4, 3, 4, 4, 3, 4, 3, 3, 4, 3, 4)
    env = at((*top, 5, 6, 7, 7))
    assert env.legal == (False, True, False, True)  # full, but two tiles can merge
    env = at((*top, 7, 8, 9, 0))
    words, _, terminated, _, info = env.step("right")
    assert terminated
    assert words.endswith("legal none\nNo move is legal: the game is over.")
    assert info["metrics"] == {
        "turns": 1.0,
        "invalid_actions": 0.0,
        "score": 0.0,
        "best_tile": 512.0,
        "moves": 1.0,
        "illegal_moves": 0.0,
    }
    assert info["success"] is False


def test_reaching_the_target_is_success_and_ends_where_asked() -> None:
    board = (10, 10) + (0,) * 14
    on = at(board)
    assert not on.step("left")[2]
    assert on.reached
    assert on.on_truncation().success
    off = at(board, stop_at_target=True)
    words, _, terminated, _, info = off.step("left")
    assert (terminated, info["success"], info["metrics"]["best_tile"]) == (True, True, 2048.0)
    assert words.endswith("The tile 2048 is reached.")
    assert at(board, reward="target").step("left")[2]
    assert not at(board, reward="target", stop_at_target=False).step("left")[2]


def test_running_out_of_turns_truncates() -> None:
    env = at((3, 0) + (0,) * 14, max_turns=2, target=8)
    play(env, ["right"])
    words, _, terminated, truncated, info = env.step("nonsense")
    assert (terminated, truncated) == (False, True)
    assert words.endswith("No turns are left.")
    assert info["success"] is True
    assert info["metrics"]["invalid_actions"] == 1


@pytest.mark.parametrize("size", [3, 4, 6])
def test_the_same_seed_gives_the_same_game(size: int) -> None:
    games = []
    for _ in range(2):
        env = Game2048Env(board_size=size)
        env.reset(seed=5)
        games.append([env.step(ACTIONS[turn * turn % 4])[0] for turn in range(60)])
    assert games[0] == games[1]
    assert Game2048Env(board_size=size).reset(seed=6)[0] != Game2048Env(board_size=size).reset(seed=5)[0]


def test_a_game_follows_from_one_draw_of_the_environments_generator() -> None:
    env = Game2048Env()
    env.reset(seed=9, options={"split": "test"})
    key = draw_key(np.random.Generator(np.random.PCG64(np.random.SeedSequence(9))), "test")
    rules, chance = Rules.of(4), Chance(key)
    board = rules.start(chance.opening())
    assert env.board == board
    tiles = 2
    for turn in range(100):
        action = turn * 7 % 4
        after, _ = rules.slide(board, action)
        if after != board:
            board = rules.spawn(after, chance.draw(tiles, after))
            tiles += 1
        if env.step(ACTIONS[action])[2]:
            break
        assert env.board == board


def test_no_key_is_in_two_splits() -> None:
    keys = {split: {draw_key(np.random.default_rng(n), split) for n in range(500)} for split in SPLITS}
    assert {key & 3 for key in keys["train"]} == {0}
    assert {key & 3 for key in keys["validation"]} == {1}
    assert {key & 3 for key in keys["test"]} == {2}
    assert all(len(found) == 500 for found in keys.values())
    with pytest.raises(UnknownTask, match="did you mean `test`"):
        draw_key(np.random.default_rng(0), "tests")


def test_the_split_chooses_the_game() -> None:
    env = Game2048Env(split="test")
    first = env.reset(seed=1)
    assert first[1]["task_id"] == "test"
    boards = {split: Game2048Env(split=split).reset(seed=1)[0] for split in SPLITS}
    assert len(set(boards.values())) == 3
    assert first[0] == boards["test"]


def spawned(reply: str, seed: int, *, shared: bool) -> tuple[int, int, int]:
    """After a game's first move: the empty cells, which of them took the tile, and the tile's exponent."""
    env = Game2048Env(shared_chance=shared)
    env.reset(seed=seed)
    after = env.rules.exponents(env.rules.slide(env.board, ACTIONS.index(reply))[0])
    env.step(reply)
    gaps = [cell for cell, exponent in enumerate(after) if not exponent]
    taken = next(place for place, cell in enumerate(gaps) if env.exponents[cell])
    return len(gaps), taken, env.exponents[gaps[taken]]


def test_shared_chance_draws_the_same_tile_after_different_moves() -> None:
    alike = {}
    for shared in (True, False):
        env = Game2048Env()
        seeds = [seed for seed in range(60) if (env.reset(seed=seed), env.legal)[1] == (True,) * 4]
        pairs = [[spawned(reply, seed, shared=shared) for reply in ("left", "up")] for seed in seeds]
        alike[shared] = [one == other for one, other in pairs if one[0] == other[0]]
    assert len(alike[True]) > 10
    assert all(alike[True])
    assert sum(alike[False]) < len(alike[False]) / 2


def test_opening_moves_begin_later_in_the_game_but_never_at_its_end() -> None:
    tiles = []
    for seed in range(60):
        env = Game2048Env(opening_moves=400, target=128)
        env.reset(seed=seed)
        assert any(env.legal)
        assert not env.reached
        assert (env.score, env.moves) == (0, 0)
        tiles.append(sum(1 << e for e in env.exponents if e))
    assert min(tiles) < 40 < 100 < max(tiles)


def test_a_named_player_can_play_the_opening_the_same_for_every_attempt() -> None:
    deep = []
    for seed in range(30):
        boards = []
        for _ in range(2):
            env = Game2048Env(opening_moves=300, opening_player="left-down-right-down")
            env.reset(seed=seed)
            boards.append(env.exponents)
        assert boards[0] == boards[1]
        assert any(env.legal)
        deep.append(max(boards[0]))
    assert max(deep) >= 7  # random play rarely sees a 128 so early


def test_observations_can_tell_what_each_move_would_score() -> None:
    env = Game2048Env(show_points=True)
    rng = np.random.default_rng(0)
    told, _ = env.reset(seed=3)
    for _ in range(60):
        before = env.board
        score, *rows, moves = told.splitlines()[-6:]
        assert score == f"score {env.score}"
        assert len(rows) == 4
        words = moves.split()
        gains = dict(zip(words[::2], words[1::2], strict=True))
        assert list(gains) == ["up", "right", "down", "left"]
        assert [gains[name] != "-" for name in gains] == list(env.legal)
        reply = rng.choice([name for name in gains if gains[name] != "-"])
        told, reward, terminated, _, _ = env.step(str(reply))
        assert reward == float(gains[reply])
        assert env.board != before
        if terminated:
            break
    assert env.moves > 30


def test_snapshots_branch() -> None:
    env = Game2048Env(opening_moves=20)
    env.reset(seed=2)
    state = pickle.loads(pickle.dumps(env.snapshot()))
    first = play(env, ["left", "down", "left", "up", "right"])
    other = Game2048Env(opening_moves=20)
    other.restore(state)
    assert play(other, ["left", "down", "left", "up", "right"]) == first
    other.restore(state)
    assert play(other, ["down", "right"])[-1] != first[1]
    assert len(state.state) < 3_000


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"board_size": 0}, ValueError, "from 3 to 8, not 0"),
        ({"board_size": 4.0}, TypeError, "must be an int"),
        ({"target": 1000}, ValueError, "power of two"),
        ({"target": 4}, ValueError, "from 8 to 131072"),
        ({"target": 2048, "board_size": 3}, ValueError, "from 8 to 1024"),
        ({"target": 64.0}, TypeError, "must be an int"),
        ({"reward": "scores"}, ValueError, "did you mean `score`"),
        ({"illegal_move_penalty": -1}, ValueError, "must be 0 or more"),
        ({"opening_moves": -1}, ValueError, "opening_moves must be 0 or more"),
        ({"opening_moves": 2.5}, TypeError, "opening_moves must be an int, not 2.5"),
        ({"opening_player": "greddy"}, ValueError, "did you mean `greedy`"),
        ({"max_turns": 0}, ValueError, "at least 1"),
        ({"split": "tests"}, UnknownTask, "did you mean `test`"),
        ({"render_mode": "rgb"}, ValueError, "rgb_array"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Game2048Env(**arguments)


def test_the_default_target_fits_the_board() -> None:
    assert [Game2048Env(board_size=size).options.target for size in (3, 4, 8)] == [1024, 2048, 2048]


def test_seeds_and_actions_of_the_wrong_kind_are_refused() -> None:
    env = Game2048Env()
    with pytest.raises(gym.error.Error, match="-1"):
        env.reset(seed=-1)
    env.reset(seed=0)
    with pytest.raises(TypeError, match="not float"):
        env.step(1.0)  # type: ignore[arg-type]
