"""A training server on loopback, and a client that speaks as a test wants it to."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from art_trainer.episodes import Ending, Episode, Span, TokenHistory, Turn
from art_trainer.remote.episode_data import EpisodeData
from art_trainer.remote.journal import Journal
from art_trainer.remote.ledger import Ledger
from art_trainer.remote.messages import FileEntry, ModelManifest, RunDescription, Sampling, WeightManifest
from art_trainer.remote.progress import RunProgress
from art_trainer.remote.server import TrainingServer
from art_trainer.starts import GroupTask

TOKEN = "a-token-that-nobody-guesses"
RUN = RunDescription(
    env="toy/Echo-v0",
    env_args={},
    sampling=Sampling(
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        repetition_penalty=1.0,
        stop_strings=[],
        max_new_tokens=4,
    ),
    record_states=False,
    history_window=None,
    max_context=None,
    dtype="float32",
)


class Shelf:
    """Weights of version 0, and a model of one file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._file = folder / "weights"
        self._file.write_bytes(b"w" * 3_000_000)
        (folder / "config.json").write_text("{}")
        (folder / "secret.txt").write_text("not to be fetched")
        self._folder = folder

    def manifest(self, version: int | None = None) -> WeightManifest | None:
        if version not in (None, 0):
            return None
        entry = FileEntry(name="weights", size=3_000_000, sha256="0" * 64)
        return WeightManifest(policy_version=0, kind="full", file=entry)

    def path(self, version: int) -> Path | None:
        return self._file if version == 0 else None

    def model(self) -> ModelManifest:
        return ModelManifest(files=[FileEntry(name="config.json", size=2, sha256="0" * 64)])

    def model_path(self, name: str) -> Path | None:
        return self._folder / name if name == "config.json" else None


@dataclass
class Served:
    """A server and what is behind it."""

    server: TrainingServer
    ledger: Ledger
    folder: Path

    def http(self, token: str | None = TOKEN, **headers: str) -> httpx.Client:
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        return httpx.Client(base_url=self.server.url, headers=headers, timeout=30, trust_env=False)

    def dial(
        self, client_id: str = "w1", token: str | None = TOKEN, path: str = "/ws/", **options: Any
    ) -> ClientConnection:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        headers |= options.pop("headers", {})
        url = self.server.url.replace("http", "ws") + path + client_id
        return connect(url, additional_headers=headers, proxy=None, compression=None, **options)

    @contextmanager
    def worker(self, client_id: str = "w1", **hello: Any) -> Iterator[Wire]:
        with self.dial(client_id) as socket:
            wire = Wire(socket)
            wire.welcome = wire.ask(type="hello", **{"protocol": 1, **hello})
            yield wire


class Wire:
    """Messages as dicts."""

    welcome: dict[str, Any]

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def say(self, **message: Any) -> None:
        self.socket.send(json.dumps(message))

    def hear(self, timeout: float = 30) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads(self.socket.recv(timeout))
        return heard

    def ask(self, **message: Any) -> dict[str, Any]:
        self.say(**message)
        return self.hear()

    def lease(self, count: int = 1) -> list[dict[str, Any]]:
        answer = self.ask(type="lease_request", count=count)
        assert answer["type"] == "train_episodes"
        leases: list[dict[str, Any]] = answer["leases"]
        return leases

    def play(self, lease: dict[str, Any], **changes: Any) -> dict[str, Any]:
        return self.ask(**played(lease, **changes))


def played(lease: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A result of a lease."""
    reward = changes.pop("reward", 1.0)
    data = EpisodeData.of(episode_of(lease["seed"], reward, changes.pop("version", 0)))
    body = json.loads(data.model_dump_json())
    return {
        "type": "episode_result",
        "lease": lease["lease"],
        "token": lease["token"],
        "episode": body,
    } | changes


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something that other threads bring about."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def episode_of(seed: int, reward: float = 1.0, version: int = 0) -> Episode:
    """An episode of one turn and three tokens."""
    spans = (Span((5, 6), None, (), version), Span((7,), 0, (-0.25,), version))
    turn = Turn("red", "Right.", reward)
    return Episode(
        "toy/Echo-v0", "train-1", seed, "Say red!", (turn,), (TokenHistory(spans),), Ending.TERMINATED
    )


def task(place: int = 0, *, size: int = 2, batch: int = 0) -> GroupTask:
    """The task of a group."""
    return GroupTask(seed=100 + place, size=size, rng_seed=(1, batch, place), batch=batch)


@contextmanager
def served(folder: Path, *, token: str | None = TOKEN, **options: Any) -> Iterator[Served]:
    """A server that has published version 0."""
    journal = Journal(folder / "journal")
    lease_seconds = options.pop("lease_seconds", 60.0)
    ledger = Ledger(
        journal,
        lease_seconds=lease_seconds,
        max_staleness=options.pop("max_staleness", 0),
        clock=options.pop("clock", time.monotonic),
        on_work=lambda: server.connections.wake(),
    )
    options.setdefault("progress", RunProgress("run", 3))
    server = TrainingServer(
        ledger, Shelf(folder / "shelf"), RUN, token=token, lease_seconds=lease_seconds, **options
    )
    ledger.publish(0)
    with server:
        yield Served(server, ledger, folder)
    ledger.close()
    journal.close()
