"""``textarena/Solo-v0``: a game of TextArena for one player, by its id there.

TextArena's ``reset`` seeds the global ``random`` and its games draw from it, and its default wrappers show
all earlier messages, of earlier episodes too. Here each environment keeps a random state of its own, games
are made without wrappers (their ``-raw`` ids), and an observation is what is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from art_gym.wrappers.adapters.common import FreeTextEnv, import_optional, require_known
from art_gym.wrappers.isolated_random import IsolatedRandom
from art_gym.wrappers.text_adapter import TextAdapter

_RAW = "-raw"
_ECHO = "PLAYER_ACTION"
_GAME = -1


def make_game(game_id: str, **arguments: Any) -> Any:
    """Make a game of TextArena without its wrappers.

    Args:
        game_id: TextArena's id, such as ``"GuessTheNumber-v0"``.
        arguments: The game's own.
    """
    library = import_optional("textarena", "textarena")
    registry = import_optional("textarena.envs.registration", "textarena").ENV_REGISTRY
    games = [name.removesuffix(_RAW) for name in registry if name.endswith(_RAW)]
    game_id = game_id.removesuffix(_RAW)
    require_known("TextArena", "game", game_id, games)
    with IsolatedRandom().active(0):
        return library.make(game_id + _RAW, **arguments)


def text_for(messages: Sequence[tuple[int, str, Any]], player: int) -> str:
    """The messages to a player as text: everything but their own replies.

    Args:
        messages: TextArena's messages: who, what, and the kind.
        player: To whom.
    """
    lines = [
        message if sender == _GAME else f"[Player {sender}] {message}"
        for sender, message, kind in messages
        if not (sender == player and kind.name == _ECHO)
    ]
    return "\n".join(line.strip() for line in lines)


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
        return text_for(self.game.get_observation()[1], 0), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a reply."""
        done, _ = self.game.step(action)
        text = text_for(self.game.get_observation()[1], 0)
        if not done:
            return text, 0.0, False, False, {}
        rewards, results = self.game.close()
        reward = float(rewards[0])
        ending = str(results[0].get("reason") or "")
        text = f"{text}\n{ending}" if text and ending not in text else text or ending
        return text, reward, True, False, {"success": reward >= 1}


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

    def __init__(
        self,
        game: str = "GuessTheNumber-v0",
        *,
        max_turns: int | None = None,
        render_mode: str | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(
            TextArenaEnv(make_game(game, **arguments)),
            max_turns=max_turns,
            isolated_random=True,
            render_mode=render_mode,
        )
