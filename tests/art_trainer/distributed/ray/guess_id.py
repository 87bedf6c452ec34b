"""Registers guess-the-number under an id, for the processes of actors; and one that ends its process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym

from tests.art_trainer.guess import GuessEnv


class StrikingGuessEnv(GuessEnv):
    """Sends its own process a signal at some seeds, once each, and writes which process it was."""

    def __init__(self, folder: str, signals: dict[int, int]) -> None:
        super().__init__()
        self._folder = Path(folder)
        self._signals = signals

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        number = self._signals.get(seed or 0)
        if number is not None:
            try:
                with (self._folder / str(seed)).open("x") as file:
                    file.write(str(os.getpid()))
                os.kill(os.getpid(), number)
            except FileExistsError:
                pass
        return super().reset(seed=seed, options=options)


SIGNALS = {100: signal.SIGKILL, 102: signal.SIGSTOP}
gym.register("guess/Guess-v0", GuessEnv, order_enforce=False, disable_env_checker=True)
gym.register(
    "guess/Striking-v0",
    StrikingGuessEnv,
    order_enforce=False,
    disable_env_checker=True,
    kwargs={"signals": SIGNALS},
)
