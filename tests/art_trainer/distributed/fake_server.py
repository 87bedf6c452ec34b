"""A training server that a test scripts: the real protocol, real sockets, no task queue."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from art_trainer.distributed.protocol import (
    PROTOCOL_VERSION,
    ClientMessage,
    Hello,
    Lease,
    Message,
    RunSpec,
    TrainEpisodes,
    Welcome,
    read_client_message,
)
from art_trainer.distributed.weights import WeightStore
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.types import GroupSpec

SECONDS = 60.0
"""Longest that anything may take."""


def described(policy: TransformersPolicy, env: str = "toy") -> RunSpec:
    return RunSpec(
        env=env,
        env_args={},
        sampling=policy.sampling,
        record_states=False,
        history_window=None,
        max_context=policy.max_context,
        dtype="float32",
    )


class Line:
    """One connection of a worker, after its hello."""

    def __init__(self, socket: ServerConnection, client_id: str, hello: Hello) -> None:
        self.socket = socket
        self.client_id = client_id
        self.hello = hello
        self.heard: list[ClientMessage] = []

    async def say(self, message: Message) -> None:
        await self.socket.send(message.model_dump_json())

    async def hear(self, kind: type[Any], such: Callable[[Any], bool] = lambda _: True) -> Any:
        """The next message of a kind for which something is true; all are kept in ``heard``."""
        async with asyncio.timeout(SECONDS):
            while True:
                message = read_client_message(await self.socket.recv())
                self.heard.append(message)
                if isinstance(message, kind) and such(message):
                    return message

    def cut(self) -> None:
        """As a broken cable does."""
        self.socket.transport.abort()


class FakeServer:
    """Answers hellos, serves files, and hands each connection to the test."""

    def __init__(self, store: WeightStore, run: RunSpec) -> None:
        self.store = store
        self.run = run
        self.version = 0
        self.heartbeat = 0.1
        self.lease_seconds = 30.0
        self.known: set[str] = set()
        """Leases that are still a client's when it comes again."""
        self.greet: Callable[[Hello], Message | None] = lambda hello: None
        """What to say instead of a welcome."""
        self.change: Callable[[str, bytes], bytes] = lambda path, body: body
        """What happens to files on the way."""
        self.asked: list[str] = []
        self.lines: asyncio.Queue[Line] = asyncio.Queue()
        self._numbers = itertools.count()
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        options: Any = {"process_request": self._answer, "max_size": 2**26, "close_timeout": 0.2}
        async with serve(self._speak, "127.0.0.1", 0, **options) as server:
            self.url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
            yield

    async def line(self) -> Line:
        """The next connection."""
        async with asyncio.timeout(SECONDS):
            return await self.lines.get()

    def leases(self, count: int, seed: int = 3, batch: int = 0) -> TrainEpisodes:
        """Leases of one new group."""
        number = next(self._numbers)
        task = GroupSpec(seed, count, (batch, number))
        leases = [Lease.of(f"lease-{number}-{m}", f"token-{m}", task, m, 30.0) for m in range(count)]
        return TrainEpisodes(policy_version=self.version, leases=leases)

    async def _speak(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        hello = read_client_message(await socket.recv())
        assert isinstance(hello, Hello)
        instead = self.greet(hello)
        welcome = Welcome(
            protocol=PROTOCOL_VERSION,
            secret=hello.secret or "the-secret",
            run=self.run,
            policy_version=self.version,
            heartbeat_seconds=self.heartbeat,
            lease_seconds=self.lease_seconds,
            leases=[lease for lease in hello.leases if lease in self.known],
        )
        await socket.send((instead or welcome).model_dump_json())
        if instead is None:
            await self.lines.put(Line(socket, socket.request.path.rsplit("/", 1)[1], hello))
        try:
            await socket.wait_closed()
        except ConnectionClosed:
            return

    def _answer(self, socket: ServerConnection, request: Request) -> Response | None:
        if request.path.startswith("/ws/"):
            return None
        self.asked.append(request.path)
        match request.path.strip("/").split("/"):
            case ["model"]:
                body = self.store.model().model_dump_json().encode()
            case ["model", name]:
                body = _content(self.store.model_path(name))
            case ["weights", version, "data"]:
                body = _content(self.store.path(int(version)))
            case ["weights", version]:
                manifest = self.store.manifest(int(version))
                body = b"" if manifest is None else manifest.model_dump_json().encode()
        body = self.change(request.path, body)
        headers = Headers({"Content-Length": str(len(body)), "Connection": "close"})
        return Response(200 if body else 404, "", headers, body)


def _content(path: Path | None) -> bytes:
    return b"" if path is None else path.read_bytes()


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for something to become true, beside others."""
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.01)
