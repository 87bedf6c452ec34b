"""``HistoryWindow``: the latest turns in every observation, for policies without memory."""

from __future__ import annotations

from collections import deque
from typing import Any, SupportsFloat

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from art_gym.base import fit_text
from art_gym.spaces import UnicodeText


class HistoryWindow(gym.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Show the first observation and the latest turns in every observation.

    A text environment shows its task once and then only what is new, as in a conversation. A policy that
    gets one observation at a time and remembers nothing needs the rest too. It gets::

        the first observation, with the instructions and the task

        [2 earlier turns left out]

        > the reply before the last
        what was seen upon it

        > the last reply
        what was seen upon it

    The observation space stays as it is. If the text would be too long for it, more of the earlier turns
    are left out; if even the first observation and the last turn do not fit, their middle is.

    Args:
        env: An environment whose observations are in a ``UnicodeText`` space.
        turns: How many of the latest turns are shown, at least 1.

    Raises:
        TypeError: If observations are in another space.
        ValueError: For fewer turns than 1.
    """

    def __init__(self, env: gym.Env[str, str], turns: int = 4) -> None:
        if isinstance(turns, bool) or not isinstance(turns, int) or turns < 1:
            raise ValueError(f"turns must be a whole number of at least 1, not {turns!r}")
        if not isinstance(env.observation_space, UnicodeText):
            raise TypeError(
                f"a history is text: observations must be UnicodeText, not {env.observation_space}"
            )
        RecordConstructorArgs.__init__(self, turns=turns)
        gym.Wrapper.__init__(self, env)
        self.turns = turns
        self._limit = env.observation_space.max_length
        self._first = ""
        self._latest: deque[str] = deque(maxlen=turns)
        self._count = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode; the first observation is shown as it is."""
        self._first, info = self.env.reset(seed=seed, options=options)
        self._latest.clear()
        self._count = 0
        return self._first, info

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step and show the latest turns, this one among them."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        # A reply may hold lone surrogates, which no observation may.
        reply = action.encode(errors="replace").decode()
        self._latest.append(f"> {reply}\n{observation}")
        self._count += 1
        return self._window(), reward, terminated, truncated, info

    def _window(self) -> str:
        """The text of the present window, as much of it as fits."""
        for shown in range(len(self._latest), 0, -1):
            text = self._text(shown)
            if len(text) <= self._limit:
                return text
        return fit_text(text, self._limit)

    def _text(self, shown: int) -> str:
        left_out = self._count - shown
        note = [f"[{left_out} earlier turn{'s' if left_out > 1 else ''} left out]"] if left_out else []
        return "\n\n".join([self._first, *note, *list(self._latest)[-shown:]])
