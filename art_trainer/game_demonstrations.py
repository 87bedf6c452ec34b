"""Supervised learning from the scripted players of a game's seats, before self-play.

A model that never makes a valid move by chance learns nothing from its games. Imitating players that move at
random already teaches it the moves there are, and nothing about which of them are good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from art_gym.errors import did_you_mean
from art_gym.seats import players_of
from art_trainer.demonstrations import collect_demonstrations
from art_trainer.episodes import Episode
from art_trainer.errors import ConfigError
from art_trainer.game_rollout import MakeGame
from art_trainer.imitation import ImitationConfig, imitate
from art_trainer.policy import TrainablePolicy
from art_trainer.self_play import opponents_of, seat_env_maker
from art_trainer.starts import Start


def imitate_players(
    policy: TrainablePolicy,
    make_game: MakeGame,
    seats: Sequence[str],
    player: str,
    *,
    episodes: int,
    seed: int,
    config: ImitationConfig | None = None,
    on_step: Callable[[dict[str, float]], None] | None = None,
) -> list[float]:
    """Train a policy to reply as a scripted player does in each of some seats.

    Args:
        policy: Trained in place.
        make_game: Makes a game.
        seats: The seats that the policy plays.
        player: The name of a scripted player that each of them has.
        episodes: How many games of each seat are played; the other seats' players take turns against it.
        seed: The same seed gives the same weights.
        config: How the replies are learned.
        on_step: As for :func:`~art_trainer.imitation.imitate`.

    Returns:
        The loss of each optimizer step before it was taken, nats per token.

    Raises:
        ConfigError: Where a seat has no such player, or nobody plays the others.
        ValueError: Where all episodes failed.
    """
    shown: list[Episode] = []
    for place, seat in enumerate(seats):
        with closing(make_game()) as game:
            known = players_of(game, seat)
        if player not in known:
            raise ConfigError(f"warm start: {seat} has no player `{player}`{did_you_mean(player, known)}")
        opponents = opponents_of(make_game, seat)
        if not opponents:
            raise ConfigError(f"nobody plays against {seat}: the game has no scripted players for the others")
        for turn, opponent in enumerate(opponents):
            count = len(range(turn, episodes, len(opponents)))
            drawn = np.random.SeedSequence(seed, spawn_key=(place, turn)).generate_state(count)
            starts = [Start(int(s), rng_seed=(seed, place, turn, number)) for number, s in enumerate(drawn)]
            shown += collect_demonstrations(policy, seat_env_maker(make_game, seat, opponent), player, starts)
    return imitate(policy, shown, config, rng=np.random.default_rng(seed), on_step=on_step)
