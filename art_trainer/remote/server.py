"""A training server: the routes, the workers' sockets, and the thread they live in."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from fastapi import APIRouter

from art_trainer.errors import ConfigError, EngineError
from art_trainer.remote.app import Service, Weights, make_app
from art_trainer.remote.connections import Connections
from art_trainer.remote.ledger import Ledger
from art_trainer.remote.limits import Limits
from art_trainer.remote.messages import RunDescription
from art_trainer.remote.progress import RunProgress
from art_trainer.remote.status import ServerStatus
from art_trainer.web.access import check_access
from art_trainer.web.guard import Rules
from art_trainer.web.hosts import WILDCARDS, HostNames, in_url
from art_trainer.web.rates import RateLimit
from art_trainer.web.thread import Certificate, ServerThread, SocketOptions, listen


class TrainingServer:
    """Hands out episodes and weights, and takes results; a context manager.

    It listens when it has been made, and answers when it is entered.

    Args:
        ledger: Who may play what, and what became of it.
        weights: The files that workers fetch.
        run: What workers are told of the run.
        progress: How far the run is.
        host: The address to listen on. Any but this machine's own needs a token.
        port: The port; 0 takes a free one.
        token: What every request has to bring; ``None``: nothing.
        allowed_hosts: More names that clients may address the server by, without ports.
        routers: Other routes, behind the same door.
        login_page: What ``GET /`` shows to who brings no token.
        login_headers: Headers of that page.
        limits: What is taken from clients.
        version: Of the weights that there are at first.
        lease_seconds: How long a lease lasts that is not renewed.
        certificate: For TLS.
        shut_down: Called where somebody asks for the end of the run, from the server's thread.

    Raises:
        ConfigError: For an address that others reach, without a token; for a token that can be guessed; for
            an address that cannot be listened on.

    Attributes:
        url: Where the server is.
        connections: The workers' sockets.
    """

    def __init__(
        self,
        ledger: Ledger,
        weights: Weights,
        run: RunDescription,
        *,
        progress: RunProgress,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        allowed_hosts: Sequence[str] = (),
        routers: Sequence[APIRouter] = (),
        login_page: bytes | None = None,
        login_headers: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        version: int = 0,
        lease_seconds: float = 60.0,
        certificate: Certificate | None = None,
        shut_down: Callable[[], None] = lambda: None,
    ) -> None:
        check_access(host, token, allowed_hosts)
        limits = limits or Limits()
        self._ledger = ledger
        self._run = run
        self._progress = progress
        self._version = version
        self.connections = Connections(ledger, run, limits, version=version, lease_seconds=lease_seconds)
        rules = Rules(
            HostNames(host, allowed_hosts),
            limits.body_bytes,
            body_seconds=limits.body_seconds,
            token=token,
            own_pages=True,
            login_page=login_page,
            login_headers=login_headers or {},
            rate=RateLimit(limits.requests_per_second, limits.burst),
            max_sockets=limits.sockets,
        )
        self.app = make_app(Service(self.connections, weights, self.status, shut_down), rules, routers)
        listening = open_socket(host, port)
        scheme = "http" if certificate is None else "https"
        shown = "127.0.0.1" if host in WILDCARDS else host
        self.url = f"{scheme}://{in_url(shown)}:{listening.getsockname()[1]}"
        self._thread = ServerThread(
            self.app,
            listening,
            name="training-server",
            sockets=SocketOptions(limits.message_bytes, limits.ping_seconds),
            lifespan="on",
            max_connections=limits.connections,
            head_seconds=limits.head_seconds,
            certificate=certificate,
        )

    def check(self) -> None:
        """Make sure that it answers and watches over its leases.

        Raises:
            EngineError: Where it does not any more: nobody would ever play what is waited for.
        """
        fault = self.connections.fault
        if fault is not None or not self._thread.alive:
            words = "its thread has ended" if fault is None else f"{type(fault).__name__}: {fault}"
            raise EngineError(f"the training server has stopped ({words}): resume the run") from fault

    def announce(self, version: int) -> None:
        """Tell all workers that there are newer weights."""
        self._version = version
        self.connections.announce(version)

    def status(self) -> ServerStatus:
        """The server's state now."""
        found = self._ledger.status()
        progress = self._progress
        state = progress.state
        busy = found.queue.waiting + found.queue.leased
        if state == "training" and busy and not self.connections.book.connected:
            state = "starved"
        malformed = {"malformed": self.connections.malformed} if self.connections.malformed else {}
        return ServerStatus(
            state=state,
            run=progress.run,
            env=self._run.env,
            step=progress.step,
            max_steps=progress.max_steps,
            policy_version=self._version,
            uptime_seconds=progress.uptime,
            seconds_left=progress.seconds_left,
            clients=self.connections.book.statuses(found.held),
            queue=found.queue,
            leases=found.leases,
            results={**found.results, **malformed},
        )

    def drain(self, reason: str, seconds: float) -> None:
        """Give out nothing more, tell the workers to stop, and wait for what they are still playing.

        Args:
            reason: What they are told.
            seconds: Longest to wait.
        """
        self._progress.draining()
        self.connections.drain(reason)
        deadline = time.monotonic() + seconds
        while self.connections.book.connected and time.monotonic() < deadline:
            time.sleep(0.05)

    def close(self) -> None:
        """Stop listening, and end all connections."""
        self._thread.stop()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_socket(host: str, port: int) -> socket.socket:
    """Listen on an address.

    Raises:
        ConfigError: Where that is not possible.
    """
    try:
        return listen(host, port)
    except OSError as fault:
        words = fault.strerror or fault
        raise ConfigError(f"{in_url(host)}:{port} cannot be listened on: {words}") from fault
