"""Training server: HTTP routes for weights and status, the workers' WebSockets, and their thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Response
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse, JSONResponse
from starlette.websockets import WebSocket

from art_trainer.config import LeaseOptions
from art_trainer.distributed.protocol import Limits, RunSpec, ServerStatus, State, WeightManifest
from art_trainer.distributed.task_queue import TaskQueue
from art_trainer.distributed.worker_connections import Connections
from art_trainer.errors import EngineError
from art_trainer.serving.http.middleware import AccessPolicy, ApiError, HostNames, RateLimit, check_access
from art_trainer.serving.http.server import Certificate, ServerThread, create_app
from art_trainer.tracking.callbacks import Outcome

if TYPE_CHECKING:  # it imports torch
    from art_trainer.distributed.weights import WeightStore

_ROUTES = "/status, /prompt, /model, /weights/{version}, /ws/{client_id} and /shutdown"
_ETA_STEPS = 10
_NO_VERSION = "there are no weights of this version, or no longer"
VersionNumber = Annotated[int, PathParameter(ge=0, le=2**53)]


class RunProgress:
    """Trainer callback that keeps the state and progress of a run for its status page.

    Args:
        run: The run's name.
        max_steps: How many steps it has.
        clock: Seconds from any start.

    Attributes:
        state: The run's state.
        step: Finished training steps.
    """

    def __init__(self, run: str, max_steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.run = run
        self.max_steps = max_steps
        self.state: State = "starting"
        self.step = 0
        self._clock = clock
        self._began = clock()
        self._ends: deque[float] = deque(maxlen=_ETA_STEPS + 1)

    @property
    def uptime(self) -> float:
        """Seconds since this was created."""
        return self._clock() - self._began

    @property
    def seconds_left(self) -> float | None:
        """Estimated time to the last step from the last few; ``None`` before the first."""
        if len(self._ends) < 2:
            return None
        return (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1) * (self.max_steps - self.step)

    def evaluating(self) -> None:
        """An evaluation begins."""
        self.state = "evaluating"

    def draining(self) -> None:
        """No more work is given out."""
        if self.state not in ("finished", "failed"):
            self.state = "draining"

    def on_begin(self, step: int) -> None:
        """Training begins."""
        self.step = step
        self.state = "training"
        self._ends.clear()
        self._ends.append(self._clock())

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """A step is done."""
        self.step = int(metrics.get("step", self.step + 1))
        self._ends.append(self._clock())

    def on_episode(self, *_: object, **__: object) -> None:
        """Ignored, like all that is written to the run's folder."""

    on_logged = on_checkpoint = on_episode

    def on_end(self, outcome: Outcome) -> None:
        """Training is over."""
        self.state = "draining" if outcome == "interrupted" else outcome


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Address, access and limits of a training server."""

    host: str = "127.0.0.1"
    """The address to listen on. Any but loopback needs a token."""
    port: int = 0
    """The port; 0 takes a free one."""
    token: str | None = None
    """Bearer token of every request; ``None`` for none."""
    allowed_hosts: Sequence[str] = ()
    """More accepted ``Host`` names, without ports."""
    certificate: Certificate | None = None
    """For TLS."""
    limits: Limits = field(default_factory=Limits)
    """Limits on clients."""
    leases: LeaseOptions = field(default_factory=LeaseOptions)
    """Timeouts and retries of leases."""
    routers: Sequence[APIRouter] = ()
    """More routes behind the same access control."""
    login_page: Callable[[int], Response] | None = None
    """Makes what ``GET /`` shows without a token, with the given status."""


class TrainingServer:
    """Gives out episodes and weights, and takes results, from its creation until :meth:`close`.

    Args:
        queue: Leases of episodes and their results.
        weights: The files that workers fetch.
        run: What workers need to know about the run.
        progress: Progress of the run.
        options: Address, access and limits.
        version: The first version of the weights.
        shut_down: Called from the server's thread by ``POST /shutdown``.

    Raises:
        ConfigError: If others could reach it without a token, the token is too short, or the address cannot
            be used.

    Attributes:
        url: The server's address.
        connections: The workers' sockets.
        app: The application.
    """

    def __init__(
        self,
        queue: TaskQueue,
        weights: WeightStore,
        run: RunSpec,
        *,
        progress: RunProgress,
        options: ServerOptions | None = None,
        version: int = 0,
        shut_down: Callable[[], None] = lambda: None,
    ) -> None:
        options = options or ServerOptions()
        limits = options.limits
        check_access(options.host, options.token, options.allowed_hosts)
        self._queue = queue
        self._weights = weights
        self._run = run
        self._progress = progress
        self._shut_down = shut_down
        self.connections = Connections(queue, run, limits, version=version, options=options.leases)
        policy = AccessPolicy(
            HostNames(options.host, options.allowed_hosts),
            limits.body_bytes,
            body_timeout=limits.body_seconds,
            token=options.token,
            allow_same_origin=True,
            login_page=options.login_page,
            rate=RateLimit(limits.requests_per_second, limits.burst),
            max_websockets=limits.sockets,
        )
        api = any(router.prefix == "/v1" for router in options.routers)
        routes = f"{_ROUTES}; OpenAI's and Anthropic's APIs begin with /v1" if api else _ROUTES
        self.app = create_app(policy, routes, lifespan=lambda app: self.connections.running())
        for router in (self._router(), *options.routers):
            self.app.include_router(router)
        self._thread = ServerThread(
            self.app,
            options.host,
            options.port,
            name="training-server",
            header_timeout=limits.head_seconds,
            certificate=options.certificate,
            lifespan="on",
            limit_concurrency=limits.connections,
            ws="websockets-sansio",
            ws_max_size=limits.message_bytes,
            ws_ping_interval=limits.ping_seconds,
            ws_ping_timeout=limits.ping_seconds,
            ws_per_message_deflate=False,
        )
        self.url = self._thread.url

    def check(self) -> None:
        """Check that it answers and that leases expire.

        Raises:
            EngineError: If not: the trainer would wait forever.
        """
        error = self.connections.error
        if error is not None or not self._thread.alive:
            why = "its thread has ended" if error is None else f"{type(error).__name__}: {error}"
            raise EngineError(f"the training server has stopped ({why}): resume the run") from error

    def status(self) -> ServerStatus:
        """Return the present state."""
        found = self._queue.status()
        progress = self._progress
        state = progress.state
        busy = found.queue.waiting + found.queue.leased
        if state == "training" and busy and not self.connections.connected:
            state = "starved"
        malformed = {"malformed": self.connections.malformed} if self.connections.malformed else {}
        return ServerStatus(
            state=state,
            run=progress.run,
            env=self._run.env,
            step=progress.step,
            max_steps=progress.max_steps,
            policy_version=self.connections.version,
            uptime_seconds=progress.uptime,
            seconds_left=progress.seconds_left,
            clients=self.connections.statuses(found.held),
            queue=found.queue,
            leases=found.leases,
            results={**found.results, **malformed},
        )

    def drain(self, reason: str, seconds: float) -> None:
        """Give out nothing more, tell workers to stop, and wait until they have, at most so many seconds."""
        self._progress.draining()
        self.connections.drain(reason)
        deadline = time.monotonic() + seconds
        while self.connections.connected and time.monotonic() < deadline:
            time.sleep(0.05)

    def close(self) -> None:
        """Stop listening, and end all connections."""
        self._thread.stop()

    def _router(self) -> APIRouter:
        router = APIRouter()
        router.add_api_route("/status", self.status, methods=["GET"])
        router.add_api_route("/model", self._weights.model, methods=["GET"])

        @router.get("/model/{name}")
        def model_file(name: str) -> Response:
            return _file(self._weights.model_path(name), "no such file of the model; /model lists them")

        @router.get("/weights/{version}")
        def weight_manifest(version: VersionNumber) -> WeightManifest:
            manifest = self._weights.manifest(version)
            if manifest is None:
                raise ApiError(_NO_VERSION, "not_found")
            return manifest

        @router.get("/weights/{version}/data")
        def weight_file(version: VersionNumber) -> Response:
            return _file(self._weights.path(version), _NO_VERSION)

        @router.post("/shutdown")
        def shut_down() -> Response:
            self._shut_down()
            return JSONResponse({"state": "draining"}, 202)

        @router.websocket("/ws/{client_id}")
        async def worker(socket: WebSocket, client_id: str) -> None:
            await self.connections.serve(socket, client_id)

        return router


class _LargeFileResponse(FileResponse):
    """Reads in larger chunks than the default: each costs a switch to another thread."""

    chunk_size = 2**20


def _file(path: Path | None, otherwise: str) -> Response:
    """Return a file's bytes, or those of the requested range."""
    try:
        if path is not None:
            stat = path.stat()
            return _LargeFileResponse(path, media_type="application/octet-stream", stat_result=stat)
    except FileNotFoundError:  # deleted this moment
        pass
    raise ApiError(otherwise, "not_found")
