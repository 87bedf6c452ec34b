import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pettingzoo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import (
    api_test,
    max_cycles_test,
    parallel_api_test,
    parallel_seed_test,
    render_test,
    seed_test,
)

import art_gym.games  # noqa: F401 (registers the duel)
from art_gym.envs.game_2048.board import ACTIONS, Rules
from art_gym.envs.game_2048.chance import Chance
from art_gym.envs.game_2048.duel import PLACER, SLIDER, Duel2048Env, env, parallel_env
from tests.art_gym.pettingzoo_warnings import MASK_AT_THE_END, UNEQUAL_SEATS, no_other_warnings

ID = "art/2048Duel-v0"


def started(seed: int = 0, **options: Any) -> Duel2048Env:
    game = Duel2048Env(**options)
    game.reset(seed=seed)
    return game


def at(rows: list[list[int]], *, tile: int = 0, **options: Any) -> Duel2048Env:
    """A game with the tiles of ``rows``; the slider is to move, or the placer, who has ``tile``."""
    game = started(board_size=len(rows), **options)
    game.board = game.rules.pack([value.bit_length() - 1 if value else 0 for row in rows for value in row])
    game.legal = game.rules.legal(game.board)
    game.tile = tile.bit_length() - 1 if tile else 0
    game.agent_selection = PLACER if tile else SLIDER
    return game


def over(game: Duel2048Env) -> bool:
    return any((*game.terminations.values(), *game.truncations.values()))


def play_out(game: Duel2048Env, slider: str, placer: str, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Let two scripted players play to the end; the seats' infos there."""
    rngs = np.random.default_rng(seed).spawn(2)
    acts = {
        SLIDER: game.players[SLIDER][slider](game, rngs[0]),
        PLACER: game.players[PLACER][placer](game, rngs[1]),
    }
    while not over(game):
        game.step(acts[game.agent_selection](""))
    return game.infos


# --- PettingZoo's own tests -----------------------------------------------------------------------------


@pytest.mark.parametrize("actions", ["text", "discrete"])
def test_pettingzoo_finds_nothing_wrong(actions: str) -> None:
    with no_other_warnings(MASK_AT_THE_END, UNEQUAL_SEATS):
        api_test(pettingzoo.make("aec", ID, actions=actions, max_cycles=50), num_cycles=300)
        seed_test(lambda: pettingzoo.make("aec", ID, actions=actions), num_cycles=100)


@pytest.mark.parametrize("actions", ["text", "discrete"])
def test_stepped_all_at_once_pettingzoo_finds_nothing_wrong(actions: str) -> None:
    def make() -> Any:
        return pettingzoo.make("parallel", ID, actions=actions, patience=1)

    with no_other_warnings(MASK_AT_THE_END, UNEQUAL_SEATS):
        parallel_api_test(make(), num_cycles=200)
        parallel_seed_test(make, num_cycles=100)


@pytest.mark.parametrize("actions", ["text", "discrete"])
def test_cycles_are_counted_as_pettingzoo_counts_them(actions: str) -> None:
    def making(make: Callable[..., Any]) -> Callable[..., Any]:
        # With a patience of 1 a bad reply moves the game on too, and random ones are mostly bad.
        return lambda **options: make(actions=actions, patience=1, **options)

    max_cycles_test(SimpleNamespace(env=making(env), parallel_env=making(parallel_env)))


def test_every_render_mode_passes_pettingzoo(capsys: pytest.CaptureFixture[str]) -> None:
    render_test(lambda render_mode: pettingzoo.make("aec", ID, render_mode=render_mode))
    assert "score 0" in capsys.readouterr().out
    picture = started(render_mode="rgb_array").render()
    assert picture.dtype == np.uint8
    assert picture.ndim == 3


def test_it_is_registered_with_both_interfaces() -> None:
    game = pettingzoo.make("aec", ID, board_size=3, target=64, max_cycles=7)
    assert isinstance(game, Duel2048Env)
    assert (game.rules.size, game.target, game.max_cycles) == (3, 64, 7)
    assert str(game) == "2048Duel-v0"
    assert pettingzoo.make("parallel", ID, max_cycles=7).unwrapped.max_cycles == 4


# --- the rules ------------------------------------------------------------------------------------------


KINDS = st.sampled_from(["text", "discrete"])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), size=st.sampled_from([3, 4, 5, 8]), kind=KINDS)
def test_every_ply_is_a_slide_or_a_tile(seed: int, size: int, kind: str) -> None:
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


def test_tiles_are_drawn_as_in_the_ordinary_game() -> None:
    for shared in (True, False):
        game = started(11, shared_chance=shared)
        chance = game._chance
        assert chance == Chance(chance.key, shared)
        for count in range(2, 40):
            legal = np.flatnonzero(game.legal)
            game.step(int(legal[0]))
            ordinary = game.rules.spawn(game.board, chance.draw(count, game.board))
            tile = sum(game.rules.exponents(ordinary)) - sum(game.exponents)
            assert game.tile == tile
            game.step(int(np.flatnonzero(game.legal_choices(PLACER))[-1]))
            if over(game):
                break


def test_nine_tiles_in_ten_are_a_two() -> None:
    tiles = []
    for number in range(300):
        game = started(number)
        for _ in range(10):
            game.step(int(np.flatnonzero(game.legal)[0]))
            tiles.append(game.tile)
            game.step(int(np.flatnonzero(game.legal_choices(PLACER))[0]))
    share = tiles.count(1) / len(tiles)
    assert abs(share - 0.9) < 4 * (0.9 * 0.1 / len(tiles)) ** 0.5


def test_a_placer_at_random_makes_the_ordinary_game() -> None:
    """Uniform random legal play scores 1,093.7 in the ordinary game, standard deviation about 531."""
    infos = [play_out(started(number), "random", "random", number) for number in range(300)]
    scores = [info[SLIDER]["metrics"]["score"] for info in infos]
    assert abs(np.mean(scores) - 1093.7) < 4 * 531 / len(scores) ** 0.5


def test_an_illegal_slide_and_a_wrong_cell_are_refused() -> None:
    game = at([[2, 0, 0], [0, 0, 0], [0, 0, 0]], target=64)
    game.step("left")
    assert "left is illegal" in game.observe(SLIDER)["text"]
    assert game.infos[SLIDER]["score_terms"] == {"invalid_action": -0.1}
    game.step("right")
    for reply, words in (("0", "there is no cell 0"), ("10", "from 1 to 9"), ("3", "cell 3 is taken")):
        game.step(reply)
        assert words in game.infos[PLACER]["error"]["message"]
    assert game.agent_selection == SLIDER, "after three bad replies a cell is drawn"


# --- the end --------------------------------------------------------------------------------------------


def test_making_the_target_is_the_slider_s_success() -> None:
    game = at([[32, 32, 0], [0, 0, 0], [0, 0, 0]], target=64, points_scale=10)
    game.step("left")
    assert game.terminations == {SLIDER: True, PLACER: True}
    assert {name: info["success"] for name, info in game.infos.items()} == {SLIDER: True, PLACER: False}
    assert game.infos[SLIDER]["score_terms"] == {"points": 6.4}
    assert game.infos[PLACER]["score_terms"] == {"points": -6.4}
    assert game.infos[PLACER]["metrics"] == {
        "turns": 0.0, "invalid_actions": 0.0, "score": 64.0, "best_tile": 64.0, "moves": 1.0
    }  # fmt: skip
    assert game.observe(PLACER)["text"].startswith(game.systems[PLACER])
    assert "The tile 64 is made: the slider wins." in game.observe(PLACER)["text"]


def test_a_board_without_a_slide_is_the_placer_s_success() -> None:
    game = at([[2, 4, 2], [4, 2, 4], [2, 4, 0]], tile=2, target=64)
    game.step("9")
    assert {name: info["success"] for name, info in game.infos.items()} == {SLIDER: False, PLACER: True}
    assert "No move is legal: the placer wins." in game.observe(SLIDER)["text"]


def test_a_turn_limit_is_nobody_s_success() -> None:
    game = started(max_cycles=5)
    infos = play_out(game, "greedy", "random")
    assert (game.truncations[PLACER], game.terminations[PLACER]) == (True, False)
    assert [info["success"] for info in infos.values()] == [False, False]
    assert infos[SLIDER]["metrics"]["moves"] == 5


# --- what the seats see ---------------------------------------------------------------------------------


def test_the_slider_reads_what_it_reads_in_the_ordinary_game() -> None:
    game = at([[2, 0, 0], [0, 16, 0], [0, 0, 4]], target=64)
    game.turns[SLIDER] = 1
    assert game.observe(SLIDER)["text"] == " 2  .  .\n . 16  .\n .  .  4\nscore 0\nlegal up right down left"


def test_the_placer_reads_the_cells_numbers_and_the_tile() -> None:
    game = at([[2, 0, 0], [0, 16, 0], [0, 0, 4]], tile=4, target=64)
    game.turns[PLACER] = 1
    assert game.observe(PLACER)["text"] == "  2 [2] [3]\n[4]  16 [6]\n[7] [8]   4\nscore 0\ntile 4"
    assert game.observe(PLACER)["observation"].tolist() == [
        [[1, 0, 0], [0, 4, 0], [0, 0, 2]],
        [[2, 2, 2]] * 3,
    ]


def test_equal_seeds_give_equal_games() -> None:
    boards = []
    for number in (1, 1, 2):
        game = started(number)
        play_out(game, "greedy", "worst")
        boards.append(game.board)
    assert boards[0] == boards[1] != boards[2]


# --- scripted players -----------------------------------------------------------------------------------


@pytest.mark.parametrize("slider", sorted(Duel2048Env.players[SLIDER]))
@pytest.mark.parametrize("placer", sorted(Duel2048Env.players[PLACER]))
def test_scripted_players_make_no_bad_move(slider: str, placer: str) -> None:
    infos = play_out(started(3, board_size=3, target=256), slider, placer)
    assert [info["metrics"]["invalid_actions"] for info in infos.values()] == [0, 0]


def test_the_worst_cell_leaves_the_fewest_slides() -> None:
    game = at([[2, 4, 0], [4, 2, 0], [8, 16, 2]], tile=4, target=64)
    act = game.players[PLACER]["worst"](game, np.random.default_rng(0))
    left = {cell: sum(game.rules.legal(game.rules.place(game.board, cell - 1, game.tile))) for cell in (3, 6)}
    assert left == {3: 4, 6: 2}
    assert act("") == "6"


def test_the_worst_placer_is_worse_for_the_slider() -> None:
    def mean(placer: str) -> float:
        infos = [play_out(started(number), "greedy", placer, number)[SLIDER] for number in range(20)]
        return float(np.mean([info["metrics"]["score"] for info in infos]))

    assert mean("worst") < 0.8 * mean("random")


# --- misuse ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "fault", "words"),
    [
        ({"board_size": 0}, ValueError, "board size must be from 3 to 8, not 0"),
        ({"target": 100}, ValueError, "target must be a power of two from 8 to 131072"),
        ({"target": 2048, "board_size": 3}, ValueError, "from 8 to 1024 on a board of size 3, not 2048"),
        ({"target": 64.0}, TypeError, "target must be an int such as 2048, not 64.0"),
        ({"points_scale": 0}, ValueError, "points_scale must be above 0, not 0"),
        ({"actions": "words"}, ValueError, "actions `words`"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], fault: type, words: str) -> None:
    with pytest.raises(fault, match=words):
        Duel2048Env(**options)


def test_directions_are_the_discrete_actions_in_order() -> None:
    assert Duel2048Env(actions="discrete").choices(SLIDER) == ACTIONS
    for number, direction in enumerate(ACTIONS):
        one, other = started(4, actions="discrete"), started(4)
        one.step(number)
        other.step(direction)
        assert one.board == other.board
