"""The ids of the games that come with the project, for PettingZoo's registry."""

from __future__ import annotations

_MODULES = {
    "art/2048Duel-v0": "art_gym.envs.game_2048.duel",
    "art/CodingDuel-v0": "art_gym.envs.coding.duel",
    "classic/TicTacToe-v0": "art_gym.wrappers.adapters.tic_tac_toe",
    "classic/ConnectFour-v0": "art_gym.wrappers.adapters.connect_four",
}


def register_games() -> None:
    """Register every game with PettingZoo; ids already there are left alone.

    Each is there as an AEC environment and, for code that steps all seats at once, as a parallel one.

    Raises:
        ModuleNotFoundError: Where PettingZoo is not installed.
    """
    import pettingzoo  # type: ignore[import-untyped]

    for game_id, module in _MODULES.items():
        if game_id not in pettingzoo.aec_registry:
            pettingzoo.register("aec", game_id, entry_point=f"{module}:env")
        if game_id not in pettingzoo.parallel_registry:
            pettingzoo.register("parallel", game_id, entry_point=f"{module}:parallel_env")
