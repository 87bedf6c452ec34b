"""Whole games of two, in ``*/games.toml``: what is replied, shown and paid, turn by turn.

A coding duel may begin with the ``solution`` that the solver submits; one of 2048 begins with a ``board``
of tiles, for the slider or, if it has a ``tile``, for the placer. A turn is a table of a ``reply``, parts
of what it ``shows`` to the seat that replied and to the ``next`` one, the ``rewards`` of both seats, and
a word of the ``error`` if the reply is refused. Without ``rewards`` nothing is paid, but an ``error`` costs
its penalty.

A game that has a ``success`` of each seat is over with its last turn, by truncation if it has
``truncated``; any other is not over, and may say which seat is ``to_move``. ``metrics`` are compared if
there are some.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from art_gym.envs.coding.duel.env import CodingDuelEnv
from art_gym.games.aec import TextAECEnv
from tests.envs.coding.tasks import DUEL_PROBLEMS
from tests.envs.playing import duel_at, over

GAMES = {
    f"{path.parent.name}: {game['name']}": (path.parent.name, game)
    for path in sorted(Path(__file__).parent.glob("*/games.toml"))
    for game in tomllib.loads(path.read_text("utf-8"))["game"]
}


def begin(table: dict[str, Any]) -> TextAECEnv:
    options = table.get("options", {})
    if "board" in table:
        return duel_at(table["board"], tile=table.get("tile", 0), **options)
    game = CodingDuelEnv(problems=[DUEL_PROBLEMS[table["problem"]]], **options)
    game.reset(seed=0)
    if "solution" in table:
        game.step(f"submit\n```python\n{table['solution']}\n```")
    return game


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
    "name", [pytest.param(name, marks=[pytest.mark.e2e] * ("slow" in GAMES[name][1])) for name in GAMES]
)
def test_a_game(name: str, request: pytest.FixtureRequest) -> None:
    folder, table = GAMES[name]
    if folder == "coding":
        request.getfixturevalue("sandbox")
    game = begin(table)
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
