"""Environments that are made once and played many times."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import gymnasium as gym

TextEnvironment = gym.Env[str, str]
MakeEnv = Callable[[], TextEnvironment]


class EnvPool:
    """Environments that are made once and used by one episode after the other.

    Args:
        make_env: Makes one environment with text observations and text actions.
    """

    def __init__(self, make_env: MakeEnv) -> None:
        self._make_env = make_env
        self._free: list[TextEnvironment] = []

    def take(self) -> TextEnvironment:
        """An environment nobody uses."""
        return self._free.pop() if self._free else self._make_env()

    def give_back(self, env: TextEnvironment) -> None:
        """Make an environment available again."""
        self._free.append(env)

    def close(self) -> None:
        """Close the environments that nobody uses."""
        while self._free:
            self._free.pop().close()

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
