"""A worker's connection to its server: one WebSocket, from ``hello`` until either side is gone."""

from __future__ import annotations

import re
import ssl
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidMessage,
    InvalidStatus,
    WebSocketException,
)

from art_trainer.errors import ConfigError
from art_trainer.remote.fields import CLIENT_ID
from art_trainer.remote.messages import (
    PROTOCOL_VERSION,
    ErrorMessage,
    Hello,
    MessageError,
    ServerMessage,
    Welcome,
    read_server_message,
)
from art_trainer.remote.worker_errors import RefusedError, UnreachableError

MAX_MESSAGE_BYTES = 16 * 2**20
"""Largest message either side may send: what a server takes by default."""
_OPEN_SECONDS = 15.0
_PING_SECONDS = 20.0
_TOO_LARGE = 1009
_OF_UNKNOWN_ISSUER = (18, 19, 20, 21)
"""OpenSSL's codes for a certificate that signed itself, and for one whose issuer is not known here."""
_PASSING = ("too_many_clients", "no_hello")
"""Refusals that may pass."""
_ANSWERS = {
    401: "it wants its token: give --token-file or set ART_SERVER_TOKEN",
    403: "it refuses this worker",
    404: "there is no training server at that address",
}


class MessageTooLarge(UnreachableError):
    """The server closed the connection because a message was larger than it takes."""


class _Connect(connect):
    """Goes nowhere else than it was told: a redirect is an answer like any other."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


def server_address(url: str) -> str:
    """A server's address, as in ``http://host:8000``, without what may stand behind it.

    Raises:
        ConfigError: Where it is no address of that kind.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise ConfigError(f"{url!r} is no server's address: write it as in http://127.0.0.1:8000")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(
            "a server's address holds no secret, query or fragment: give the token by --token-file, or set "
            "ART_SERVER_TOKEN"
        )
    return f"{parts.scheme}://{parts.netloc}"


class Connection:
    """A worker's socket after ``welcome``; :func:`open_connection` makes it.

    Attributes:
        welcome: What the server said first.
    """

    def __init__(self, socket: ClientConnection, welcome: Welcome) -> None:
        self._socket = socket
        self.welcome = welcome

    async def send(self, text: str) -> None:
        """Send a message.

        Raises:
            UnreachableError: Where the connection is gone.
        """
        try:
            await self._socket.send(text)
        except ConnectionClosed as gone:
            raise _lost(gone) from gone

    async def receive(self) -> ServerMessage:
        """Wait for the server's next message.

        Raises:
            UnreachableError: Where the connection is gone.
            MessageError: Where what comes is none of the protocol.
        """
        try:
            return read_server_message(await self._socket.recv())
        except ConnectionClosed as gone:
            raise _lost(gone) from gone

    async def close(self) -> None:
        """Say goodbye; does nothing where the connection is gone."""
        await self._socket.close()


async def open_connection(url: str, client_id: str, token: str | None, hello: Hello) -> Connection:
    """Connect to a server and say hello.

    Args:
        url: The server's address, see :func:`server_address`.
        client_id: The worker's name.
        token: The server's bearer token.
        hello: The first message.

    Raises:
        UnreachableError: Where it does not answer, or says that it cannot now.
        RefusedError: Where it will not have this worker, or speaks another version of the protocol.
    """
    if re.fullmatch(CLIENT_ID, client_id) is None:
        raise ConfigError(f"{client_id!r} is no worker's name: take letters, digits, dots and dashes")
    try:
        socket = await _Connect(
            f"ws{url.removeprefix('http')}/ws/{client_id}",
            additional_headers={} if token is None else {"Authorization": f"Bearer {token}"},
            max_size=MAX_MESSAGE_BYTES,
            open_timeout=_OPEN_SECONDS,
            ping_interval=_PING_SECONDS,
            ping_timeout=_PING_SECONDS,
            close_timeout=2.0,
        )
    except InvalidStatus as answer:
        raise _refusal(url, answer.response.status_code) from answer
    except InvalidHandshake as odd:
        gone = isinstance(odd, InvalidMessage)  # cut off before it answered
        raise (UnreachableError if gone else RefusedError)(f"{url} is no training server: {odd}") from odd
    except ssl.SSLCertVerificationError as fault:
        raise UnreachableError(_distrusted(url, fault)) from fault
    except (OSError, WebSocketException) as fault:
        raise UnreachableError(f"no answer from {url}: {fault or type(fault).__name__}") from fault
    try:
        return Connection(socket, await _greet(socket, hello))
    except BaseException:
        await socket.close()
        raise


async def _greet(socket: ClientConnection, hello: Hello) -> Welcome:
    try:
        await socket.send(hello.model_dump_json())
        answer = read_server_message(await socket.recv())
    except ConnectionClosed as gone:
        raise _lost(gone) from gone
    except MessageError as odd:
        raise RefusedError(
            f"the server's first words are not of version {PROTOCOL_VERSION} of the protocol ({odd}): "
            "install the same version of art-gym on both sides"
        ) from odd
    match answer:
        case Welcome(protocol=protocol) if protocol != PROTOCOL_VERSION:
            raise RefusedError(
                f"the server speaks version {protocol} of the protocol, this worker {PROTOCOL_VERSION}: "
                "install the same version of art-gym on both sides"
            )
        case Welcome():
            return answer
        case ErrorMessage(code=code, message=words):
            kind = UnreachableError if code in _PASSING else RefusedError
            raise kind(f"the server refuses this worker ({code}): {words}")
        case _:
            raise RefusedError(f"the server began with {answer.type}, not with a welcome")


def _refusal(url: str, status: int) -> UnreachableError | RefusedError:
    """What an HTTP status instead of a socket means."""
    if status == 429 or status >= 500:
        return UnreachableError(f"{url} answered {status}")
    words = _ANSWERS.get(status, "it is no training server, or refuses this worker")
    return RefusedError(f"{url} answered {status}: {words}")


def _distrusted(url: str, fault: ssl.SSLCertVerificationError) -> str:
    """What is wrong with a server's certificate, and what helps where it is one that nobody here knows."""
    words = f"the certificate of {url} is not trusted: {fault.verify_message}"
    if fault.verify_code not in _OF_UNKNOWN_ISSUER:
        return words
    return f"{words}; if you trust it, let SSL_CERT_FILE name its PEM file, or that of who signed it"


def _lost(gone: ConnectionClosed) -> UnreachableError:
    if gone.rcvd is not None and gone.rcvd.code == _TOO_LARGE:
        return MessageTooLarge("the server takes no messages so large")
    return UnreachableError(f"the connection is lost: {gone}")
