"""A global random state for one environment alone.

Some libraries draw random numbers from the ``random`` module, or from ``numpy.random``'s global functions,
and seed them in ``reset``. A second environment then changes the first one's episode, and the caller's random
numbers too. Code inside :meth:`IsolatedRandom.active` uses a state of its own, which continues from call to
call; the global state outside does not change.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

# There is one global state for all threads: a thread that uses it makes the others wait.
_LOCK = threading.RLock()


class IsolatedRandom:
    """The states of ``random`` and ``numpy.random`` as one environment knows them; pickles and copies."""

    def __init__(self) -> None:
        self._state: tuple[Any, Any] | None = None

    @contextmanager
    def active(self, seed: int | None = None) -> Iterator[None]:
        """Put this state in place of the global one for a while.

        Args:
            seed: Begin anew from this seed, as ``random.seed(seed)`` does.
        """
        with _LOCK:
            outside = _global_state()
            try:
                if seed is not None:
                    random.seed(seed)
                    np.random.seed(seed % 2**32)  # noqa: NPY002 (the global generator is the matter here)
                elif self._state is not None:
                    _set_global_state(self._state)
                yield
            finally:
                self._state = _global_state()
                _set_global_state(outside)


def _global_state() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()  # noqa: NPY002


def _set_global_state(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])  # noqa: NPY002
