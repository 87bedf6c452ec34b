"""``textarena/Solo-v0``: a game of TextArena for one player, by its id there.

TextArena's ``reset`` seeds the global ``random`` and its games draw from it, and its default wrappers show
all earlier messages, of earlier episodes too. Here each environment keeps a random state of its own, games
are made without wrappers (their ``-raw`` ids), and an observation is what is new.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from art_gym.baselines import Act, Baseline
from art_gym.wrappers.adapters.common import FreeTextEnv, import_optional, require_known
from art_gym.wrappers.isolated_random import IsolatedRandom
from art_gym.wrappers.text_adapter import TextAdapter

_RAW = "-raw"
_ECHO = "PLAYER_ACTION"
"""The kind of a message that repeats the player's own reply."""
_MOVE = re.compile(r"\[[^\[\]\n]{1,20}\]")


def _bracketed(env: TextArenaSoloEnv, rng: np.random.Generator) -> Act:
    """Any move that the game has shown in brackets, with other digits, also in place of row and column."""
    shown: list[str] = []

    def act(observation: str) -> str:
        shown.extend(move for move in _MOVE.findall(observation) if move not in shown)
        move = shown[int(rng.integers(len(shown)))] if shown else "pass"
        return re.sub(r"\d|row|col\b", lambda place: str(rng.integers(10)), move)

    return act


def _make_game(game_id: str, **arguments: Any) -> Any:
    """Make a game of TextArena without its wrappers."""
    library = import_optional("textarena", "textarena")
    registry = import_optional("textarena.envs.registration", "textarena").ENV_REGISTRY
    games = [name.removesuffix(_RAW) for name in registry if name.endswith(_RAW)]
    game_id = game_id.removesuffix(_RAW)
    require_known("TextArena", "game", game_id, games)
    with IsolatedRandom().active(0):
        return library.make(game_id + _RAW, **arguments)


class TextArenaEnv(FreeTextEnv):
    """A game of TextArena for one player, with Gymnasium's interface.

    The whole reward comes with the last step. A game that ends because its turn limit is reached terminates:
    TextArena does not distinguish the two.
    """

    def __init__(self, game: Any) -> None:
        super().__init__()
        self.game = game

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin a game; the global random state is seeded, as TextArena does."""
        self.game.reset(num_players=1, seed=seed)
        return self._news(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a reply."""
        done, _ = self.game.step(action)
        text = self._news()
        if not done:
            return text, 0.0, False, False, {}
        rewards, results = self.game.close()
        reward = float(rewards[0])
        ending = str(results[0].get("reason") or "")
        text = f"{text}\n{ending}" if text and ending not in text else text or ending
        return text, reward, True, False, {"success": reward >= 1}

    def _news(self) -> str:
        """What is new to the player, as text."""
        messages = self.game.get_observation()[1]
        return "\n".join(text.strip() for _, text, kind in messages if kind.name != _ECHO)


class TextArenaSoloEnv(TextAdapter):
    """Play a game of TextArena for one player.

    Args:
        game: TextArena's id, such as ``"GuessTheNumber-v0"``.
        max_turns: Replies in an episode.
        render_mode: As in every ``TextEnv``.
        arguments: The game's own.

    Raises:
        ModuleNotFoundError: If TextArena is missing.
        ValueError: If it has no such game.
    """

    baselines: ClassVar[Mapping[str, Baseline]] = {"random": _bracketed}

    def __init__(
        self,
        game: str = "GuessTheNumber-v0",
        *,
        max_turns: int | None = None,
        render_mode: str | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(
            TextArenaEnv(_make_game(game, **arguments)),
            max_turns=max_turns,
            isolated_random=True,
            render_mode=render_mode,
        )
