"""The ids of the games that come with the project, for PettingZoo's registry."""

from __future__ import annotations

_MODULES = {
    "art/2048Duel-v0": "art_gym.envs.game_2048.duel",
    "art/CodingDuel-v0": "art_gym.envs.coding.duel",
    "classic/TicTacToe-v0": "art_gym.wrappers.adapters.tic_tac_toe",
    "classic/ConnectFour-v0": "art_gym.wrappers.adapters.connect_four",
    # Another library's, which is asked for when a game is made.
    "textarena/Game-v0": "art_gym.wrappers.adapters.textarena_game",
}
_ONE_AT_A_TIME = ("textarena/Game-v0",)
"""Who moves next is the game's secret there, so that all seats cannot be stepped at once."""


def register_games() -> None:
    """Register every game with PettingZoo; ids already there are left alone.

    Each is there as an AEC environment and, where code may step all seats at once, as a parallel one.

    Raises:
        ModuleNotFoundError: Where PettingZoo is not installed.
    """
    import pettingzoo  # type: ignore[import-untyped]

    for game_id, module in _MODULES.items():
        if game_id not in pettingzoo.aec_registry:
            pettingzoo.register("aec", game_id, entry_point=f"{module}:env")
        if game_id not in (*pettingzoo.parallel_registry, *_ONE_AT_A_TIME):
            pettingzoo.register("parallel", game_id, entry_point=f"{module}:parallel_env")
