"""A uvicorn server in a thread of its own, on a socket that listens before the server is up."""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

_BACKLOG = 2048
_STALLED_SECONDS = 60
"""A connection whose other side takes nothing for so long is cut off by the kernel, where it can."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a server shows and speaks TLS with, two PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """How WebSockets are kept.

    Attributes:
        max_bytes: Largest message; a larger one ends the socket with code 1009.
        ping_seconds: How often the other side is asked whether it is there; as long it may take to answer.
    """

    max_bytes: int
    ping_seconds: float = 20.0


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens already, so that clients may connect before the server is up.

    Raises:
        OSError: Where the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # what it accepts inherits it
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _STALLED_SECONDS)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


class ServerThread:
    """Serves an application until it is stopped.

    Args:
        app: The application.
        listening: The socket; closed in the end.
        name: The thread's.
        sockets: How WebSockets are kept; ``None``: there are none.
        lifespan: Whether the application has something to do before and after.
        max_connections: Most connections at one time; others are told to come later.
        head_seconds: Longest that a request's head may take to arrive.
        grace_seconds: How long open connections get when the server stops.
        certificate: For TLS.
    """

    def __init__(
        self,
        app: FastAPI,
        listening: socket.socket,
        *,
        name: str,
        sockets: SocketOptions | None = None,
        lifespan: Literal["on", "off"] = "off",
        max_connections: int = 2048,
        head_seconds: float = 20.0,
        grace_seconds: int = 2,
        certificate: Certificate | None = None,
    ) -> None:
        kept = SocketOptions(0) if sockets is None else sockets
        self._listening = listening
        config = uvicorn.Config(
            app,
            http=_impatient(head_seconds),
            ws="none" if sockets is None else "websockets-sansio",
            ws_max_size=kept.max_bytes,
            ws_ping_interval=kept.ping_seconds,
            ws_ping_timeout=kept.ping_seconds,
            ws_per_message_deflate=False,
            lifespan=lifespan,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # else anyone on this machine could say where it comes from
            limit_concurrency=max_connections,
            timeout_graceful_shutdown=grace_seconds,
            ssl_certfile=None if certificate is None else certificate.certificate,
            ssl_keyfile=None if certificate is None else certificate.key,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listening],), name=name, daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it serves, or is about to."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop listening, let what is open end, and wait for that."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._listening.close()


def _impatient(seconds: float) -> type[H11Protocol]:
    """HTTP as uvicorn speaks it, but for connections on which no whole request head arrives in time.

    uvicorn itself waits for ever for a first request, and for the rest of any.
    """

    class Impatient(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def _watch(self) -> None:
            upgraded = self.transport.get_protocol() is not self
            answering = self.cycle is not None and not self.cycle.response_complete
            if upgraded or answering:
                self._unwatch()
            elif self._timer is None:
                self._timer = self.loop.call_later(seconds, self.transport.abort)

        def _unwatch(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Impatient
