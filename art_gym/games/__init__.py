"""Games with several seats: PettingZoo AEC environments in text, and one seat as a Gymnasium environment.

``TextAECEnv``, ``MoveResult`` and ``seat`` need PettingZoo, which is imported when they are first used.
"""

from __future__ import annotations

from typing import Any

from art_gym.games.seats import SeatEnv, TextGame, players_of

__all__ = ["MoveResult", "SeatEnv", "TextAECEnv", "TextGame", "players_of", "seat"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from art_gym.games import aec

        return getattr(aec, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
