"""One seat of a game as a Gymnasium environment, the other seats played by scripted players.

So whatever trains on a text environment, or evaluates on one, can do so in a game::

    game = pettingzoo.make("aec", "art/2048Duel-v0")
    env = SeatEnv(game, "slider_0", {"placer_1": "worst"})

Nothing here needs PettingZoo itself: a :class:`TextGame` is any object with its AEC interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import gymnasium as gym

from art_gym.baselines import Act, Baseline
from art_gym.errors import ResetNeededError, did_you_mean
from art_gym.spaces import UnicodeText


class TextGame(Protocol):
    """The part of PettingZoo's AEC interface that is used here; observations have text under ``"text"``."""

    possible_agents: list[str]
    agents: list[str]
    agent_selection: str
    infos: dict[str, dict[str, Any]]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start a game."""

    def last(self, observe: bool = True) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return observation, reward, terminated, truncated and info of the seat to move."""

    def step(self, action: Any) -> None:
        """Step with the reply of the seat to move; ``None`` for a seat whose game is over."""

    def close(self) -> None:
        """Close the game."""


def text_of(observation: object) -> str:
    """Return the text of a seat's observation: the observation itself, or its ``"text"``.

    Raises:
        TypeError: If there is no text.
    """
    found = observation.get("text") if isinstance(observation, Mapping) else observation
    if not isinstance(found, str):
        raise TypeError(
            'a game in text gives observations that are a str, or a dict with a str under "text", '
            f"not {type(observation).__name__}"
        )
    return found


def players_of(game: TextGame, seat: str) -> Mapping[str, Baseline]:
    """The scripted players that a game offers for a seat, by name; none for a game that offers none.

    Raises:
        ValueError: If the game has no such seat.
    """
    if seat not in game.possible_agents:
        raise ValueError(f"the game has no seat `{seat}`{did_you_mean(seat, game.possible_agents)}")
    players: Mapping[str, Mapping[str, Baseline]] = getattr(_unwrapped(game), "players", {})
    return players.get(seat, {})


def seat_baselines(game: TextGame, seat: str) -> dict[str, Baseline]:
    """The players of a seat as baselines of an environment that holds the game under ``game``."""
    return {name: _for_game(player) for name, player in players_of(game, seat).items()}


class SeatEnv(gym.Env[str, str]):
    """One seat of a game as a Gymnasium environment; scripted players take the other seats.

    ``reset`` plays the others up to the seat's first turn, ``step`` up to its next one or the game's end; the
    reward is all that the seat got in between. ``info`` is the game's own, see ``TextAECEnv``.

    Args:
        game: The game; it belongs to this environment from now on.
        seat: Who replies here.
        opponents: Who plays each other seat: a name of :func:`players_of`, or ``player(game, rng) -> act``.

    Raises:
        ValueError: If there is no such seat, one is left without a player, or there is no such player.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "human"], "render_fps": 1}  # noqa: RUF012 (Gymnasium's own)

    def __init__(self, game: TextGame, seat: str, opponents: Mapping[str, str | Baseline]) -> None:
        self.game = game
        self.seat = seat
        self.render_mode = getattr(game, "render_mode", None)
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self.baselines = seat_baselines(game, seat)
        self.tasks = getattr(_unwrapped(game), "tasks", None)
        for name in opponents:
            players_of(game, name)
        self._opponents = {
            name: _chosen(game, name, opponents) for name in game.possible_agents if name != seat
        }
        self._acts: dict[str, Act] = {}
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin a game: equal seeds give equal games, and opponents that draw equally.

        Returns:
            The seat's first observation, and its ``info``.

        Raises:
            RuntimeError: If the game ends before the seat's first turn.
        """
        super().reset(seed=seed)
        self.game.reset(seed=seed, options=options)
        self._acts = {
            name: player(_unwrapped(self.game), self.np_random.spawn(1)[0])
            for name, player in self._opponents.items()
        }
        observation, _, ended, _, info = self._to_own_turn()
        if ended:
            raise RuntimeError(f"the game ended before the first turn of {self.seat}")
        self._running = True
        return observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Reply, and let the others play on to the seat's next turn.

        Raises:
            ResetNeededError: Before ``reset`` or after the game's end.
        """
        if not self._running:
            raise ResetNeededError("call reset() first: no game is running")
        self.game.step(action)
        observation, reward, terminated, truncated, info = self._to_own_turn()
        self._running = not (terminated or truncated)
        return observation, reward, terminated, truncated, info

    def render(self) -> Any:
        """What the game renders."""
        return self.game.render()  # type: ignore[attr-defined]  # not every game does

    def close(self) -> None:
        """Close the game."""
        self.game.close()

    def _to_own_turn(self) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play the others until the seat is to move or has ended."""
        while True:
            name = self.game.agent_selection
            seen, reward, terminated, truncated, info = self.game.last()
            if name == self.seat:
                return text_of(seen), float(reward), bool(terminated), bool(truncated), dict(info)
            self.game.step(None if terminated or truncated else self._acts[name](text_of(seen)))


def _unwrapped(game: TextGame) -> Any:
    return getattr(game, "unwrapped", game)


def _for_game(player: Baseline) -> Baseline:
    return lambda env, rng: player(_unwrapped(env.game), rng)


def _chosen(game: TextGame, seat: str, opponents: Mapping[str, str | Baseline]) -> Baseline:
    if seat not in opponents:
        raise ValueError(f"no player for {seat}: name one in opponents")
    player = opponents[seat]
    if not isinstance(player, str):
        return player
    known = players_of(game, seat)
    if player not in known:
        raise ValueError(f"{seat} has no player `{player}`{did_you_mean(player, known) or ' or other'}")
    return known[player]
