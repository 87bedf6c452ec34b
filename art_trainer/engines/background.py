"""An event loop in a thread of its own, for code that is not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Found = TypeVar("Found")


class BackgroundLoop:
    """Runs coroutines beside the caller; those that are given up are cancelled, and their connections closed.

    The thread is a daemon: a program that ends does not wait for a server's answer.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Found]) -> Future[Found]:
        """Begin work; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, Found]) -> Found:
        """Wait for work to be done; Ctrl-C cancels it."""
        future = self.start(work)
        try:
            return future.result()
        finally:
            future.cancel()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Cancel all work, wait for it to end, and end the thread.

        Args:
            last: Work to do then, such as closing connections.
        """
        if self._loop.is_closed():
            return
        self.run(_end(last))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end(last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    if last is not None:
        await last()
