"""Rollout worker: leases episodes from a training server, plays them with its weights, sends them back.

Two threads: the main one runs an event loop (socket, heartbeats, downloads), the other one plays. So a worker
sends heartbeats while it computes, plays on while its connection is cut, and fetches new weights while it
plays with the old. Weights change only between batches of leases, never within an episode.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import signal
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, wait
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np
from websockets.asyncio.client import ClientConnection
from websockets.frames import CloseCode

from art_trainer.distributed.protocol import (
    FROM_SERVER,
    MAX_LEASES,
    PROTOCOL_VERSION,
    ErrorMessage,
    Hello,
    MessageError,
    ResultReceipt,
    RunSpec,
    ServerMessage,
    Shutdown,
    TrainEpisodes,
    UpdateModel,
    Welcome,
    read_message,
)
from art_trainer.distributed.worker.connection import (
    Backoff,
    RefusedError,
    ServerChangedError,
    UnreachableError,
    lost_connections,
    new_client_id,
    open_connection,
    secret_file,
    server_address,
)
from art_trainer.distributed.worker.downloads import ArtifactCache
from art_trainer.distributed.worker.executor import DaemonThread, EnvMaker, LeaseExecutor
from art_trainer.distributed.worker.inference import Inference, LocalInference, RemoteInference
from art_trainer.errors import ConfigError
from art_trainer.tracking.run_dir import write_text

_MAX_CAPACITY = MAX_LEASES // 4
"""One message names all leases that are played, queued, or without a receipt."""
_GRACE_SECONDS = 5.0
"""How long the last messages may take."""
_STABLE_SECONDS = 30.0
"""A connection that lasted this long resets the backoff."""
_log = logging.getLogger(__name__)


class Worker:
    """Plays for a training server until the server or :meth:`stop` ends it.

    Args:
        url: The server's address, as in ``http://127.0.0.1:8000``.
        make_env: Creates the environment that the server names, or refuses to.
        cache: Where fetched files are kept; several workers may share it.
        token: The server's bearer token.
        client_id: The worker's name; ``None`` takes a new one. Another process with the same cache can reuse
            a given name.
        capacity: Most episodes under way at one time.
        inference: Whether a model in this process samples (``own``) or the server (``server``).
        device: Where the model goes; ``None``: the first GPU, else the CPU.
        env_threads: As in :func:`~art_trainer.rollout.episodes.rollout_episodes`.
        patience: Seconds without a server after which the worker gives up.

    Raises:
        ConfigError: If the address is none, or a number out of range.

    Attributes:
        client_id: The worker's name.
        stuck: Whether :meth:`run` returned while the inference thread still computes.
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
    ) -> None:
        if not 1 <= capacity <= _MAX_CAPACITY:
            raise ConfigError(f"capacity is from 1 to {_MAX_CAPACITY}, got {capacity}")
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
        self._backoff = Backoff(np.random.default_rng(zlib.crc32(self.client_id.encode())))
        self._secret: str | None = None
        self._secret_file = secret_file(cache, self._url, client_id) if client_id else None
        self._run_spec: asyncio.Future[RunSpec]
        """What is played, from the first welcome on."""
        self._ending = asyncio.Event()
        self._reason = ""
        """Why it ends, once it does."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outbox: asyncio.Queue[str] | None = None
        """Messages to send; ``None`` without a connection."""
        self._executor: LeaseExecutor

    def run(self) -> None:
        """Work until the server ends it, or somebody asks the worker to stop.

        In the main thread SIGTERM and Ctrl-C release the leases and end it; a second one ends the process.

        Raises:
            RefusedError: The server rejects this worker, or the worker the server's run.
            UnreachableError: The server did not answer for ``patience`` seconds.
            ServerChangedError: The server has another run now.
            ConfigError: The environment cannot be created here.
        """
        asyncio.run(self._main())

    def stop(self, reason: str = "the worker was asked to stop") -> None:
        """Release the leases and end :meth:`run`, even one that begins later; from any thread."""
        self._reason = self._reason or reason
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._ending.set)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._reason:
            self._ending.set()
        self._run_spec = self._loop.create_future()
        thread = DaemonThread()
        files = ArtifactCache(self._url, self._token, self._cache, self._backoff)
        self._executor = LeaseExecutor(
            self._put,
            self._make_inference(files, thread),
            capacity=self._capacity,
            backoff=self._backoff,
            name=self.client_id,
        )
        connected = asyncio.create_task(self._stay_connected())
        tasks = [asyncio.create_task(self._ending.wait()), connected, asyncio.create_task(self._play())]
        try:
            with self._signals():
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                await self._flush(connected)
        finally:
            done = [task for task in tasks if task.done()]
            await _cancel(tasks)
            await files.close()
            self.stuck = bool(wait([thread.submit(lambda: None)], _GRACE_SECONDS).not_done)
            thread.shutdown()
        for task in done:
            task.result()
        _log.info("%s: done: %s", self.client_id, self._reason)

    def _make_inference(self, files: ArtifactCache, thread: Executor) -> Inference:
        common = files, thread, self._capacity, self._env_threads
        if self._inference == "server":
            return RemoteInference(*common, url=self._url, token=self._token, backoff=self._backoff)
        return LocalInference(*common, device=self._device)

    async def _play(self) -> None:
        await self._executor.run(await self._run_spec, self._make_env)

    async def _stay_connected(self) -> None:
        """Connect again and again.

        Raises:
            UnreachableError: After ``patience`` seconds without a server.
            RefusedError: If the server rejects this worker.
        """
        failures, lost = 0, time.monotonic()
        while True:
            try:
                socket, welcome = await self._connect()
            except UnreachableError as error:
                failures += 1
                if failures == 1:
                    _log.warning("%s: %s; trying again", self.client_id, error)
                if time.monotonic() - lost > self._patience:
                    raise UnreachableError(f"gave up after {self._patience:g} s: {error}") from error
                await asyncio.sleep(self._backoff.seconds(failures))
                continue
            connected = time.monotonic()
            try:
                with lost_connections():
                    await self._session(socket, welcome)
            except UnreachableError as error:
                _log.warning("%s: %s; trying again", self.client_id, error)
            finally:
                self._outbox = None
                await socket.close(
                    CloseCode.NORMAL_CLOSURE if self._ending.is_set() else CloseCode.GOING_AWAY
                )
            lost = time.monotonic()
            failures = 0 if lost - connected > _STABLE_SECONDS else failures + 1
            await asyncio.sleep(self._backoff.seconds(failures) if failures > 1 else 0.0)

    async def _connect(self) -> tuple[ClientConnection, Welcome]:
        if self._secret is None and self._secret_file is not None and self._secret_file.exists():
            self._secret = self._secret_file.read_text(encoding="ascii", errors="replace")
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            secret=self._secret,
            software=_software(),
            leases=[*self._executor.leases, *self._executor.results],
        )
        return await open_connection(self._url, self.client_id, self._token, hello)

    async def _session(self, socket: ClientConnection, welcome: Welcome) -> None:
        """Communicate until the connection is lost.

        Raises:
            ConnectionClosed: It is lost.
            RefusedError: The server rejects this worker.
        """
        outbox = self._outbox = asyncio.Queue()
        self._handle_welcome(welcome)
        tasks = [
            asyncio.create_task(self._receive(socket)),
            asyncio.create_task(self._send(socket, outbox)),
            asyncio.create_task(self._send_heartbeats(welcome)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _cancel(tasks)

    def _handle_welcome(self, welcome: Welcome) -> None:
        if self._secret_file is not None and welcome.secret != self._secret:
            write_text(self._secret_file, welcome.secret)
        self._secret = welcome.secret
        if not self._run_spec.done():
            self._run_spec.set_result(welcome.run)
            _log.info("%s: plays %s for %s", self.client_id, welcome.run.env, self._url)
        elif welcome.run != self._run_spec.result():
            raise ServerChangedError("the server has another run now: start the worker again")
        else:
            _log.info("%s: connected again", self.client_id)
        self._executor.reconnected(welcome.leases, welcome.policy_version)

    async def _receive(self, socket: ClientConnection) -> None:
        while True:
            text = await socket.recv()
            try:
                message = read_message(FROM_SERVER, text)
            except MessageError as error:
                self._executor.report_error(f"invalid message from server: {error}")
            else:
                self._handle(message)

    def _handle(self, message: ServerMessage) -> None:
        executor = self._executor
        match message:
            case TrainEpisodes():
                executor.grant(message)
            case ResultReceipt():
                executor.receipt(message)
            case UpdateModel(policy_version=version):
                executor.update(version)
            case Shutdown(reason=reason):
                self.stop(reason)
            case ErrorMessage(code=code, message=text, fatal=True):
                raise RefusedError(f"the server refuses this worker ({code}): {text}")
            case ErrorMessage(code=code, message=text):
                executor.report_error(f"the server rejected a message ({code}): {text}")
            case _:
                executor.report_error(f"unexpected {message.type} message from server")

    def _put(self, text: str) -> None:
        """Send a message, if there is a connection."""
        if self._outbox is not None:
            self._outbox.put_nowait(text)

    async def _send(self, socket: ClientConnection, outbox: asyncio.Queue[str]) -> None:
        while True:
            await socket.send(await outbox.get())
            outbox.task_done()

    async def _send_heartbeats(self, welcome: Welcome) -> None:
        while True:
            self._put(self._executor.status().model_dump_json())
            # A little more often than asked for: sleep is never shorter.
            await asyncio.sleep(0.9 * welcome.heartbeat_seconds)
            self._executor.resend_older(welcome.lease_seconds / 2)

    async def _flush(self, connected: asyncio.Task[None]) -> None:
        """Release unplayed leases and send results as long as there is a connection."""
        self._executor.close(self._reason or "the worker ends")

        async def flushed() -> None:
            while self._outbox is not None and self._executor.results:
                await asyncio.sleep(0.01)
            if self._outbox is not None:
                await self._outbox.join()

        flushing = asyncio.create_task(flushed())
        await asyncio.wait((flushing, connected), timeout=_GRACE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        await _cancel([flushing])

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Within, the first SIGTERM or Ctrl-C ends the work; a second one has its default effect."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)

        def end(name: str) -> None:
            for number in numbers:
                loop.remove_signal_handler(number)
            self.stop(f"it got {name}")

        for number in numbers:
            loop.add_signal_handler(number, end, number.name)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _software() -> dict[str, str]:
    """Return versions for the dashboard."""
    found = {"python": platform.python_version(), "system": platform.system()}
    for package in ("art-gym", "torch", "transformers"):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
