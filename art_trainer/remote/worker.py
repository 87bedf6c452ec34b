"""A worker: leases episodes from a training server, plays them with the server's weights, sends them back.

Two threads. The main one runs an event loop: the socket, heartbeats, downloads. The other one plays. So a
worker says that it is alive while it computes, goes on to play while its connection is cut, and fetches new
weights while it plays with the old. Weights change between two batches of leases alone, never within an
episode.
"""

from __future__ import annotations

import asyncio
import platform
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Literal

import numpy as np

from art_trainer.errors import ConfigError
from art_trainer.remote.backoff import Backoff
from art_trainer.remote.client import Connection, MessageTooLarge, open_connection, server_address
from art_trainer.remote.compute import Compute, OwnModel, ServerModel
from art_trainer.remote.downloads import ServerFiles
from art_trainer.remote.fields import MAX_LEASES
from art_trainer.remote.identity import SecretFile, new_client_id
from art_trainer.remote.lease_work import EnvMaker, LeaseWork
from art_trainer.remote.messages import (
    PROTOCOL_VERSION,
    ErrorMessage,
    Hello,
    MessageError,
    ResultReceipt,
    RunDescription,
    ServerMessage,
    Shutdown,
    TrainEpisodes,
    UpdateModel,
    Welcome,
)
from art_trainer.remote.pending import Pending
from art_trainer.remote.play_thread import PlayThread
from art_trainer.remote.worker_errors import RefusedError, ServerChangedError, UnreachableError

_MOST_CAPACITY = MAX_LEASES // 4
"""A message names all leases that are played, waited for, or not acknowledged."""
_GRACE_SECONDS = 5.0
"""How long the last words may take."""
_SETTLED_SECONDS = 30.0
"""A connection that lasted so long was none of a row of failures."""
_KEPT = ("accepted", "duplicate")


class Worker:
    """Plays for a training server until the server or :meth:`stop` ends it.

    Args:
        url: The server's address, as in ``http://127.0.0.1:8000``.
        make_env: Makes the environment that the server names; the place to refuse one.
        cache: Where fetched files are kept; several workers may share it.
        token: The server's bearer token.
        client_id: The worker's name; ``None`` takes one that nobody has. A name that is given can be taken
            up again by another process with the same cache.
        capacity: Most episodes under way at one time.
        inference: Whether a model in this process samples (``own``) or the server (``server``).
        device: Where the model lives; ``None``: the first GPU, else the CPU.
        env_threads: As in :func:`~art_trainer.rollout.rollout`.
        patience: Seconds without a server after which the worker gives up.
        most_bytes: The largest file of weights that is fetched.
        rng: Draws how long to wait before trying again; by default seeded by the worker's name.
        say: Takes a line for whoever watches.

    Raises:
        ConfigError: For an address that is none, or a number out of range.

    Attributes:
        client_id: The worker's name.
        stuck: Whether :meth:`run` has returned while the play thread still computes.
    """

    def __init__(
        self,
        url: str,
        make_env: EnvMaker,
        cache: Path,
        *,
        token: str | None = None,
        client_id: str | None = None,
        capacity: int = 32,
        inference: Literal["own", "server"] = "own",
        device: str | None = None,
        env_threads: int = 0,
        patience: float = 600.0,
        most_bytes: int = 2**40,
        rng: np.random.Generator | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        if not 1 <= capacity <= _MOST_CAPACITY:
            raise ConfigError(f"capacity is from 1 to {_MOST_CAPACITY}, got {capacity}")
        self.client_id = client_id or new_client_id()
        self.stuck = False
        self._url = server_address(url)
        self._token = token
        self._make_env = make_env
        self._cache = cache
        self._capacity = capacity
        self._inference = inference
        self._device = device
        self._env_threads = env_threads
        self._patience = patience
        self._most_bytes = most_bytes
        self._backoff = Backoff(rng or np.random.default_rng(zlib.crc32(self.client_id.encode())))
        self._say: Callable[[str], None] = lambda words: say(f"{self.client_id}: {words}")
        self._secret_file = SecretFile(cache, self._url, self.client_id) if client_id else None
        self._secret: str | None = None
        self._run_known: RunDescription | None = None
        self._known = asyncio.Event()
        self._ending = asyncio.Event()
        self._asked_to_stop: str | None = None
        self._reason = ""
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending = Pending()
        self._work: LeaseWork

    def run(self) -> int:
        """Work until the server says that it is over, or somebody asks the worker to stop.

        SIGTERM and Ctrl-C, where this is the main thread, give the leases back and end it; a second one ends
        the process at once.

        Returns:
            0.

        Raises:
            RefusedError: The server will not have this worker, or the worker not what the server wants.
            UnreachableError: The server did not answer for ``patience`` seconds.
            ServerChangedError: The server has another run now.
            ConfigError: The environment cannot be made here.
        """
        return asyncio.run(self._main())

    def stop(self, reason: str = "the worker was asked to stop") -> None:
        """Give the leases back and end :meth:`run`, which may begin later; from any thread."""
        self._asked_to_stop = reason
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._end, reason)

    async def _main(self) -> int:
        self._loop = asyncio.get_running_loop()
        if self._asked_to_stop is not None:
            self._end(self._asked_to_stop)
        thread = PlayThread()
        files = ServerFiles(self._url, self._token, self._cache, self._backoff)
        self._work = LeaseWork(
            self._pending,
            self._compute(files, thread),
            thread,
            capacity=self._capacity,
            env_threads=self._env_threads,
            backoff=self._backoff,
            say=self._say,
        )
        connected = asyncio.create_task(self._stay_connected())
        tasks = [asyncio.create_task(self._ending.wait()), connected, asyncio.create_task(self._play())]
        try:
            with self._signals():
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                await self._leave(connected)
        finally:
            done = [task for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await files.close()
            self.stuck = not thread.close(_GRACE_SECONDS)
        for task in done:
            task.result()
        self._say(f"done: {self._reason}")
        return 0

    def _compute(self, files: ServerFiles, thread: PlayThread) -> Compute:
        if self._inference == "server":
            return ServerModel(self._url, self._token, files, thread, self._backoff)
        return OwnModel(
            files,
            thread,
            device=self._device,
            most_bytes=self._most_bytes,
            on_fault=lambda words: self._work.fault(words),
        )

    async def _play(self) -> None:
        await self._known.wait()
        assert self._run_known is not None
        await self._work.run(self._run_known, self._make_env)

    async def _stay_connected(self) -> None:
        """Connect, again and again.

        Raises:
            UnreachableError: Where patience is at its end.
            RefusedError: Where the server refuses.
        """
        failures, lost = 0, time.monotonic()
        while True:
            try:
                connection = await self._connect()
            except UnreachableError as fault:
                failures += 1
                if failures == 1:
                    self._say(f"{fault}; trying again")
                if time.monotonic() - lost > self._patience:
                    raise UnreachableError(f"given up after {self._patience:g} s: {fault}") from fault
                await asyncio.sleep(self._backoff.seconds(failures))
                continue
            began = time.monotonic()
            try:
                await self._session(connection)
            except MessageTooLarge as fault:
                self._drop_largest(str(fault))
            except UnreachableError as fault:
                self._say(f"{fault}; trying again")
            finally:
                self._connection = None
                await connection.close()
            lost = time.monotonic()
            failures = 0 if lost - began > _SETTLED_SECONDS else failures + 1
            await asyncio.sleep(self._backoff.seconds(failures) if failures > 1 else 0.0)

    async def _connect(self) -> Connection:
        if self._secret is None and self._secret_file is not None:
            self._secret = self._secret_file.read()
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            secret=self._secret,
            software=_software(),
            leases=[*self._work.leases, *self._pending.results],
        )
        return await open_connection(self._url, self.client_id, self._token, hello)

    async def _session(self, connection: Connection) -> None:
        """Speak with the server until the connection is lost.

        Raises:
            UnreachableError: It is.
            RefusedError: The server will not go on.
        """
        welcome = connection.welcome
        self._greeted(welcome)
        self._connection = connection
        speaking = [
            asyncio.create_task(self._listen(connection)),
            asyncio.create_task(self._send(connection)),
            asyncio.create_task(self._beat(connection, welcome)),
        ]
        try:
            done, _ = await asyncio.wait(speaking, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in speaking:
                task.cancel()
            await asyncio.gather(*speaking, return_exceptions=True)

    def _greeted(self, welcome: Welcome) -> None:
        if self._secret_file is not None and welcome.secret != self._secret:
            self._secret_file.write(welcome.secret)
        self._secret = welcome.secret
        if self._run_known is None:
            self._run_known = welcome.run
            self._say(f"plays {welcome.run.env} for {self._url}")
            self._known.set()
        elif welcome.run != self._run_known:
            raise ServerChangedError("the server has another run now: start the worker again")
        else:
            self._say("connected again")
        self._work.reconnected(welcome.leases, welcome.policy_version)
        self._pending.reconnected()

    async def _listen(self, connection: Connection) -> None:
        while True:
            try:
                message = await connection.receive()
            except MessageError as odd:
                self._work.fault(f"the server said what is not of the protocol: {odd}")
                continue
            self._hear(message)

    def _hear(self, message: ServerMessage) -> None:
        match message:
            case TrainEpisodes():
                self._work.grant(message)
            case ResultReceipt(lease=lease, outcome=outcome, reason=reason):
                self._pending.receipt(lease)
                if outcome not in _KEPT:
                    self._work.fault(f"a result was not taken: {outcome}{reason and f' ({reason})'}")
            case UpdateModel(policy_version=version):
                self._work.update(version)
            case Shutdown(reason=reason):
                self._end(reason)
            case ErrorMessage(code=code, message=words, fatal=True):
                raise RefusedError(f"the server refuses this worker ({code}): {words}")
            case ErrorMessage(code=code, message=words):
                self._work.fault(f"the server did not take a message ({code}): {words}")
                self._pending.ask_again()
            case _:
                self._work.fault(f"the server said {message.type} out of turn")

    async def _send(self, connection: Connection) -> None:
        while True:
            while (text := self._pending.take()) is not None:
                await connection.send(text)
            await self._pending.news.wait()

    async def _beat(self, connection: Connection, welcome: Welcome) -> None:
        while True:
            await connection.send(self._work.status().model_dump_json())
            # A little more often than asked for, since sleep is never shorter.
            await asyncio.sleep(0.9 * welcome.heartbeat_seconds)
            self._pending.repeat(welcome.lease_seconds / 2)

    def _drop_largest(self, reason: str) -> None:
        """Give up the result that the server will never take; the others follow."""
        lease = self._pending.largest()
        if lease is not None:
            self._pending.receipt(lease)
            self._pending.release([lease], f"its episode cannot be sent: {reason}", failed=True)

    async def _leave(self, connected: asyncio.Task[None]) -> None:
        """Give back what is not played, and send what is, as far as somebody listens."""
        self._work.give_back(self._reason or "the worker ends")
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._connection is not None and not connected.done() and time.monotonic() < deadline:
            if self._pending.told:
                return
            await asyncio.sleep(0.01)

    def _end(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._ending.set()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Within, the first SIGTERM or Ctrl-C ends the work; the second one does what it always does."""
        loop = asyncio.get_running_loop()
        caught = (signal.SIGTERM, signal.SIGINT)
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def end(name: str) -> None:
            for number in caught:
                loop.remove_signal_handler(number)
            self._end(f"it got {name}")

        for number in caught:
            loop.add_signal_handler(number, end, number.name)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)


def _software() -> dict[str, str]:
    """What the dashboard shows of this worker."""
    found = {"python": platform.python_version(), "system": platform.system()}
    for package in ("art-gym", "torch", "transformers"):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
