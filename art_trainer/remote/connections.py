"""The sockets of the workers: their words in, leases and receipts out.

All of it lives in the server's event loop, but for ``wake``, ``announce`` and ``drain`` of
:class:`Connections`, which any thread may call. Of one socket the next message is read when the one before it
is done with, a result when it is on disk: a worker that is faster than the disk waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from starlette.websockets import WebSocket, WebSocketDisconnect

from art_trainer.remote.clients import Client, ClientBook, ClientRefused
from art_trainer.remote.fields import Message
from art_trainer.remote.journal import JournalError
from art_trainer.remote.ledger import Ledger
from art_trainer.remote.limits import Limits
from art_trainer.remote.messages import (
    PROTOCOL_VERSION,
    ClientMessage,
    EpisodeResult,
    ErrorMessage,
    Hello,
    Lease,
    LeaseRequest,
    MessageError,
    ReleaseLeases,
    ResultReceipt,
    RunDescription,
    Shutdown,
    StatusUpdate,
    TrainEpisodes,
    UpdateModel,
    Welcome,
    read_client_message,
)
from art_trainer.remote.outbox import NORMAL, Outbox
from art_trainer.web.rates import RateLimit

_TRY_AGAIN = 1013
"""A socket is closed for a fault that may pass."""
_LARGE = 100_000
"""Messages of so many characters are read in another thread: they would hold up everybody."""
_THREADS = 32
"""Results that may be on their way to the disk at one time; they share its fsyncs."""
_TICK = 1.0
_Value = TypeVar("_Value")


@dataclass(eq=False, slots=True)
class _Line:
    """A worker's socket, after its ``hello``."""

    client: Client
    outbox: Outbox
    faults: int = 0


class Connections:
    """Speaks with workers.

    Args:
        ledger: Who may play what, and what became of it.
        run: What workers are told of the run.
        limits: What is taken from them.
        version: Of the weights that there are at first.
        lease_seconds: How long a lease lasts that is not renewed.

    Attributes:
        book: The workers.
        malformed: How many messages were none.
        fault: What has ended the watch over the leases; ``None``: it goes on.
    """

    def __init__(
        self, ledger: Ledger, run: RunDescription, limits: Limits, *, version: int, lease_seconds: float
    ) -> None:
        self.book = ClientBook(limits.clients)
        self.malformed = 0
        self.fault: BaseException | None = None
        self._ledger = ledger
        self._run = run
        self._limits = limits
        self._version = version
        self._lease_seconds = lease_seconds
        self._rate = RateLimit(limits.messages_per_second, limits.messages_per_second)
        self._lines: dict[str, _Line] = {}
        self._asking: dict[_Line, int] = {}
        self._leaving: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="results")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Within, leases run out and messages are answered."""
        self._loop = asyncio.get_running_loop()
        ticking = asyncio.create_task(self._tick())
        ticking.add_done_callback(self._note_fault)
        try:
            yield
        finally:
            self._loop = None
            ticking.cancel()
            await asyncio.wait((ticking,))
            self._threads.shutdown()

    def wake(self) -> None:
        """There may be work for those who asked for it."""
        self._soon(self._hand_out)

    def announce(self, version: int) -> None:
        """There are newer weights."""
        self._version = version
        self._soon(lambda: self._tell_all(UpdateModel(policy_version=version)))

    def drain(self, reason: str) -> None:
        """Give out nothing more, and tell all workers to stop; results are taken on."""
        self._leaving = reason
        self._soon(lambda: self._tell_all(Shutdown(reason=reason)))

    async def serve(self, socket: WebSocket, client_id: str) -> None:
        """Speak with one worker until either side closes the socket."""
        await socket.accept()
        outbox = Outbox(socket, most=self._limits.outbox, seconds=self._limits.send_seconds)
        sending = asyncio.create_task(outbox.run())
        listening = asyncio.create_task(self._listen(socket, outbox, client_id))
        try:
            await asyncio.wait((sending, listening), return_when=asyncio.FIRST_COMPLETED)
            if listening.done() and listening.exception() is None:  # it has said why it listens no more
                await asyncio.wait((sending,), timeout=self._limits.send_seconds)
        finally:
            sending.cancel()
            listening.cancel()
            ended = await asyncio.gather(sending, listening, return_exceptions=True)
        for fault in ended:
            if isinstance(fault, Exception) and not isinstance(fault, WebSocketDisconnect | TimeoutError):
                raise fault

    async def _listen(self, socket: WebSocket, outbox: Outbox, client_id: str) -> None:
        """Read a socket to its end; returns where this side wants it closed."""
        line = await self._enter(socket, outbox, client_id)
        if line is None:
            return
        try:
            while True:
                while wait := self._rate.take(client_id):
                    await asyncio.sleep(wait)
                try:
                    message = await self._read(socket)
                except MessageError as wrong:
                    if not self._forgives(line, str(wrong)):
                        return
                    continue
                self.book.heard(line.client)
                if not await self._answer(line, message):
                    return
        finally:
            self._leave(line)

    async def _enter(self, socket: WebSocket, outbox: Outbox, client_id: str) -> _Line | None:
        try:
            async with asyncio.timeout(self._limits.hello_seconds):
                hello = await self._read(socket)
            if not isinstance(hello, Hello):
                raise MessageError(f"the first message is a hello, not a {hello.type}")
            client = self.book.enter(client_id, hello)
        except TimeoutError:
            outbox.refuse("no_hello", f"no hello within {self._limits.hello_seconds:g} seconds")
            return None
        except MessageError as wrong:
            self.malformed += 1
            outbox.refuse("malformed", str(wrong))
            return None
        except ClientRefused as refused:
            outbox.refuse(refused.code, str(refused))
            return None
        line = _Line(client, outbox)
        before = self._lines.pop(client_id, None)
        if before is not None:
            self._asking.pop(before, None)
            before.outbox.close(NORMAL, "you came again on another connection")
        self._lines[client_id] = line
        outbox.put(self._welcome(client, hello))
        if self._leaving is not None:
            outbox.put(Shutdown(reason=self._leaving))
        return line

    def _welcome(self, client: Client, hello: Hello) -> Welcome:
        return Welcome(
            protocol=PROTOCOL_VERSION,
            secret=client.secret,
            run=self._run,
            policy_version=self._version,
            heartbeat_seconds=min(10.0, self._lease_seconds / 4),
            lease_seconds=self._lease_seconds,
            leases=self._ledger.renew(client.id, hello.leases),
        )

    def _leave(self, line: _Line) -> None:
        self._asking.pop(line, None)
        if self._lines.get(line.client.id) is line:
            del self._lines[line.client.id]
            line.client.connected = False

    async def _read(self, socket: WebSocket) -> ClientMessage:
        received = await socket.receive()
        if received["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(received["code"])
        text = received.get("text")
        if text is None:
            raise MessageError("the message: send text frames that hold JSON, not binary ones")
        if len(text) > _LARGE:
            return await self._in_thread(lambda: read_client_message(text))
        return read_client_message(text)

    def _forgives(self, line: _Line, words: str) -> bool:
        self.malformed += 1
        line.faults += 1
        if line.faults >= self._limits.malformed:
            line.outbox.refuse("malformed", f"{line.faults} messages were none of the protocol; {words}")
            return False
        line.outbox.put(ErrorMessage(code="malformed", message=words[:2000]))
        return True

    async def _answer(self, line: _Line, message: ClientMessage) -> bool:
        """Do what a message asks for; false where the socket is to be closed."""
        client = line.client.id
        match message:
            case LeaseRequest():
                self._asking[line] = message.count
                self._hand_out()
            case StatusUpdate():
                line.client.update(message)
                self._ledger.renew(client, message.leases)
            case ReleaseLeases(leases=leases, reason=reason, failed=failed):
                await self._in_thread(lambda: self._ledger.release(client, leases, reason, failed))
            case EpisodeResult():
                return await self._take_result(line, message)
            case Hello():
                return self._forgives(line, "type: this connection has said hello already")
        return True

    async def _take_result(self, line: _Line, result: EpisodeResult) -> bool:
        try:
            receipt = await self._in_thread(lambda: self._judged(line.client.id, result))
        except JournalError as fault:
            # The worker still has it, and sends it again when it comes again.
            line.outbox.put(ErrorMessage(code="not_journalled", message=str(fault)[:2000]))
            line.outbox.close(_TRY_AGAIN, "the result could not be written; send it again later")
            return False
        line.outbox.put(receipt)
        return True

    def _judged(self, client: str, result: EpisodeResult) -> ResultReceipt:
        try:
            episode, timing = result.played()
        except ValueError as wrong:
            self._ledger.release(client, [result.lease], f"not an episode: {wrong}"[:2000], True)
            return ResultReceipt(lease=result.lease, outcome="invalid", reason=str(wrong)[:2000])
        outcome, reason = self._ledger.result(client, result.lease, result.token, episode, timing)
        return ResultReceipt(lease=result.lease, outcome=outcome, reason=reason[:2000])

    def _hand_out(self) -> None:
        """Give those who asked, in the order in which they did, leases as far as there are any."""
        for line in list(self._asking):
            if self._leaving is not None:
                return
            granted = self._ledger.lease(line.client.id, self._share(self._asking[line]))
            if not granted:
                continue
            del self._asking[line]
            leases = [Lease.of(each.id, each.token, each.task, each.member, each.seconds) for each in granted]
            line.outbox.put(TrainEpisodes(policy_version=self._version, leases=leases))

    def _share(self, wanted: int) -> int:
        """As many of the leases that a worker wants as leave some to the others who wait."""
        if len(self._asking) == 1:
            return wanted
        waiting = self._ledger.status().queue.waiting
        return max(1, min(wanted, -(-waiting // len(self._asking))))

    def _tell_all(self, message: Message) -> None:
        for line in self._lines.values():
            line.outbox.put(message)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            # What is not journalled now is so a second later, or when the disk has room again.
            with suppress(JournalError):
                await self._in_thread(self._ledger.expire)
            self._hand_out()

    def _note_fault(self, ticking: asyncio.Task[None]) -> None:
        """Without the watch leases do not run out: the trainer has to know, for it waits for them."""
        if not ticking.cancelled():
            self.fault = ticking.exception()

    async def _in_thread(self, work: Callable[[], _Value]) -> _Value:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _soon(self, work: Callable[[], None]) -> None:
        """Do something in the event loop; where it runs no more there is nobody left to tell."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it was closed this moment
                loop.call_soon_threadsafe(work)
