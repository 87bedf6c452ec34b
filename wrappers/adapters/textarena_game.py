"""``textarena/Game-v0``: a game of TextArena for two players, for self-play and against each other.

It is an AEC environment of PettingZoo, one player acting at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pettingzoo  # type: ignore[import-untyped]
from gymnasium import Space, spaces

from art_gym.env import Baseline
from art_gym.errors import ResetNeededError
from art_gym.spaces import UnicodeText
from art_gym.wrappers.adapters.textarena_env import make_game, text_for
from art_gym.wrappers.isolated_random import IsolatedRandom

SEATS = ("player_0", "player_1")


class TextArenaGame(pettingzoo.AECEnv):  # type: ignore[misc]  # PettingZoo has no type hints
    """A game of TextArena for two, with a seat for each player.

    A seat's observation is ``{"text": what is new to it}``. Rewards come at the end; the better paid seat has
    succeeded. TextArena forgives one bad reply in a row, and a second one loses the game.

    Args:
        game: TextArena's id, such as ``"TicTacToe-v0"``.
        max_cycles: The game is truncated when a seat that has replied so often would be to move again.
        render_mode: None is there.
        arguments: The game's own.

    Raises:
        ModuleNotFoundError: If TextArena is missing.
        ValueError: If it has no such game.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "TextArenaGame",
        "render_modes": [],
        "is_parallelizable": False,
    }
    players: ClassVar[Mapping[str, Mapping[str, Baseline]]] = {}

    def __init__(
        self,
        game: str = "TicTacToe-v0",
        *,
        max_cycles: int = 100,
        render_mode: None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        if max_cycles < 1:
            raise ValueError(f"max_cycles must be at least 1, not {max_cycles}")
        if render_mode is not None:
            raise ValueError(f"TextArena's games show nothing, so render_mode is None, not {render_mode!r}")
        self.game = make_game(game, **arguments)
        self.game_id, self.max_cycles = game, max_cycles
        self.render_mode = render_mode
        self.possible_agents = list(SEATS)
        self.agents: list[str] = []
        self.agent_selection = SEATS[0]
        self.observation_spaces = {name: spaces.Dict({"text": UnicodeText()}) for name in SEATS}
        self.action_spaces = {name: UnicodeText() for name in SEATS}
        self.turns: dict[str, int] = {}
        self._random = IsolatedRandom()

    def observation_space(self, agent: str) -> Space[Any]:
        """A seat's observation space, always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        """A seat's action space, always the same object."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin a game.

        Args:
            seed: The same seed gives the same game.
            options: TextArena's games have none.
        """
        with self._random.active(seed):
            self.game.reset(num_players=2, seed=seed)
        self.agents = list(SEATS)
        self.rewards = dict.fromkeys(SEATS, 0.0)
        self._cumulative_rewards = dict.fromkeys(SEATS, 0.0)
        self.terminations = dict.fromkeys(SEATS, False)
        self.truncations = dict.fromkeys(SEATS, False)
        self._skip_agent_selection = None  # PettingZoo's, of a game that was left at its end
        self.turns = dict.fromkeys(SEATS, 0)
        self.infos = {name: {"task_id": self.game_id, "turn": 0} for name in SEATS}
        self._news = dict.fromkeys(SEATS, "")
        self._hear()

    def observe(self, agent: str) -> dict[str, str]:
        """What is new to a seat since its last reply."""
        return {"text": self._news[agent]}

    def step(self, action: str | None) -> None:
        """Let the seat to move reply; at the game's end let it leave with ``None``."""
        if not self.agents:
            raise ResetNeededError("call reset() first: no game is running")
        name = self.agent_selection
        if self.terminations[name] or self.truncations[name]:
            self._was_dead_step(action)
            return
        if not isinstance(action, str):
            raise TypeError(f"an action is a reply as a str, not {type(action).__name__}")
        self._news[name] = ""
        self.turns[name] += 1
        self.infos[name] = {**self.infos[name], "turn": self.turns[name]}
        with self._random.active():
            done, _ = self.game.step(action)
        self._hear()
        if done:
            self._end()
        elif self.turns[self.agent_selection] >= self.max_cycles:
            self.truncations = dict.fromkeys(SEATS, True)
            self._close_infos({})

    def render(self) -> None:
        """Nothing is shown."""

    def close(self) -> None:
        """Nothing is held."""

    def __str__(self) -> str:
        return f"textarena/{self.game_id}"

    def _hear(self) -> None:
        """Hand out the new messages, and find the seat to move."""
        state = self.game.state
        for player, name in enumerate(SEATS):
            text = text_for(state.observations[player], player)
            state.observations[player] = []
            self._news[name] = "\n".join(filter(None, (self._news[name], text)))
        self.agent_selection = SEATS[state.current_player_id]

    def _end(self) -> None:
        rewards, results = self.game.close()
        self.terminations = dict.fromkeys(SEATS, True)
        for player, name in enumerate(SEATS):
            self.rewards[name] = float(rewards[player])
            reason = str(results[player].get("reason") or "")
            self._news[name] = "\n".join(filter(None, (self._news[name], reason)))
        self._accumulate_rewards()
        self._close_infos(self.rewards)

    def _close_infos(self, rewards: Mapping[str, float]) -> None:
        best = max(rewards.values(), default=0.0)
        for name in SEATS:
            mine = rewards.get(name, 0.0)
            self.infos[name] |= {
                "success": mine == best and any(other < best for other in rewards.values()),
                "score_terms": {"env": mine},
                "metrics": {"turns": float(self.turns[name])},
            }
