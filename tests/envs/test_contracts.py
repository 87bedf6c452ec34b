"""What every environment of the package keeps: the text contract, Gymnasium's and PettingZoo's tests."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pettingzoo
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import (
    api_test,
    max_cycles_test,
    parallel_api_test,
    parallel_seed_test,
    render_test,
    seed_test,
)

import art_gym
import art_gym.games.aec
from art_gym.envs.coding.duel import env as coding_duel
from art_gym.envs.coding.env import CodingEnv
from art_gym.envs.game_2048 import duel as duel_2048
from art_gym.envs.game_2048.array_env import Array2048Env
from art_gym.envs.game_2048.env import Game2048Env
from art_gym.envs.game_2048.vector.vector_env import Vector2048Env
from art_gym.envs.mail.env import EmailEnv
from art_gym.errors import UnknownTaskError
from tests.art_gym.pettingzoo_warnings import MASK_AT_THE_END, UNEQUAL_SEATS, no_other_warnings

SHORT = {"seeds": (0, 1), "steps": 6}
TEXT_ENVS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("art/2048-v0", {"reward": "shaped", "board_size": 3}, {}),
    ("art/2048-v0", {"reward": "target", "target": 16, "max_turns": 7}, {}),
    ("art/2048-v0", {"opening_moves": 30, "shared_chance": False, "board_size": 5}, {}),
    ("art/Coding-v0", {"level": 0}, SHORT),
    ("art/Coding-v0", {"level": 1}, SHORT),
]
CHECKED_BY_GYMNASIUM: list[tuple[str, dict[str, Any]]] = [
    *(("art/2048-v0", {"render_mode": mode}) for mode in ("ansi", "rgb_array", "human")),
    ("art/2048Array-v0", {}),
    ("art/2048Array-v0", {"board_size": 3, "reward": "shaped"}),
    ("art/2048Array-v0", {"board_size": 8, "observation": "one_hot", "reward": "target"}),
    ("art/2048Array-v0", {"shared_chance": False, "split": "test"}),
]
GAMES: list[tuple[str, dict[str, Any], int]] = [
    ("art/2048Duel-v0", {"actions": "text"}, 100),
    ("art/2048Duel-v0", {"actions": "discrete"}, 100),
    ("art/CodingDuel-v0", {}, 40),
]
OPTIONS_2048: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"board_size": 0}, ValueError, "from 3 to 8, not 0"),
    ({"board_size": 4.0}, TypeError, "must be an int"),
    ({"reward": "scores"}, ValueError, "did you mean `score`"),
    ({"target": 100}, ValueError, "power of two"),
    ({"target": 4}, ValueError, "from 8 to 131072"),
    ({"board_size": 3, "target": 2048}, ValueError, "from 8 to 1024"),
    ({"target": "2048"}, TypeError, "must be an int such as 2048"),
    ({"illegal_move_penalty": -1}, ValueError, "0 or more"),
    ({"illegal_move_penalty": float("nan")}, ValueError, "0 or more"),
    ({"max_turns": 0}, ValueError, "at least 1"),
    ({"split": "tset"}, UnknownTaskError, "did you mean `test`"),
    ({"render_mode": "rgb"}, ValueError, "rgb"),
]
WRONG: list[tuple[Callable[..., Any], dict[str, Any], type[Exception], str]] = [
    *((Game2048Env, *wrong) for wrong in OPTIONS_2048),
    *((Array2048Env, *wrong) for wrong in OPTIONS_2048),
    *((Vector2048Env, *wrong) for wrong in OPTIONS_2048),
    (Game2048Env, {"opening_moves": -1}, ValueError, "opening_moves must be 0 or more"),
    (Game2048Env, {"opening_moves": 2.5}, TypeError, "opening_moves must be an int, not 2.5"),
    (Game2048Env, {"opening_player": "greddy"}, ValueError, "did you mean `greedy`"),
    (Array2048Env, {"observation": "onehot"}, ValueError, "did you mean `one_hot`"),
    (Vector2048Env, {"num_envs": 0}, ValueError, "at least 1, not 0"),
    (Vector2048Env, {"num_envs": 2.0}, TypeError, "must be an int"),
    (Vector2048Env, {"autoreset_mode": "SameStpe"}, ValueError, "SameStpe"),
    (duel_2048.Duel2048Env, {"board_size": 0}, ValueError, "board size must be from 3 to 8, not 0"),
    (duel_2048.Duel2048Env, {"target": 100}, ValueError, "power of two from 8 to 131072"),
    (duel_2048.Duel2048Env, {"points_scale": 0}, ValueError, "points_scale must be above 0, not 0"),
    (duel_2048.Duel2048Env, {"actions": "words"}, ValueError, "actions `words`"),
    (CodingEnv, {"reward": "fractions"}, ValueError, "did you mean `fraction`"),
    (coding_duel.CodingDuelEnv, {"actions": "discrete"}, ValueError, "cannot be numbered"),
    (coding_duel.CodingDuelEnv, {"actions": "words"}, ValueError, "actions `words`"),
    (coding_duel.CodingDuelEnv, {"tries": 0}, ValueError, "tries must be at least 1, not 0"),
    (coding_duel.CodingDuelEnv, {"hidden_weight": -1}, ValueError, "must be 0 or more, not -1"),
    (EmailEnv, {"reward": "shapd"}, ValueError, "did you mean `shaped`"),
    (EmailEnv, {"difficulty": 9}, ValueError, "no question of difficulty"),
    (EmailEnv, {"world_seed": -1}, ValueError, "0 or more"),
    (EmailEnv, {"split": "trian"}, KeyError, "did you mean `train`"),
]
every_game = pytest.mark.parametrize(("name", "options", "cycles"), GAMES)


@pytest.fixture(autouse=True)
def needed(request: pytest.FixtureRequest) -> None:
    if "Coding" in request.node.name:
        request.getfixturevalue("sandbox")


@pytest.mark.parametrize(("name", "options", "how"), TEXT_ENVS)
def test_the_contract_of_text_environments(name: str, options: dict[str, Any], how: dict[str, Any]) -> None:
    art_gym.check_text_env(gym.make(name, **options).unwrapped, publish=True, **how)


@pytest.mark.parametrize(("make", "options", "error", "words"), WRONG)
def test_wrong_arguments_are_named(
    make: Callable[..., Any], options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make(**options)


@pytest.mark.parametrize(("name", "options"), CHECKED_BY_GYMNASIUM)
def test_gymnasiums_check_passes_without_a_warning(
    name: str, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    gym.register("Checked-v0", gym.spec(name).entry_point, order_enforce=False, disable_env_checker=True)
    try:
        check_env(gym.make("Checked-v0", **options).unwrapped)
    finally:
        del gym.registry["Checked-v0"]


@every_game
def test_pettingzoo_finds_nothing_wrong(name: str, options: dict[str, Any], cycles: int) -> None:
    with no_other_warnings(MASK_AT_THE_END, UNEQUAL_SEATS):
        game = pettingzoo.make("aec", name, **options)
        assert str(game) == name.removeprefix("art/")
        api_test(game, num_cycles=3 * cycles)
        seed_test(lambda: pettingzoo.make("aec", name, **options), num_cycles=cycles)


@every_game
def test_stepped_all_at_once_pettingzoo_finds_nothing_wrong(
    name: str, options: dict[str, Any], cycles: int
) -> None:
    def make() -> Any:
        return pettingzoo.make("parallel", name, **options, patience=1)

    with no_other_warnings(MASK_AT_THE_END, UNEQUAL_SEATS):
        parallel_api_test(make(), num_cycles=cycles)
        parallel_seed_test(make, num_cycles=cycles)
    assert pettingzoo.make("parallel", name, max_cycles=7).unwrapped.max_cycles == 4


@every_game
def test_cycles_are_counted_as_pettingzoo_counts_them(
    name: str, options: dict[str, Any], cycles: int
) -> None:
    def making(make: Callable[..., Any], patience: int) -> Callable[..., Any]:
        # Random replies are mostly bad. With this patience they use up the turns of both seats.
        return lambda **more: make(**options, patience=patience, **more)

    first, second = (4, 2) if name == "art/CodingDuel-v0" else (1, 1)
    aec, parallel = (partial(pettingzoo.make, kind, name) for kind in ("aec", "parallel"))
    max_cycles_test(SimpleNamespace(env=making(aec, first), parallel_env=making(parallel, second)))


@pytest.mark.parametrize(
    ("name", "shown"), [("art/2048Duel-v0", "score 0"), ("art/CodingDuel-v0", "(no program yet)")]
)
def test_every_render_mode_passes_pettingzoo(
    name: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    render_test(lambda render_mode: pettingzoo.make("aec", name, render_mode=render_mode))
    assert shown in capsys.readouterr().out
