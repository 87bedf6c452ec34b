"""Who may use a server: the one door in front of all its routes, for requests and WebSockets alike.

In this order: the name it is called by (against DNS rebinding), the page a browser calls from (against other
sites' scripts), how often, the bearer token, how large. No cookie is read and none is set; the token stands
in the ``Authorization`` header and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from art_trainer.web.errors import ApiError, BodyTooLarge
from art_trainer.web.hosts import HostNames
from art_trainer.web.rates import RateLimit


@dataclass(frozen=True, slots=True)
class Rules:
    """What a :class:`Guard` asks for.

    Attributes:
        hosts: Names that a client may address the server by.
        max_body_bytes: Largest body of a request.
        body_seconds: Longest that a body may take to arrive.
        token: The bearer token of every route; ``None``: routes see to it themselves, or nobody does.
        own_pages: Whether pages of this server itself may use it; those of others never may.
        login_page: What ``GET /`` shows, with status 401, to who brings no token.
        login_headers: Headers of that page.
        rate: How often one address may come; ``None``: as it likes.
        max_sockets: Most WebSockets that are open at one time.
    """

    hosts: HostNames
    max_body_bytes: int
    body_seconds: float = 60.0
    token: str | None = None
    own_pages: bool = False
    login_page: bytes | None = None
    login_headers: Mapping[str, str] = field(default_factory=dict)
    rate: RateLimit | None = None
    max_sockets: int = 0


class Guard:
    """Refuses who may not come in, before anything is read; ASGI middleware.

    Args:
        app: What is guarded.
        rules: What it asks for.
    """

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules
        self._sockets = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it through."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        fault = self._fault(scope)
        if fault is not None:
            await self._refusal(scope, fault)(scope, receive, send)
        elif scope["type"] == "http":
            await self._app(scope, self._bounded(receive), _with_headers(send))
        else:
            self._sockets += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._sockets -= 1

    def _fault(self, scope: Scope) -> ApiError | None:
        headers = _headers(scope)
        host = headers.get("host", "")
        if not self._rules.hosts.include(host):
            return ApiError("this server does not go by that name", code="wrong_host")
        if not self._knows_origin(headers.get("origin"), host):
            return ApiError("web pages may not use this server", status=403, code="wrong_origin")
        wait = self._rules.rate.take((scope.get("client") or ("",))[0]) if self._rules.rate else 0.0
        if wait:
            return ApiError(
                f"too many requests: come again in {wait:.1f} seconds", status=429, code="rate_limit_exceeded"
            )
        if not self._knows_token(headers.get("authorization", "")):
            return ApiError(
                "this server wants its token: send the header `Authorization: Bearer TOKEN`",
                status=401,
                code="invalid_api_key",
            )
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length) > self._rules.max_body_bytes:
            return BodyTooLarge(self._rules.max_body_bytes)
        if scope["type"] == "websocket" and self._sockets >= self._rules.max_sockets:
            return ApiError("as many sockets are open as may be", status=503, code="too_many_connections")
        return None

    def _knows_origin(self, origin: str | None, host: str) -> bool:
        if origin is None:  # no browser, or a page that was opened itself
            return True
        scheme, separator, rest = origin.lower().partition("://")
        same = bool(separator) and scheme in ("http", "https") and rest == host.lower()
        return same and self._rules.own_pages

    def _knows_token(self, authorization: str) -> bool:
        if self._rules.token is None:
            return True
        scheme, _, token = authorization.partition(" ")
        known = hmac.compare_digest(self._rules.token.encode(), token.encode("latin-1", "replace"))
        return known and scheme.lower() == "bearer"

    def _refusal(self, scope: Scope, fault: ApiError) -> ASGIApp:
        page = self._rules.login_page
        front = scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == "/"
        answer: Response
        if fault.status == 401 and front and page is not None:
            answer = Response(page, 401, dict(self._rules.login_headers), "text/html; charset=utf-8")
        else:
            answer = JSONResponse(fault.to_json(), fault.status)
        if fault.status == 401:
            answer.headers["www-authenticate"] = "Bearer"
        if fault.status == 429:
            answer.headers["retry-after"] = "1"
        answer.headers.update({name: value for name, value in _ALWAYS.items() if name not in answer.headers})
        return answer if scope["type"] == "http" else _denied(answer)

    def _bounded(self, receive: Receive) -> Receive:
        """Pass a body on, as far as it is not too large and does not take too long."""
        taken, whole = 0, False
        deadline = asyncio.get_running_loop().time() + self._rules.body_seconds

        async def bounded() -> Message:
            nonlocal taken, whole
            if whole:  # what comes now is the end of the connection, whenever that is
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise ApiError("the body did not arrive in time", status=408, code="too_slow") from None
            taken += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if taken > self._rules.max_body_bytes:
                raise BodyTooLarge(self._rules.max_body_bytes)
            return message

        return bounded


_GOODBYE_SECONDS = 5.0
_ALWAYS = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def _headers(scope: Scope) -> dict[str, str]:
    """A request's headers; of a name that comes twice both, which then fits nothing that is asked for."""
    headers: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1").lower()
        text = value.decode("latin-1")
        headers[name] = f"{headers[name]}, {text}" if name in headers else text
    return headers


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _ALWAYS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


def _denied(answer: Response) -> ASGIApp:
    """An answer to a WebSocket's handshake in place of a socket."""

    async def deny(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # the handshake
        await send(
            {
                "type": "websocket.http.response.start",
                "status": answer.status_code,
                "headers": answer.raw_headers,
            }
        )
        await send({"type": "websocket.http.response.body", "body": bytes(answer.body)})
        with contextlib.suppress(TimeoutError):
            # Uvicorn 0.54 takes it for a fault, and logs it, where we return before the connection is closed.
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await receive()
                await receive()

    return deny
