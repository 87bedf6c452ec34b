"""A training server on loopback, and a client that speaks as a test wants it to."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from art_trainer.config import LeaseOptions
from art_trainer.distributed.protocol import EpisodeData, RunSpec
from art_trainer.distributed.result_log import ResultLog
from art_trainer.distributed.server import RunProgress, ServerOptions, TrainingServer
from art_trainer.distributed.task_queue import TaskQueue
from art_trainer.distributed.weights import WeightStore
from art_trainer.distributed.worker_connections import WorkerConnection
from art_trainer.inference.transformers_policy import TransformersPolicy
from tests.art_trainer.distributed.played import episode, task
from tests.art_trainer.guess import guess_policy
from tests.art_trainer.waiting import until

TOKEN = "a-token-that-nobody-guesses"


def described(policy: TransformersPolicy, env: str = "toy") -> RunSpec:
    """What a worker needs to play with a policy."""
    return RunSpec(
        env=env,
        env_args={},
        sampling=policy.sampling,
        record_states=False,
        history_window=None,
        max_context=policy.max_context,
        dtype="float32",
    )


@dataclass
class Served:
    """A server and what is behind it."""

    server: TrainingServer
    queue: TaskQueue
    policy: TransformersPolicy
    weights: WeightStore
    folder: Path

    def http(self, token: str | None = TOKEN, **headers: str) -> httpx.Client:
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        return httpx.Client(base_url=self.server.url, headers=headers, timeout=300, trust_env=False)

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

    @contextmanager
    def deaf(self) -> Iterator[WorkerConnection]:
        """The server's side of a worker that stops to read as soon as two messages wait for it."""
        with self.dial("deaf", max_queue=1, ping_interval=None, close_timeout=0.1) as socket:
            socket.send('{"type": "hello", "protocol": 1}')
            connections = self.server.connections._connections
            until(lambda: "deaf" in connections)
            yield connections["deaf"]


class Wire:
    """Messages as dicts."""

    welcome: dict[str, Any]

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def say(self, **message: Any) -> None:
        self.socket.send(json.dumps(message))

    def hear(self, timeout: float = 30) -> dict[str, Any]:
        return dict(json.loads(self.socket.recv(timeout)))

    def ask(self, **message: Any) -> dict[str, Any]:
        self.say(**message)
        return self.hear()

    def lease(self, count: int = 1) -> list[dict[str, Any]]:
        answer = self.ask(type="lease_request", count=count)
        assert answer["type"] == "train_episodes"
        return list(answer["leases"])

    def play(self, lease: dict[str, Any], **changes: Any) -> dict[str, Any]:
        return self.ask(**played(lease, **changes))


def played(lease: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A result of a lease."""
    made = episode(task(seed=lease["seed"]), reward=changes.pop("reward", 1.0))
    result = {"type": "episode_result", "lease": lease["lease"], "token": lease["token"]}
    return result | {"episode": EpisodeData.of(made).model_dump(mode="json")} | changes


@contextmanager
def served(folder: Path, *, token: str | None = TOKEN, **options: Any) -> Iterator[Served]:
    """A server that has published version 0."""
    log = ResultLog(folder / "journal")
    leases = LeaseOptions(options.pop("lease_seconds", 60.0))
    queue = TaskQueue(
        log,
        options=leases,
        max_staleness=options.pop("max_staleness", 0),
        clock=options.pop("clock", time.monotonic),
        on_work=lambda: server.connections.wake(),
    )
    policy = options.pop("policy", None) or guess_policy(hidden=16)
    weights = WeightStore(folder / "weights", policy)
    weights.publish(0)
    server = TrainingServer(
        queue,
        weights,
        described(policy, options.pop("env", "toy/Echo-v0")),
        progress=options.pop("progress", RunProgress("run", 3)),
        options=ServerOptions(token=token, leases=leases, **options),
    )
    queue.publish(0)
    with closing(server):
        yield Served(server, queue, policy, weights, folder)
    queue.close()
    log.close()
