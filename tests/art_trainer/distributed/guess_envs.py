"""Guess-the-number for other processes: as it is, held by a gate, and one that stops its own process."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym

from tests.art_trainer.guess import GuessEnv

MODULE = "tests.art_trainer.distributed.guess_envs"
GATE = "ART_TEST_GATE"
"""Names the file that a :class:`GatedGuessEnv` waits for."""
SIGNALS = {100: signal.SIGKILL, 102: signal.SIGSTOP}


class GatedGuessEnv(GuessEnv):
    """Says so when a step begins, and takes it when the gate's file is there, if there is a gate."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if GATE in os.environ:
            gate = Path(os.environ[GATE])
            gate.with_name("reached").touch()
            while not gate.exists():
                time.sleep(0.01)
        return super().step(action)


class StrikingGuessEnv(GuessEnv):
    """Sends its own process a signal at some seeds, once each, and writes which process it was."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = Path(folder)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        if seed in SIGNALS:
            with suppress(FileExistsError), (self._folder / str(seed)).open("x") as file:
                print(os.getpid(), end="", file=file, flush=True)
                os.kill(os.getpid(), SIGNALS[seed])
        return super().reset(seed=seed, options=options)


for name, env in {"Guess": GuessEnv, "Gated": GatedGuessEnv, "Striking": StrikingGuessEnv}.items():
    gym.register(f"guess/{name}-v0", env, order_enforce=False, disable_env_checker=True)
