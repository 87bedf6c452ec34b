"""A worker's connection to its server: address, WebSocket handshake, secret, backoff and errors."""

from __future__ import annotations

import hashlib
import re
import secrets
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidMessage,
    InvalidStatus,
    WebSocketException,
)

from art_trainer.distributed.protocol import (
    CLIENT_ID,
    FROM_SERVER,
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    ErrorMessage,
    Hello,
    MessageError,
    Welcome,
    read_message,
)
from art_trainer.errors import ConfigError, TrainerError

_OPEN_SECONDS = 15.0
_PING_SECONDS = 20.0
_UNKNOWN_ISSUER = (18, 19, 20, 21)
"""OpenSSL's codes for a self-signed certificate, or one whose issuer is not known here."""
_TEMPORARY = ("too_many_clients", "no_hello")
HTTP_REFUSALS = {
    401: "it wants its token: give --token-file or set ART_SERVER_TOKEN",
    403: "it refuses this worker",
}
_SAME_VERSION = "install the same version of art-gym on both sides"


class RefusedError(TrainerError, PermissionError):
    """Rejected by the server (or vice versa); do not retry."""


class UnreachableError(TrainerError, ConnectionError):
    """The server does not answer now; it may later."""


class DownloadError(TrainerError, ConnectionError):
    """A file that could not be fetched whole; the message names it."""


class ServerChangedError(TrainerError, RuntimeError):
    """The server has another run than this worker was started for; a new worker can play for it."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with random jitter."""

    rng: np.random.Generator
    """Draws the jitter."""
    first: float = 0.5
    """Longest pause before the second attempt, in seconds."""
    longest: float = 30.0
    """Longest pause at all, in seconds."""

    def seconds(self, failures: int) -> float:
        """Return the pause after so many failures, at least 1."""
        whole = min(self.longest, self.first * 2.0 ** min(failures - 1, 20))
        return whole * float(self.rng.uniform(0.5, 1.0))


def new_client_id() -> str:
    """Return a unique name: the machine's, and random letters."""
    host = "".join(letter for letter in socket.gethostname() if letter.isascii() and letter.isalnum())
    return f"{host[:40] or 'worker'}-{secrets.token_hex(4)}"


def secret_file(cache: Path, url: str, client_id: str) -> Path:
    """Return where a named worker keeps its secret, so that it may use its name again after a restart."""
    return cache / "secrets" / hashlib.sha256(f"{url}\n{client_id}".encode()).hexdigest()


def server_address(url: str) -> str:
    """Return a server's address, as in ``http://host:8000``, without a path.

    Raises:
        ConfigError: If it is none.
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


class _Connect(connect):
    """Follows no redirects."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def open_connection(
    url: str, client_id: str, token: str | None, hello: Hello
) -> tuple[ClientConnection, Welcome]:
    """Connect to a server and do the handshake.

    Args:
        url: The server's address, see :func:`server_address`.
        client_id: The worker's name.
        token: The server's bearer token.
        hello: The first message.

    Raises:
        UnreachableError: If it does not answer, or cannot take this worker now.
        RefusedError: If it rejects this worker, or has another protocol version.
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
    except InvalidStatus as error:
        raise _refusal(url, error.response.status_code) from error
    except ssl.SSLCertVerificationError as error:
        raise UnreachableError(_untrusted(url, error)) from error
    except (OSError, WebSocketException) as error:
        if isinstance(error, InvalidHandshake) and not isinstance(error, InvalidMessage):
            raise RefusedError(f"{url} is no training server: {error}") from error
        plain = ", does it answer to http://?" if "WRONG_VERSION_NUMBER" in str(error) else ""
        raise UnreachableError(f"no answer from {url}: {error or type(error).__name__}{plain}") from error
    try:
        return socket, await _handshake(socket, hello)
    except BaseException:
        await socket.close()
        raise


@contextmanager
def lost_connections() -> Iterator[None]:
    """Within, a connection that is lost is an :class:`UnreachableError`."""
    try:
        yield
    except ConnectionClosed as error:
        raise UnreachableError(f"the connection is lost: {error}") from error


async def _handshake(socket: ClientConnection, hello: Hello) -> Welcome:
    try:
        with lost_connections():
            await socket.send(hello.model_dump_json())
            answer = read_message(FROM_SERVER, await socket.recv())
    except MessageError as error:
        raise RefusedError(
            f"the server's first message is not of protocol version {PROTOCOL_VERSION} ({error}): "
            f"{_SAME_VERSION}"
        ) from error
    match answer:
        case Welcome(protocol=protocol) if protocol != PROTOCOL_VERSION:
            raise RefusedError(
                f"the server speaks version {protocol} of the protocol, this worker {PROTOCOL_VERSION}: "
                f"{_SAME_VERSION}"
            )
        case Welcome():
            return answer
        case ErrorMessage(code=code, message=message):
            kind = UnreachableError if code in _TEMPORARY else RefusedError
            raise kind(f"the server refuses this worker ({code}): {message}")
        case _:
            raise RefusedError(f"the server began with {answer.type}, not with welcome")


def _refusal(url: str, status: int) -> UnreachableError | RefusedError:
    if status == 429 or status >= 500:
        return UnreachableError(f"{url} answered {status}")
    known = {**HTTP_REFUSALS, 404: "there is no training server at that address"}
    return RefusedError(
        f"{url} answered {status}: {known.get(status, 'it is no training server, or refuses this worker')}"
    )


def _untrusted(url: str, error: ssl.SSLCertVerificationError) -> str:
    message = f"the certificate of {url} is not trusted: {error.verify_message}"
    if error.verify_code not in _UNKNOWN_ISSUER:
        return message
    return f"{message}; if you trust it, let SSL_CERT_FILE name its PEM file, or its issuer's"
