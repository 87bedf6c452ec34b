"""Access control for all HTTP servers: host names, origins, rate limit, bearer token, body limits."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import socket
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from art_trainer.errors import ConfigError, TrainerError

_MAX_CLIENTS = 10_000
_MIN_TOKEN_LENGTH = 16
_WEBSOCKET_CLOSE_SECONDS = 5.0
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
WILDCARDS = ("", "0.0.0.0", "::")
"""Hosts that mean every address of this machine."""
HEALTH = "/health"
"""A path that needs no token: load balancers have none, and it says only that the server answers."""
_SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_STATUS = {
    "invalid_api_key": 401,
    "wrong_origin": 403,
    "reward_refused": 403,
    "not_found": 404,
    "model_not_found": 404,
    "too_slow": 408,
    "already_rewarded": 409,
    "damaged_record": 409,
    "episode_over": 410,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "rate_limit_exceeded": 429,
    "policy_error": 500,
    "shutting_down": 503,
    "too_many_connections": 503,
}
"""HTTP status by the code of an error; 400 for all others."""
_ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


class ApiError(TrainerError, ValueError):
    """A request that cannot be answered; sent to the client in the form of OpenAI's errors.

    Attributes:
        code: A short name of the error, such as ``context_length_exceeded``.
        param: The field of the request that is wrong.
        status: The HTTP status, by default that of the code.
    """

    def __init__(
        self, message: str, code: str | None = None, *, param: str | None = None, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.status = status or _STATUS.get(code or "", 400)

    def to_json(self) -> dict[str, Any]:
        """The body of the response."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 429:
            kind = "rate_limit_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """An error in the form of Anthropic's API."""
    kind = _ANTHROPIC_KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    details = {} if error.code is None else {"details": {"error_code": error.code}}
    return {"type": "error", "error": {"type": kind, "message": str(error), **details}}


def error_response(error: ApiError, path: str) -> JSONResponse:
    """The response to a request that cannot be answered, in the form that clients of its path read."""
    body = anthropic_error(error) if _ANTHROPIC_PATH in path else error.to_json()
    return JSONResponse(body, error.status)


class RateLimit:
    """A token bucket for each client; remembers the newest 10,000 clients.

    Args:
        per_second: How fast a bucket fills.
        burst: Its capacity; it starts full.
        clock: Seconds from any start.
    """

    def __init__(
        self, per_second: float, burst: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: dict[Hashable, tuple[float, float]] = {}

    def take(self, client: Hashable) -> float:
        """Take one token from a client's bucket; return 0, or the seconds until there is one."""
        now = self._clock()
        level, since = self._buckets.pop(client, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._per_second)
        wait = 0.0 if level >= 1 else (1 - level) / self._per_second
        # Removed and added again: the dict is ordered by last use, so the first entry is the oldest.
        self._buckets[client] = (level if wait else level - 1, now)
        if len(self._buckets) > _MAX_CLIENTS:
            del self._buckets[next(iter(self._buckets))]
        return wait


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    address = _ip_address(host)
    return host == "localhost" if address is None else address.is_loopback


def url_host(host: str) -> str:
    """Return an address as written in a URL: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    return None


class HostNames:
    """The ``Host`` headers that a server accepts, against DNS rebinding.

    Args:
        host: The address the server listens on. A loopback address allows all loopback names. A server that
            listens on every address accepts any IP address, since rebinding needs a name.
        more: Other names, without ports.
    """

    def __init__(self, host: str, more: Iterable[str] = ()) -> None:
        self._any_address = host in WILDCARDS
        names = [*more, socket.gethostname() if self._any_address else url_host(host)]
        if self._any_address or is_loopback(host):
            names += LOOPBACK
        self._names = frozenset(name.lower() for name in names)

    def include(self, header: str) -> bool:
        """Whether a ``Host`` header is accepted, with any port."""
        name, colon, port = header.lower().rpartition(":")
        if not (colon and port.isdigit() and (name.endswith("]") or ":" not in name)):
            name = header.lower()
        return name in self._names or (self._any_address and _ip_address(name) is not None)


def check_access(host: str, token: str | None, allowed_hosts: Iterable[str] = ()) -> None:
    """Refuse to start a server that others can reach without a token.

    Args:
        host: The address that it listens on.
        token: The bearer token that every client must send.
        allowed_hosts: Other accepted host names; these imply a proxy or clients on other machines.

    Raises:
        ConfigError: The address or a name is reachable from outside and there is no token; or the token is
            too short or has unusable characters.
    """
    if token is None:
        remedy = "and there is no token: set ART_SERVER_TOKEN, or give --token-file, or"
        if not is_loopback(host):
            raise ConfigError(f"host is {host!r}, which other machines reach, {remedy} listen on 127.0.0.1")
        foreign = [name for name in allowed_hosts if name.lower() not in LOOPBACK and not is_loopback(name)]
        if foreign:
            raise ConfigError(
                f"{foreign[0]!r} is an allowed host name, so others reach this server, for example through a "
                f"proxy, {remedy} allow no other name"
            )
    elif len(token) < _MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"the token has {len(token)} characters: use at least {_MIN_TOKEN_LENGTH} ASCII letters and "
            'digits, no spaces, such as `python -c "import secrets; print(secrets.token_urlsafe(32))"`'
        )


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """What :class:`AccessMiddleware` requires."""

    hosts: HostNames
    """Accepted ``Host`` headers."""
    max_body_bytes: int
    """Largest body of a request."""
    body_timeout: float = 60.0
    """Seconds within which a body must arrive."""
    token: str | None = None
    """The bearer token of every route; ``None`` if the routes check themselves or nobody does."""
    allow_same_origin: bool = False
    """Whether the server's own pages may call it; pages of other sites never may."""
    login_page: Callable[[int], Response] | None = None
    """Makes the 401 response to ``GET /``."""
    rate: RateLimit | None = None
    """Limit per client address; ``None`` for none."""
    max_websockets: int = 0
    """Most WebSockets that are open at one time."""


class AccessMiddleware:
    """ASGI middleware that rejects requests and WebSockets before anything is read.

    Checks in this order: ``Host``, ``Origin``, rate, bearer token, size. Cookies are neither read nor set.

    Args:
        app: The protected application.
        policy: What is required.
    """

    def __init__(self, app: ASGIApp, policy: AccessPolicy) -> None:
        self._app = app
        self._policy = policy
        self._websockets = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a connection or pass it on."""
        error = None if scope["type"] == "lifespan" else self._check(scope)
        if error is not None:
            await self._reject(error, scope, receive, send)
        elif scope["type"] == "http":
            await self._app(scope, self._limit_body(receive), _add_headers(send))
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        else:
            self._websockets += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._websockets -= 1

    def _check(self, scope: Scope) -> ApiError | None:
        policy, sent = self._policy, Headers(scope=scope)
        # A repeated header is joined, so that it matches nothing that is checked.
        headers = {name: ", ".join(sent.getlist(name)) for name in sent}
        host = headers.get("host", "")
        if not policy.hosts.include(host):
            return ApiError("unrecognised Host header", "wrong_host")
        # Without an origin it is not a browser, or a page that the user opened directly.
        own = (f"http://{host}".lower(), f"https://{host}".lower()) if policy.allow_same_origin else ()
        if "origin" in headers and headers["origin"].lower() not in own:
            return ApiError("web pages may not use this server", "wrong_origin")
        wait = policy.rate.take((scope.get("client") or ("",))[0]) if policy.rate else 0.0
        if wait:
            return ApiError(f"rate limit exceeded, retry in {wait:.1f} s", "rate_limit_exceeded")
        secret = policy.token is not None and (scope["type"] != "http" or scope["path"] != HEALTH)
        if secret and not has_token(headers, policy.token or ""):
            message = "a token is required: send `Authorization: Bearer TOKEN` or `X-Api-Key: TOKEN`"
            return ApiError(message, "invalid_api_key")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length) > policy.max_body_bytes:
            return self._too_large()
        if scope["type"] == "websocket" and self._websockets >= policy.max_websockets:
            return ApiError("too many open WebSockets", "too_many_connections")
        return None

    def _too_large(self) -> ApiError:
        return ApiError(f"the body is larger than {self._policy.max_body_bytes} bytes", "body_too_large")

    async def _reject(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        policy = self._policy
        response: Response = error_response(error, scope["path"])
        if error.status == 401:
            is_front_page = scope["type"] == "http" and (scope["method"], scope["path"]) == ("GET", "/")
            if is_front_page and policy.login_page is not None:
                response = policy.login_page(401)
            response.headers["www-authenticate"] = "Bearer"
        if error.status == 429:
            response.headers["retry-after"] = "1"
        if scope["type"] == "http":
            await response(scope, receive, _add_headers(send))
            return
        await receive()  # the handshake
        await response(scope, receive, send)
        # uvicorn logs an error if the application returns before the connection is closed.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WEBSOCKET_CLOSE_SECONDS):
                await receive()
                await receive()

    def _limit_body(self, receive: Receive) -> Receive:
        """Stop a body that is too large or too slow."""
        size, complete = 0, False
        deadline = asyncio.get_running_loop().time() + self._policy.body_timeout

        async def limited() -> Message:
            nonlocal size, complete
            if complete:  # only the disconnect is left, whenever it comes
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise ApiError("the body did not arrive in time", "too_slow") from None
            size += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if size > self._policy.max_body_bytes:
                raise self._too_large()
            return message

        return limited


def has_token(headers: Mapping[str, str], token: str) -> bool:
    """Whether a request carries a token, in OpenAI's header or in Anthropic's; compared in constant time."""
    scheme, _, sent = headers.get("authorization", "").partition(" ")
    bearer = sent if scheme.lower() == "bearer" else ""
    secrets = [one.encode("latin-1", "replace") for one in (bearer, headers.get("x-api-key", ""))]
    return any(hmac.compare_digest(token.encode(), secret) for secret in secrets)


def _add_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
