"""What every environment of the package keeps: the text contract, Gymnasium's and PettingZoo's tests."""

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
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
from art_gym.envs.coding.env import CodingEnv
from art_gym.envs.game_2048 import duel as duel_2048
from art_gym.envs.game_2048.array_env import Array2048Env
from art_gym.envs.game_2048.env import Game2048Env
from art_gym.envs.game_2048.vector.vector_env import Vector2048Env
from art_gym.envs.mail.env import EmailEnv
from art_gym.errors import UnknownTaskError
from tests.art_gym.pettingzoo_warnings import MASK_AT_THE_END, UNEQUAL_SEATS, no_other_warnings

CLASSES = (Game2048Env, Array2048Env, Vector2048Env, duel_2048.Duel2048Env, CodingEnv, EmailEnv)
REFUSED = tomllib.loads(Path(__file__).with_name("contracts.toml").read_text("utf-8"))
TEXT_ENVS, CHECKED_BY_GYMNASIUM, GAMES = (REFUSED[name] for name in ("text", "gymnasium", "games"))
WRONG = [(made, *row) for made in CLASSES for row in REFUSED[made.__name__]]
WRONG += [(made, *row) for made in CLASSES[:3] for row in REFUSED["2048"]]
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
    make: Callable[..., Any], options: dict[str, Any], error: str, words: str
) -> None:
    with pytest.raises((ValueError, TypeError, UnknownTaskError), match=words) as raised:
        make(**options)
    assert raised.type.__name__ == error


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
    # Random replies are mostly bad. With this patience they use up the turns of both seats.
    aec, parallel = (
        partial(pettingzoo.make, kind, name, **options, patience=1) for kind in ("aec", "parallel")
    )
    max_cycles_test(SimpleNamespace(env=aec, parallel_env=parallel))


def test_every_render_mode_passes_pettingzoo(capsys: pytest.CaptureFixture[str]) -> None:
    render_test(lambda render_mode: pettingzoo.make("aec", "art/2048Duel-v0", render_mode=render_mode))
    assert "score 0" in capsys.readouterr().out
