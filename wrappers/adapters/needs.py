"""What all adapters to other libraries share: importing them late, and texts as actions."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import gymnasium as gym

from art_gym.spaces import UnicodeText


def needed(module: str, install: str) -> ModuleType:
    """Import a library that an adapter needs.

    Args:
        module: The module.
        install: What ``pip install`` calls it.

    Raises:
        ModuleNotFoundError: Where it is missing, or something that it needs; names the ``pip install``.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"this environment needs {module}, which cannot be imported ({missing}): pip install {install}",
            name=missing.name,
        ) from missing


class FreeText(gym.Env[str, str]):
    """Gymnasium's interface for an environment of free text that has another one."""

    def __init__(self) -> None:
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode."""
        raise NotImplementedError

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a reply."""
        raise NotImplementedError
