"""Whole games of ``art/2048Duel-v0``, in ``games.toml``: what is replied, shown and paid, turn by turn.

A game may begin with a ``board`` of tiles, for the slider or, if it has a ``tile``, for the placer. A turn
is a table of a ``reply``, parts of what it ``shows`` to the seat that replied and to the ``next`` one, the
``rewards`` of both seats, and a word of the ``error`` if the reply is refused. Without ``rewards`` nothing
is paid, but an ``error`` costs its penalty.

A game that has a ``success`` of each seat is over with its last turn, by truncation if it has
``truncated``; any other is not over, and may say which seat is ``to_move``. ``metrics`` are compared if
there are some.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from art_gym.games.aec import TextAECEnv
from tests.envs.playing import duel_at, over

GAMES = {
    game["name"]: game
    for game in tomllib.loads(Path(__file__).with_name("games.toml").read_text("utf-8"))["game"]
}


def play_turn(game: TextAECEnv, turn: dict[str, Any]) -> None:
    seat = game.agent_selection
    game.step(turn["reply"])
    for shown_to, key in ((seat, "shows"), (game.agent_selection, "next")):
        assert all(part in game.observe(shown_to)["text"] for part in turn.get(key, []))
    error = game.infos[seat].get("error", {"message": ""})["message"]
    assert turn.get("error", "") in error
    assert bool(error) == ("error" in turn)
    penalty = game.invalid_action_penalty if error else 0.0
    rewards = turn.get("rewards", [-penalty * (name == seat) for name in game.seats])
    assert [game.rewards[name] for name in game.seats] == pytest.approx(rewards)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.e2e] * ("slow" in GAMES[name])) for name in GAMES]
)
def test_a_game(name: str) -> None:
    table = GAMES[name]
    game = duel_at(table["board"], tile=table.get("tile", 0), **table.get("options", {}))
    for turn in table["turns"]:
        assert not over(game)
        play_turn(game, turn)
    infos = [game.infos[seat] for seat in game.seats]
    assert json.loads(json.dumps(infos)) == infos
    assert over(game) == ("success" in table)
    if over(game):
        assert any(game.truncations.values()) == table.get("truncated", False)
        assert [info["success"] for info in infos] == table["success"]
        for info, metrics in zip(infos, table.get("metrics", []), strict=False):
            assert info["metrics"] == info["metrics"] | metrics
    else:
        assert game.agent_selection == game.seats[table.get("to_move", 0)]
