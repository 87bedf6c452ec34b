"""A uvicorn server in its own thread, on a socket that is bound before the server starts."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from art_trainer.errors import ConfigError, NotRecordedError, RecordError
from art_trainer.serving.http.middleware import (
    HEALTH,
    WILDCARDS,
    AccessMiddleware,
    AccessPolicy,
    ApiError,
    error_response,
    url_host,
)

_BACKLOG = 2048
_STALLED_SECONDS = 60
"""The kernel drops a connection whose peer has acknowledged nothing for this long, where it can."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """TLS certificate and key of a server, two PEM files."""

    certificate: Path
    key: Path


def shorten_garbage_collections() -> None:
    """Leave out of Python's garbage collections what is loaded by now, and make full ones ten times rarer.

    A full one stops the event loop: with a thousand clients for 0.2 to 0.35 s, most of it for the objects of
    imported packages. For processes that do nothing but serve and train.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], 100)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, so that clients may connect before the server is up.

    Raises:
        ConfigError: If the address cannot be used.
    """
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # accepted connections inherit it
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _STALLED_SECONDS)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        reason = error.strerror or error
        raise ConfigError(f"{url_host(host)}:{port} cannot be listened on: {reason}") from error
    return listening


class ServerThread:
    """Serves an application in a thread, from its creation until it is stopped.

    Args:
        app: The application.
        host: The address to listen on.
        port: The port; 0 takes a free one.
        name: The thread's name.
        header_timeout: Seconds within which a request's headers must arrive.
        certificate: For TLS.
        **options: For ``uvicorn.Config``, in place of these: no WebSockets, no lifespan events, at most 2048
            connections (others get status 503), and two seconds for open ones when the server stops.

    Attributes:
        url: The server's address, without a slash at its end.

    Raises:
        ConfigError: If the address cannot be used.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        name: str,
        header_timeout: float = 20.0,
        certificate: Certificate | None = None,
        **options: Any,
    ) -> None:
        self._listening = listen(host, port)
        scheme = "http" if certificate is None else "https"
        shown = url_host("127.0.0.1" if host in WILDCARDS else host)
        self.url = f"{scheme}://{shown}:{self._listening.getsockname()[1]}"
        defaults = {
            "ws": "none",
            "lifespan": "off",
            "limit_concurrency": 2048,
            "timeout_graceful_shutdown": 2,
        }
        config = uvicorn.Config(
            app,
            http=_protocol(header_timeout),
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # else any local client could claim another address
            ssl_certfile=None if certificate is None else certificate.certificate,
            ssl_keyfile=None if certificate is None else certificate.key,
            **{**defaults, **options},
        )
        self._server = uvicorn.Server(config)
        listening = [self._listening]
        self._thread = threading.Thread(target=self._server.run, args=(listening,), name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop listening, finish open requests, and wait for that."""
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()


def _protocol(header_timeout: float) -> type[H11Protocol]:
    """Uvicorn's HTTP/1.1 protocol with a timeout for request headers, which uvicorn itself lacks."""

    class HeaderTimeoutProtocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._update_timer()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._update_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel_timer()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._update_timer()

        def _update_timer(self) -> None:
            upgraded = self.transport.get_protocol() is not self
            answering = self.cycle is not None and not self.cycle.response_complete
            if upgraded or answering:
                self._cancel_timer()
            elif self._timer is None:
                self._timer = self.loop.call_later(header_timeout, self.transport.abort)

        def _cancel_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return HeaderTimeoutProtocol


def create_app(policy: AccessPolicy, routes: str, **options: Any) -> FastAPI:
    """Create an application with access control and JSON errors, without documentation pages.

    Args:
        policy: Who may use it.
        routes: What the server offers, for the message of a 404.
        **options: For ``FastAPI``.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, **options)
    app.add_middleware(AccessMiddleware, policy=policy)

    @app.get(HEALTH)
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return error_response(error, request.url.path)

    @app.exception_handler(NotRecordedError)
    @app.exception_handler(RecordError)
    async def no_record(request: Request, error: NotRecordedError | RecordError) -> Response:
        code = "not_found" if isinstance(error, NotRecordedError) else "damaged_record"
        return error_response(ApiError(str(error), code), request.url.path)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return error_response(ApiError(f"{place}: {first['msg']}", param=place, status=422), request.url.path)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        path, status = request.url.path, error.status_code
        message = f"{request.method} {path}: {error.detail}; this server has {HEALTH}, {routes}"
        code = "not_found" if status == 404 else None
        response = error_response(ApiError(message, code, status=status), path)
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        fault = ApiError(f"{type(error).__name__}: see the server's log", "internal_error", status=500)
        response = error_response(fault, request.url.path)
        response.headers["connection"] = "close"  # uvicorn logs the exception, and ends the connection
        return response

    return app
