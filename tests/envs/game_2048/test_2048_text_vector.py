"""Many games of 2048 in words at once, held equal to single games."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from art_gym.envs.game_2048.env import Game2048Env
from art_gym.envs.game_2048.text_vector import TextVector2048Env
from art_gym.errors import ResetNeeded, UnknownTask

_REPLIES = [
    *["left", "right", "up", "down"] * 6,
    'move("left")',
    "<think>up?</think> down",
    "<move>right</move>",
    'move("up") move("left")',
    '<tool_call>{"name": "move", "arguments": {"direction": "down"}}</tool_call>',
    "",
    "I would go left, or maybe not \ud800",
    'move("lef")',
]


def assert_same(one: Any, other: Any, path: str = "") -> None:
    """Equal to the last bit, of equal types and shapes, all the way down."""
    assert type(one) is type(other), path
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), path
        assert one.tolist() == other.tolist(), path
    elif isinstance(one, (tuple, list)):
        for index, (first, second) in enumerate(zip(one, other, strict=True)):
            assert_same(first, second, f"{path}[{index}]")
    else:
        assert one == other, path


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(
    "kwargs",
    [
        {"board_size": 3},
        {"board_size": 3, "reward": "shaped", "invalid_action_penalty": 0.0},
        {"board_size": 3, "reward": "target", "target": 16, "shared_chance": False},
        {"max_turns": 5, "reward": "target", "illegal_move_penalty": 0.5, "split": "test"},
        {"max_turns": 60, "opening_moves": 30, "stop_at_target": True, "target": 32, "reward": "shaped"},
        {"max_turns": 1, "opening_moves": 5, "shared_chance": False},
        {"max_turns": 40, "opening_moves": 90, "opening_player": "left-down", "show_points": True},
    ],
    ids=str,
)
def test_it_gives_what_as_many_single_environments_give(kwargs: dict[str, Any], mode: AutoresetMode) -> None:
    count, rng = 5, np.random.default_rng(0)
    singles = SyncVectorEnv([lambda: Game2048Env(**kwargs)] * count, autoreset_mode=mode)
    many = TextVector2048Env(count, autoreset_mode=mode, **kwargs)
    assert singles.metadata == many.metadata
    assert singles.observation_space == many.observation_space
    assert singles.action_space == many.action_space
    assert_same(singles.reset(seed=5), many.reset(seed=5))
    endings = 0
    for turn in range(160):
        replies = tuple(_REPLIES[index] for index in rng.integers(0, len(_REPLIES), count))
        expected, found = singles.step(replies), many.step(replies)
        assert_same(expected, found, f"turn {turn}: ")
        done = found[2] | found[3]
        endings += int(done.sum())
        if mode == AutoresetMode.DISABLED and done.any():
            mask = {"reset_mask": done}
            assert_same(singles.reset(options=dict(mask)), many.reset(options=mask))
        if turn == 80:
            options = {"split": "validation", "reset_mask": np.arange(count) % 2 == 0}
            seeds = [3, None, 3, 8, None]
            assert_same(
                singles.reset(seed=seeds, options=dict(options)), many.reset(seed=seeds, options=options)
            )
            if mode == AutoresetMode.DISABLED:
                assert_same(singles.reset(options={"task": "test"}), many.reset(options={"task": "test"}))
    assert endings >= count


def test_bad_replies_get_a_clear_error_and_change_nothing() -> None:
    many, other = TextVector2048Env(2), TextVector2048Env(2)
    with pytest.raises(ResetNeeded, match="environments 0, 1"):
        many.step(["left", "up"])
    many.reset(seed=0)
    other.reset(seed=0)
    wrong: list[tuple[Any, type[Exception], str]] = [
        ("left", TypeError, "sequence of 2 replies, not str"),
        (["left"], ValueError, "1 replies for 2 games"),
        (["left", 3], TypeError, r"not int \(game 1\)"),
        (None, TypeError, "not NoneType"),
    ]
    for replies, error, words in wrong:
        with pytest.raises(error, match=words):
            many.step(replies)
    assert_same(many.step(np.array(["left", "up"])), other.step(["left", "up"]))  # type: ignore[arg-type]


def test_bad_arguments_get_a_clear_error() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        TextVector2048Env(0)
    with pytest.raises(ValueError, match="from 3 to 8"):
        TextVector2048Env(2, board_size=0)
    with pytest.raises(ValueError, match="no render_mode"):
        TextVector2048Env(2, render_mode="human")  # type: ignore[arg-type]
    with pytest.raises(UnknownTask):
        TextVector2048Env(2).reset(options={"task": "tset"})
    with pytest.raises(ValueError, match="no option"):
        TextVector2048Env(2).reset(options={"splits": "test"})
