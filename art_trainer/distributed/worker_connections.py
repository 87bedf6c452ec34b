"""WebSocket connections of workers: handshake, leases out, results in.

Everything runs in the server's event loop, except that any thread may call ``wake``, ``announce``, ``drain``
and ``statuses`` of :class:`Connections`. A socket's next message is read when the one before is done with; a
result, when it is on disk. So a worker that is faster than the disk waits.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.websockets import WebSocket, WebSocketDisconnect

from art_trainer.config import LeaseOptions
from art_trainer.distributed.protocol import (
    CLIENT_ID,
    FROM_CLIENT,
    PROTOCOL_VERSION,
    ClientMessage,
    ClientStatus,
    EpisodeResult,
    ErrorMessage,
    Hello,
    LeaseRequest,
    Limits,
    Message,
    MessageError,
    ReleaseLeases,
    ResultReceipt,
    RunSpec,
    Shutdown,
    StatusUpdate,
    TrainEpisodes,
    UpdateModel,
    Welcome,
    read_message,
)
from art_trainer.distributed.result_log import ResultLogError
from art_trainer.distributed.task_queue import TaskQueue
from art_trainer.serving.http.middleware import RateLimit

NORMAL, REFUSED, TRY_AGAIN = 1000, 1008, 1013
"""Close codes of a socket: done, a rule was broken, a temporary failure."""
_LARGE = 100_000
"""Characters above which a message is parsed in another thread, so as not to block the loop."""
_THREADS = 8
"""Results that may wait for the disk at one time; they share its fsyncs. More threads would take the
interpreter's lock from the event loop more often."""
_GRANTS = 32
"""Workers that get leases in one turn of the event loop: a thousand at once would keep all others waiting."""
_TICK_SECONDS = 1.0
_Value = TypeVar("_Value")
_log = logging.getLogger(__name__)


class RejectedError(Exception):
    """A message or worker for which the socket is closed.

    Attributes:
        code: A short name of the error.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True)
class _Client:
    """A known worker; its name belongs to whoever has its secret."""

    id: str
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    software: Mapping[str, str] = field(default_factory=dict)
    seen: float = 0.0
    last_status: StatusUpdate | None = None

    def status(self, *, connected: bool, leases: int) -> ClientStatus:
        """Return what the server's status shows of it."""
        last = self.last_status
        return ClientStatus(
            id=self.id,
            connected=connected,
            policy_version=last.policy_version if last else None,
            leases=leases,
            episodes_played=last.episodes_played if last else 0,
            episodes_per_second=last.episodes_per_second if last else 0.0,
            last_seen_seconds=max(0.0, time.monotonic() - self.seen),
            last_error=last.last_error if last else None,
            software=dict(self.software),
        )


class WorkerConnection:
    """One socket, with a bounded queue of messages: a worker that does not read delays nobody else.

    Args:
        socket: The socket, accepted.
        limits: Limits on workers.

    Attributes:
        closed: Whether it ends when all messages are sent; later ones are dropped.
    """

    client: _Client
    """The worker, after its handshake."""

    def __init__(self, socket: WebSocket, limits: Limits) -> None:
        self.malformed = 0
        self.closed = False
        self._socket = socket
        self._limits = limits
        self._queue: asyncio.Queue[str | tuple[int, str]] = asyncio.Queue()
        """Texts, and last the code and reason with which to close."""

    def put(self, message: Message) -> None:
        """Send a message after those before it; closes the socket if too many wait."""
        if self.closed:
            return
        most = self._limits.queued_messages
        if self._queue.qsize() >= most:
            while not self._queue.empty():
                self._queue.get_nowait()
            self.close(REFUSED, f"{most} messages wait for you: read faster")
        else:
            self._queue.put_nowait(message.model_dump_json())

    def refuse(self, code: str, message: str) -> None:
        """Send a fatal error and close the socket."""
        self.put(ErrorMessage(code=code, message=message[:2000], fatal=True))
        self.close(REFUSED, code)

    def close(self, code: int, reason: str) -> None:
        """Close the socket when all messages are sent."""
        if not self.closed:
            self.closed = True
            self._queue.put_nowait((code, reason[:120]))

    async def send_queued(self) -> None:
        """Send until the socket is closed.

        Raises:
            TimeoutError: If the client does not read.
        """
        while True:
            item = await self._queue.get()
            async with asyncio.timeout(self._limits.send_seconds):
                if isinstance(item, tuple):
                    await self._socket.close(*item)
                    return
                await self._socket.send_text(item)

    async def receive(self) -> str:
        """Return the text of the next message.

        Raises:
            WebSocketDisconnect: If the client has closed the socket.
            MessageError: If it is a binary message.
        """
        received = await self._socket.receive()
        if received["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(received["code"])
        text = received.get("text")
        if text is None:
            raise MessageError("the message: send text frames that hold JSON, not binary ones")
        return str(text)


class Connections:
    """All connections of workers.

    Args:
        queue: Leases and results.
        run: What workers need to know about the run.
        limits: Limits on workers.
        version: The first version of the weights.
        options: Timeouts of leases.

    Attributes:
        version: The newest version.
        malformed: How many messages were invalid.
        error: Why leases no longer expire; ``None`` if they do.
    """

    def __init__(
        self, queue: TaskQueue, run: RunSpec, limits: Limits, *, version: int, options: LeaseOptions
    ) -> None:
        self.version = version
        self.malformed = 0
        self.error: BaseException | None = None
        self._queue = queue
        self._run = run
        self._limits = limits
        self._lease_seconds = options.lease_seconds
        self._rate = RateLimit(limits.messages_per_second, limits.messages_per_second)
        self._clients: dict[str, _Client] = {}
        self._connections: dict[str, WorkerConnection] = {}
        """Those after their handshake, by the worker's name."""
        self._pending_requests: dict[WorkerConnection, int] = {}
        self._writes = True
        """Whether the last result could be written; who runs the server is told when that changes."""
        self._drain_reason: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="results")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Within, leases expire and messages are answered."""
        self._loop = asyncio.get_running_loop()
        ticking = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            self._loop = None
            ticking.cancel()
            await asyncio.wait((ticking,))
            self._threads.shutdown()

    @property
    def connected(self) -> int:
        """How many workers are connected."""
        return len(self._connections)

    def statuses(self, leases: Mapping[str, int]) -> list[ClientStatus]:
        """Return the status of all known workers by name.

        Args:
            leases: How many leases each holds.
        """
        return [
            client.status(connected=name in self._connections, leases=leases.get(name, 0))
            for name, client in sorted(self._clients.items())
        ]

    def wake(self) -> None:
        """There may be work for those who asked."""
        self._call_soon(self._dispatch)

    def announce(self, version: int) -> None:
        """Tell all workers about newer weights."""
        self.version = version
        self._call_soon(lambda: self._broadcast(UpdateModel(policy_version=version)))

    def drain(self, reason: str) -> None:
        """Give out nothing more and tell all workers to stop; results are still taken."""
        self._drain_reason = reason
        self._call_soon(lambda: self._broadcast(Shutdown(reason=reason)))

    async def serve(self, socket: WebSocket, client_id: str) -> None:
        """Serve one worker until either side closes the socket."""
        await socket.accept()
        connection = WorkerConnection(socket, self._limits)
        sending = asyncio.create_task(connection.send_queued())
        receiving = asyncio.create_task(self._receive(connection, client_id))
        try:
            await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
            if receiving.done() and receiving.exception() is None:  # the reason is still to be sent
                await asyncio.wait((sending,), timeout=self._limits.send_seconds)
            elif sending.done() and isinstance(sending.exception(), WebSocketDisconnect):
                await asyncio.wait((receiving,), timeout=self._limits.send_seconds)  # it reads the close code
        finally:
            sending.cancel()
            receiving.cancel()
            ended = await asyncio.gather(sending, receiving, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception) and not isinstance(error, WebSocketDisconnect | TimeoutError):
                raise error

    async def _receive(self, connection: WorkerConnection, client_id: str) -> None:
        """Read messages; returns when this side wants the socket closed."""
        try:
            await self._handshake(connection, client_id)
            while not connection.closed:
                while wait := self._rate.take(client_id):
                    await asyncio.sleep(wait)
                try:
                    message = await self._read(connection)
                except MessageError as error:
                    self._answer_malformed(connection, str(error))
                    continue
                connection.client.seen = time.monotonic()
                await self._handle(connection, message)
        except RejectedError as error:
            connection.refuse(error.code, str(error))
        except WebSocketDisconnect as ended:
            self._pending_requests.pop(connection, None)
            # A lease may have been granted while the worker was leaving: nobody else waits for its end.
            if ended.code == NORMAL and self._connections.get(client_id) is connection:
                await self._in_thread(lambda: self._queue.release(client_id, None, "it is done", False))
            raise
        finally:
            self._pending_requests.pop(connection, None)
            if self._connections.get(client_id) is connection:
                del self._connections[client_id]

    async def _read(self, connection: WorkerConnection) -> ClientMessage:
        text = await connection.receive()
        if len(text) > _LARGE:
            return await self._in_thread(lambda: read_message(FROM_CLIENT, text))
        return read_message(FROM_CLIENT, text)

    async def _handshake(self, connection: WorkerConnection, client_id: str) -> None:
        """Admit a new or returning worker.

        Raises:
            RejectedError: If it may not connect.
        """
        seconds = self._limits.hello_seconds
        try:
            async with asyncio.timeout(seconds):
                hello = await self._read(connection)
            if not isinstance(hello, Hello):
                raise MessageError(f"the first message must be hello, not {hello.type}")
        except TimeoutError:
            raise RejectedError("no_hello", f"no hello within {seconds:g} seconds") from None
        except MessageError as error:
            self.malformed += 1
            raise RejectedError("malformed", str(error)) from None
        client = connection.client = self._register(client_id, hello)
        client.software = dict(hello.software)
        client.seen = time.monotonic()
        before = self._connections.pop(client_id, None)
        if before is not None:
            self._pending_requests.pop(before, None)
            before.close(NORMAL, "you connected again")
        self._connections[client_id] = connection
        connection.put(self._welcome(client, hello))
        if self._drain_reason is not None:
            connection.put(Shutdown(reason=self._drain_reason))

    def _register(self, client_id: str, hello: Hello) -> _Client:
        if re.fullmatch(CLIENT_ID, client_id) is None:
            raise RejectedError("bad_client_id", f"a client's id has to match {CLIENT_ID}")
        if hello.protocol != PROTOCOL_VERSION:
            raise RejectedError(
                "wrong_protocol",
                f"this server speaks version {PROTOCOL_VERSION} of the protocol, you speak {hello.protocol}: "
                "install the same version of art-gym on both sides",
            )
        client = self._clients.get(client_id)
        if client is None:
            self._make_room()
            client = self._clients[client_id] = _Client(client_id)
        elif not hmac.compare_digest(client.secret.encode(), (hello.secret or "").encode()):
            raise RejectedError(
                "id_taken", "this id is another client's: send its secret, or take another id"
            )
        return client

    def _make_room(self) -> None:
        """Forget the worker that has been gone for longest if too many are known."""
        if len(self._clients) < self._limits.clients:
            return
        gone = [client for client in self._clients.values() if client.id not in self._connections]
        if not gone:
            raise RejectedError("too_many_clients", f"{self._limits.clients} clients are connected")
        del self._clients[min(gone, key=lambda client: client.seen).id]

    def _welcome(self, client: _Client, hello: Hello) -> Welcome:
        return Welcome(
            protocol=PROTOCOL_VERSION,
            secret=client.secret,
            run=self._run,
            policy_version=self.version,
            heartbeat_seconds=min(10.0, self._lease_seconds / 4),
            lease_seconds=self._lease_seconds,
            leases=self._queue.renew(client.id, hello.leases),
        )

    def _answer_malformed(self, connection: WorkerConnection, why: str) -> None:
        """Answer an invalid message.

        Raises:
            RejectedError: If there were too many.
        """
        self.malformed += 1
        connection.malformed += 1
        if connection.malformed >= self._limits.malformed:
            raise RejectedError("malformed", f"{connection.malformed} messages were invalid; {why}")
        connection.put(ErrorMessage(code="malformed", message=why[:2000]))

    async def _handle(self, connection: WorkerConnection, message: ClientMessage) -> None:
        client = connection.client.id
        match message:
            case LeaseRequest():
                self._pending_requests[connection] = message.count
                self._dispatch()
            case StatusUpdate():
                connection.client.last_status = message
                self._queue.renew(client, message.leases)
            case ReleaseLeases(leases=leases, reason=reason, failed=failed):
                await self._in_thread(lambda: self._queue.release(client, leases, reason, failed))
            case EpisodeResult():
                await self._take_result(connection, message)
            case Hello():
                self._answer_malformed(connection, "type: hello was sent already")

    async def _take_result(self, connection: WorkerConnection, result: EpisodeResult) -> None:
        try:
            receipt = await self._in_thread(lambda: self._commit(connection.client.id, result))
        except ResultLogError as error:
            # The worker still has the result, and sends it again on its next connection.
            if self._writes:
                _log.error("%s. Training waits for them: make room", error)
            self._writes = False
            connection.put(ErrorMessage(code="not_logged", message=str(error)[:2000]))
            connection.close(TRY_AGAIN, "the result could not be written; send it again later")
            return
        if not self._writes:
            _log.warning("results are written again")
        self._writes = True
        connection.put(receipt)

    def _commit(self, client: str, result: EpisodeResult) -> ResultReceipt:
        try:
            episode = result.episode.episode()
        except ValueError as error:
            self._queue.release(client, [result.lease], f"not an episode: {error}"[:2000], True)
            return ResultReceipt(lease=result.lease, outcome="invalid", reason=str(error)[:2000])
        outcome, reason = self._queue.result(client, result.lease, result.token, episode)
        return ResultReceipt(lease=result.lease, outcome=outcome, reason=reason[:2000])

    def _dispatch(self) -> None:
        """Grant leases to those who asked, in order, as far as there is work; each gets a share."""
        if (
            self._drain_reason is not None
            or not self._pending_requests
            or not (waiting := self._queue.waiting)
        ):
            return
        granted = 0
        for connection, wanted in list(self._pending_requests.items()):
            if granted == _GRANTS:
                self._call_soon(self._dispatch)
                return
            share = max(1, -(-waiting // len(self._pending_requests)))
            leases = self._queue.lease(connection.client.id, min(wanted, share))
            waiting -= len(leases)
            if leases:
                granted += 1
                del self._pending_requests[connection]
                connection.put(TrainEpisodes(policy_version=self.version, leases=leases))
            if not waiting:
                return

    def _broadcast(self, message: Message) -> None:
        for connection in self._connections.values():
            connection.put(message)

    async def _tick(self) -> None:
        """Expire leases; an error is for the trainer, since without the ticks they never expire."""
        try:
            while True:
                await asyncio.sleep(_TICK_SECONDS)
                await self._in_thread(self._queue.expire)
                self._dispatch()
        except Exception as error:
            self.error = error

    async def _in_thread(self, work: Callable[[], _Value]) -> _Value:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _call_soon(self, work: Callable[[], None]) -> None:
        """Run something in the event loop; ignored if it has ended."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it was closed this moment
                loop.call_soon_threadsafe(work)
