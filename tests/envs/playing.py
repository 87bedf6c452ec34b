"""Episodes and games of the players that environments bring along."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from art_gym.baselines import play_on
from art_gym.env import TextEnv
from art_gym.envs.game_2048.duel import PLACER, SLIDER, Duel2048Env
from art_gym.games.aec import TextAECEnv


def last_info(env: TextEnv, player: str, seed: int = 0, **options: Any) -> dict[str, Any]:
    """The ``info`` at the end of an episode without an invalid action."""
    observation, _ = env.reset(seed=seed, options=options)
    act = {**env.baselines, **env.teachers}[player](env, np.random.default_rng(seed))
    *_, (*_, info) = play_on(env, act, observation)
    assert info["metrics"]["invalid_actions"] == 0
    return info


def play_game(game: TextAECEnv, players: Mapping[str, str], seed: int = 0) -> list[str]:
    """Let a scripted player for each seat play to the end without an invalid action; what they were shown."""
    rngs = np.random.default_rng(seed).spawn(len(players))
    acts = {
        seat: game.players[seat][player](game, rng)
        for (seat, player), rng in zip(players.items(), rngs, strict=True)
    }
    shown = []
    while not over(game):
        seat = game.agent_selection
        shown.append(game.observe(seat)["text"])
        game.step(acts[seat](shown[-1]))
    assert not any(info["metrics"]["invalid_actions"] for info in game.infos.values())
    return shown + [game.observe(seat)["text"] for seat in game.seats]


def over(game: TextAECEnv) -> bool:
    return any((*game.terminations.values(), *game.truncations.values()))


def duel_at(rows: list[list[int]], *, tile: int = 0, **options: Any) -> Duel2048Env:
    """A duel at 2048 with the tiles of ``rows``; the slider is to move, or the placer, who has ``tile``."""
    game = Duel2048Env(board_size=len(rows), **{"target": 64} | options)
    game.reset(seed=0)
    game.board = game.rules.pack([value.bit_length() - 1 if value else 0 for row in rows for value in row])
    game.legal = game.rules.legal(game.board)
    game.tile = tile.bit_length() - 1 if tile else 0
    game.agent_selection = PLACER if tile else SLIDER
    return game
