"""The workers that a server knows: who a name belongs to, and what it last said of itself."""

from __future__ import annotations

import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from art_trainer.remote.fields import CLIENT_ID
from art_trainer.remote.messages import PROTOCOL_VERSION, Hello, StatusUpdate
from art_trainer.remote.status import ClientStatus


class ClientRefused(Exception):
    """A worker that may not come in under its name.

    Attributes:
        code: The fault, in a word.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True)
class Client:
    """A worker that has been seen."""

    id: str
    secret: str
    software: Mapping[str, str] = field(default_factory=dict)
    connected: bool = False
    seen: float = 0.0
    policy_version: int | None = None
    episodes_played: int = 0
    episodes_per_second: float = 0.0
    last_error: str | None = None

    def update(self, said: StatusUpdate) -> None:
        """Take in what it says of itself."""
        self.policy_version = said.policy_version
        self.episodes_played = said.episodes_played
        self.episodes_per_second = said.episodes_per_second
        self.last_error = said.last_error


class ClientBook:
    """Workers by their names; a name belongs to who has the secret that came with it.

    Args:
        most: Most workers that are remembered.
        clock: Seconds, from any beginning.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._clients: dict[str, Client] = {}
        self._lock = threading.Lock()

    def enter(self, client_id: str, hello: Hello) -> Client:
        """Let a worker in, a new one or one that comes again.

        Raises:
            ClientRefused: For a name that no path may hold, another protocol, a name that is another's, or
                where there are too many.
        """
        if re.fullmatch(CLIENT_ID, client_id) is None:
            raise ClientRefused("bad_client_id", "a client's id is of letters, digits, dots and dashes")
        if hello.protocol != PROTOCOL_VERSION:
            raise ClientRefused(
                "wrong_protocol",
                f"this server speaks version {PROTOCOL_VERSION} of the protocol, you speak {hello.protocol}: "
                "install the same version of art-gym on both sides",
            )
        with self._lock:
            client = self._clients.get(client_id)
            if client is None:
                self._make_room()
                client = self._clients[client_id] = Client(client_id, secrets.token_urlsafe(24))
            elif not hmac.compare_digest(client.secret.encode(), (hello.secret or "").encode()):
                raise ClientRefused(
                    "id_taken", "this id is another client's: bring its secret, or take another id"
                )
            client.software = dict(hello.software)
            client.connected = True
            client.seen = self._clock()
            return client

    def heard(self, client: Client) -> None:
        """It has just said something."""
        client.seen = self._clock()

    def statuses(self, leases: Mapping[str, int]) -> list[ClientStatus]:
        """All of them, by name.

        Args:
            leases: How many leases each holds.
        """
        now = self._clock()
        with self._lock:
            known = sorted(self._clients.values(), key=lambda client: client.id)
        return [
            ClientStatus(
                id=client.id,
                connected=client.connected,
                policy_version=client.policy_version,
                leases=leases.get(client.id, 0),
                episodes_played=client.episodes_played,
                episodes_per_second=client.episodes_per_second,
                last_seen_seconds=max(0.0, now - client.seen),
                last_error=client.last_error,
                software=dict(client.software),
            )
            for client in known
        ]

    @property
    def connected(self) -> int:
        """How many are there now."""
        with self._lock:
            return sum(client.connected for client in self._clients.values())

    def _make_room(self) -> None:
        if len(self._clients) < self._most:
            return
        gone = [client for client in self._clients.values() if not client.connected]
        if not gone:
            raise ClientRefused("too_many_clients", f"{self._most} clients are here already")
        del self._clients[min(gone, key=lambda client: client.seen).id]
