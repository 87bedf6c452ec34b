"""A thread for everything that computes, so that the event loop beside it stays awake."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Found = TypeVar("Found")


class PlayThread:
    """Does one thing after the other, always in the same thread: PyTorch keeps worker threads for each.

    It is a daemon: a program that ends does not wait for a reply to be sampled.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="play", daemon=True)
        self._thread.start()

    async def run(self, function: Callable[[], Found]) -> Found:
        """Call a function there; what it raises is raised here. Being cancelled does not stop it."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Found] = loop.create_future()

        def settle(result: Any, fault: BaseException | None) -> None:
            if done.cancelled():
                return
            if fault is None:
                done.set_result(result)
            else:
                done.set_exception(fault)

        def work() -> None:
            result, fault = None, None
            try:
                result = function()
            except BaseException as raised:  # it is the waiting side's, whatever it is
                fault = raised
            try:
                loop.call_soon_threadsafe(settle, result, fault)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

        self._work.put(work)
        return await done

    def later(self, function: Callable[[], None]) -> None:
        """Call a function there after everything else, without waiting for it."""
        self._work.put(function)

    def close(self, seconds: float) -> bool:
        """Take no more work, and wait for what is being done.

        Args:
            seconds: Longest to wait.

        Returns:
            Whether the thread has ended.
        """
        self._work.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
