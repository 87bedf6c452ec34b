"""What is on its way to one worker: bounded, so that one who does not read holds up nobody else."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.websockets import WebSocket

from art_trainer.remote.fields import Message
from art_trainer.remote.messages import ErrorMessage

NORMAL, REFUSED = 1000, 1008
"""Why a socket is closed: done, the other side broke a rule."""


@dataclass(frozen=True, slots=True)
class _Close:
    code: int
    reason: str


class Outbox:
    """Messages for a socket, in order.

    Args:
        socket: The socket, accepted.
        most: How many may wait.
        seconds: How long the other side may take to read one.
    """

    def __init__(self, socket: WebSocket, *, most: int, seconds: float) -> None:
        self._socket = socket
        self._most = most
        self._seconds = seconds
        self._queue: asyncio.Queue[str | _Close] = asyncio.Queue()
        self._closed = False

    def put(self, message: Message) -> None:
        """Send a message when those before it are sent; closes the socket where too many wait."""
        if self._closed:
            return
        if self._queue.qsize() >= self._most:
            while not self._queue.empty():
                self._queue.get_nowait()
            self.close(REFUSED, f"{self._most} messages wait for you: read faster")
        else:
            self._queue.put_nowait(message.model_dump_json())

    def refuse(self, code: str, words: str) -> None:
        """Say what was wrong, and close the socket."""
        self.put(ErrorMessage(code=code, message=words[:2000], fatal=True))
        self.close(REFUSED, code)

    def close(self, code: int, reason: str) -> None:
        """Close the socket when all messages are sent."""
        if not self._closed:
            self._closed = True
            self._queue.put_nowait(_Close(code, reason[:120]))

    async def run(self) -> None:
        """Send, until the socket is closed.

        Raises:
            TimeoutError: Where the other side does not read.
        """
        while True:
            waiting = await self._queue.get()
            async with asyncio.timeout(self._seconds):
                if isinstance(waiting, _Close):
                    await self._socket.close(waiting.code, waiting.reason)
                    return
                await self._socket.send_text(waiting)
