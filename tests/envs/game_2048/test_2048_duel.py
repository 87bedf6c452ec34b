"""``art/2048Duel-v0``: one slides, the other places the tiles."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_gym.envs.game_2048.duel import PLACER, SLIDER, Duel2048Env
from art_gym.envs.game_2048.rules.board import ACTIONS, Rules
from art_gym.envs.game_2048.rules.tile_rng import TileRng
from tests.envs.playing import duel_at, over, play_game


def started(seed: int = 0, **options: Any) -> Duel2048Env:
    game = Duel2048Env(**options)
    game.reset(seed=seed)
    return game


def play_out(game: Duel2048Env, slider: str, placer: str, seed: int = 0) -> dict[str, float]:
    """Let two scripted players play to the end; the slider's metrics."""
    play_game(game, {SLIDER: slider, PLACER: placer}, seed)
    metrics: dict[str, float] = game.infos[SLIDER]["metrics"]
    return metrics


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**31), size=st.sampled_from([3, 4, 5, 8]), kind=st.sampled_from(["text", "discrete"])
)
def test_every_turn_is_a_slide_or_a_tile(seed: int, size: int, kind: str) -> None:
    game = started(seed, board_size=size, target=2 ** (size * size + 1), actions=kind, max_cycles=40)
    rng = np.random.default_rng(seed)
    rules = Rules.of(size)
    assert sorted(filter(None, game.exponents)) in ([1, 1], [1, 2], [2, 2])
    score = 0
    while not over(game):
        name, before, tile = game.agent_selection, game.board, game.tile
        seen = game.observe(name)
        assert game.observation_space(name).contains(seen)
        legal = np.flatnonzero(game.legal_choices(name))
        choice = int(legal[rng.integers(legal.size)])
        assert seen["observation"][0].reshape(-1).tolist() == list(rules.exponents(before))
        assert np.all(seen["observation"][1] == tile)
        if kind == "discrete":
            assert np.flatnonzero(seen["action_mask"]).tolist() == legal.tolist()
        game.step(choice)
        assert "error" not in game.infos[name]
        if name == SLIDER:
            after, points = rules.slide(before, choice)
            assert after == game.board != before
            assert game.rewards == {SLIDER: points / 100, PLACER: -points / 100}
            assert game.tile in (1, 2)
            score += points
        else:
            assert game.board == rules.place(before, choice, tile)
            assert game.tile == 0
        assert game.score == score
    assert json.loads(json.dumps(game.infos)) == game.infos


@pytest.mark.parametrize("shared", [True, False])
def test_tiles_are_drawn_as_in_the_ordinary_game(shared: bool) -> None:
    game = started(11, shared_chance=shared)
    chance = game._tile_rng
    assert chance == TileRng(chance.key, shared)
    for count in range(2, 40):
        game.step(int(np.flatnonzero(game.legal)[0]))
        ordinary = game.rules.spawn(game.board, chance.draw(count, game.board))
        assert game.tile == sum(game.rules.exponents(ordinary)) - sum(game.exponents)
        game.step(int(np.flatnonzero(game.legal_choices(PLACER))[-1]))
        if over(game):
            break


def test_a_turn_limit_is_nobodys_success() -> None:
    game = started(max_cycles=5)
    assert play_out(game, "greedy", "random")["moves"] == 5
    assert (game.truncations[PLACER], game.terminations[PLACER]) == (True, False)
    assert not any(info["success"] for info in game.infos.values())


@pytest.mark.parametrize("slider", sorted(Duel2048Env.players[SLIDER]))
@pytest.mark.parametrize("placer", sorted(Duel2048Env.players[PLACER]))
def test_scripted_players_make_no_bad_move(slider: str, placer: str) -> None:
    play_out(started(3, board_size=3, target=256), slider, placer)


def test_the_worst_cell_leaves_the_fewest_slides() -> None:
    game = duel_at([[2, 4, 0], [4, 2, 0], [8, 16, 2]], tile=4)
    left = {cell: sum(game.rules.legal(game.rules.place(game.board, cell - 1, game.tile))) for cell in (3, 6)}
    assert left == {3: 4, 6: 2}
    assert game.players[PLACER]["worst"](game, np.random.default_rng(0))("") == "6"


@pytest.mark.e2e
def test_a_placer_at_random_makes_the_ordinary_game_and_the_worst_placer_a_harder_one() -> None:
    """Uniform random legal play scores 1,093.7 in the ordinary game, standard deviation about 531."""
    infos = [play_out(started(number), "random", "random", number)["score"] for number in range(300)]
    assert abs(np.mean(infos) - 1093.7) < 4 * 531 / len(infos) ** 0.5
    means = [
        np.mean([play_out(started(number), "greedy", placer, number)["score"] for number in range(20)])
        for placer in ("worst", "random")
    ]
    assert means[0] < 0.8 * means[1]


def test_directions_are_the_discrete_actions_in_order() -> None:
    for number, direction in enumerate(ACTIONS):
        one, other = started(4, actions="discrete"), started(4)
        one.step(number)
        other.step(direction)
        assert one.board == other.board
