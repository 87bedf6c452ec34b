"""MCP over streamable HTTP: every session plays an episode of its own.

The SDK's own application gives all sessions one server; here each has one, with its episode's task in the
instructions, and the environment is closed when the session ends: by the client, by idleness, or by the
server's end. Sessions belong to the revisions of the protocol that begin with a handshake. A request of the
later ones, which have no sessions, gets an error, at which clients fall back to the handshake.

On a loopback address the Host and Origin headers are checked, so that no web page reaches the server through
a name of its own; elsewhere a token is required.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import anyio
import anyio.abc
import mcp_types as types
import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from art_gym.servers.mcp import AsyncEpisode, episode_server
from art_gym.servers.tool_episode import ToolEpisode

PATH = "/mcp"
_SESSION, _VERSION = "mcp-session-id", "mcp-protocol-version"
_MAX_BODY = 1 << 20  # bytes; a call's arguments are a reply, and replies are shorter
_GRACE = 3  # seconds that open streams are given when the server ends
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one server takes on.

    Attributes:
        sessions: The most sessions at once; one more is refused with status 503.
        idle: Seconds without a request after which a session is ended.

    Raises:
        ValueError: If one is not above 0.
    """

    sessions: int = 16
    idle: float = 600.0

    def __post_init__(self) -> None:
        if self.sessions < 1:
            raise ValueError(f"the limit of sessions must be at least 1, not {self.sessions}")
        if not 0 < self.idle < float("inf"):
            raise ValueError(f"the limit of idle seconds must be above 0, not {self.idle}")


@dataclass(eq=False, slots=True)
class _Session:
    """A client, its episode, and the SDK's side of the conversation."""

    played: AsyncEpisode
    manager: StreamableHTTPSessionManager
    ending: anyio.Event = field(default_factory=anyio.Event)
    serving: int = 0
    used: float = 0.0


class EpisodeSessions:
    """An ASGI application that begins an episode for every session.

    Args:
        begin: Makes the episode of the next session. Or one episode, which all sessions play, and which
            stays open: then its owner closes it.
        show_result: As of :func:`~art_gym.servers.mcp.episode_server`.
        limits: How much to take on.
        token: What a request must bring as ``Authorization: Bearer …``; ``None`` asks for none.
        local: Whether to check that requests name a loopback address as their host and origin.
        on_end: Given the result of every episode when its session has ended.
        clock: Seconds, for idleness.
    """

    def __init__(
        self,
        begin: Callable[[], ToolEpisode] | AsyncEpisode,
        *,
        show_result: bool = False,
        limits: Limits | None = None,
        token: str | None = None,
        local: bool = True,
        on_end: Callable[[dict[str, object]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._begin = begin
        self._show_result = show_result
        self._limits = limits or Limits()
        self._token = token
        self._security = TransportSecurityMiddleware(_security(local))
        self._on_end = on_end
        self._clock = clock
        self._sessions: dict[str, _Session] = {}
        self._open = 0
        self._tasks: anyio.abc.TaskGroup | None = None

    def app(self) -> Starlette:
        """The application with its one path, to be run once."""
        return Starlette(routes=[Route(PATH, endpoint=self)], lifespan=self._lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        refusal = await self._refusal(request)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        name = request.headers.get(_SESSION)
        session = self._sessions.get(name or "")
        if name is None:
            await self._open_session(scope, receive, send)
        elif session is not None:
            await self._serve(session, scope, receive, send)
            if request.method == "DELETE":
                session.ending.set()
        else:
            refusal = _error(404, "no such session: it has ended, or never was; initialize a new one")
            await refusal(scope, receive, send)

    async def _refusal(self, request: Request) -> Response | None:
        """Why a request is not for a session at all."""
        if self._token is not None:
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            known = hmac.compare_digest(given.encode(), self._token.encode())
            if not known or scheme.lower() != "bearer":
                return _error(401, "this server needs a token: Authorization: Bearer …", bearer=True)
        refusal = await self._security.validate_request(request, is_post=request.method == "POST")
        if refusal is not None:
            return refusal
        version = request.headers.get(_VERSION)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            data = {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": version}
            message = "an episode needs a session: begin with the initialize handshake"
            return _error(400, message, code=types.UNSUPPORTED_PROTOCOL_VERSION, data=data)
        return None

    async def _open_session(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Begin an episode, and let the SDK answer the request that opens its session."""
        if self._open >= self._limits.sessions:
            taken = f"all {self._open} sessions are taken: try again later, or start with more --max-sessions"
            refusal = _error(503, taken)
            await refusal(scope, receive, send)
            return
        self._open += 1
        try:
            begin = self._begin
            played = begin if isinstance(begin, AsyncEpisode) else await AsyncEpisode.begin(begin)
        except BaseException:
            self._open -= 1
            raise
        server = episode_server(played, show_result=self._show_result)
        manager = StreamableHTTPSessionManager(
            server,
            json_response=True,
            session_idle_timeout=None,
            max_request_body_size=_MAX_BODY,
        )
        session = _Session(played, manager, used=self._clock())
        assert self._tasks is not None, "the application's lifespan has not begun"
        await self._tasks.start(self._live, session)
        opened = ""

        async def watch(message: Message) -> None:
            nonlocal opened
            if message["type"] == "http.response.start" and message["status"] < 400:
                headers = {key.decode("latin-1").lower(): value for key, value in message["headers"]}
                opened = headers.get(_SESSION, b"").decode("latin-1")
                if opened:
                    self._sessions[opened] = session
            await send(message)

        try:
            await self._serve(session, scope, receive, watch)
        finally:
            if not opened:
                session.ending.set()

    async def _serve(self, session: _Session, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; a stream that a client merely keeps open is no use of its session."""
        counts = scope["method"] != "GET"
        session.serving += counts
        session.used = self._clock()
        try:
            await session.manager.handle_request(scope, receive, send)
        finally:
            session.serving -= counts
            session.used = self._clock()

    async def _live(
        self, session: _Session, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Hold a session's resources until it ends."""
        try:
            async with session.manager.run():
                task_status.started()
                await session.ending.wait()
        finally:
            with anyio.CancelScope(shield=True):
                names = [name for name, known in self._sessions.items() if known is session]
                for name in names:
                    del self._sessions[name]
                result = None if session.played is self._begin else await session.played.close()
                self._open -= 1
            if names and result is not None and self._on_end is not None:
                try:
                    self._on_end(result)
                except Exception:  # a full disk, say; raised here it would end all other sessions
                    _log.exception("the result of an episode was not taken: %s", result)

    async def _sweep(self) -> None:
        """End the sessions that nobody uses."""
        while True:
            await anyio.sleep(min(self._limits.idle / 4, 5.0))
            for session in list(self._sessions.values()):
                if not session.serving and self._clock() - session.used > self._limits.idle:
                    session.ending.set()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as sweeping:
            sweeping.start_soon(self._sweep)
            async with anyio.create_task_group() as self._tasks:
                try:
                    yield
                finally:
                    for session in list(self._sessions.values()):
                        session.ending.set()
            sweeping.cancel_scope.cancel()


def serve_http(
    sessions: EpisodeSessions,
    *,
    port: int,
    host: str = "127.0.0.1",
    on_start: Callable[[str], None] | None = None,
) -> None:
    """Serve until interrupted.

    Args:
        sessions: The application.
        port: Where to listen; 0 takes a free one.
        host: The address to listen at.
        on_start: Given the URL when requests are taken.

    Raises:
        OSError: If the address or port cannot be used.
    """
    listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    config = uvicorn.Config(sessions.app(), log_level="warning", timeout_graceful_shutdown=_GRACE, ws="none")
    server = uvicorn.Server(config)

    async def serve() -> None:
        serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started and on_start is not None:
            shown = f"[{host}]" if ":" in host else host
            on_start(f"http://{shown}:{listening.getsockname()[1]}{PATH}")
        await serving

    asyncio.run(serve())


def is_loopback(host: str) -> bool:
    """Whether nothing outside this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _security(local: bool) -> TransportSecuritySettings:
    names = ["127.0.0.1", "localhost", "[::1]"]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=local,
        allowed_hosts=[f"{name}:*" for name in names],
        allowed_origins=[f"http://{name}:*" for name in names],
    )


def _error(
    status: int, message: str, *, code: int = types.INVALID_REQUEST, data: object = None, bearer: bool = False
) -> Response:
    """A refusal in JSON-RPC's shape, to no request in particular."""
    error = {"code": code, "message": message} | ({"data": data} if data is not None else {})
    headers = {"WWW-Authenticate": "Bearer"} if bearer else None
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status_code=status, headers=headers)
