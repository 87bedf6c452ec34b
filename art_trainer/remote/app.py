"""The routes of a training server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket

from art_trainer.remote.connections import Connections
from art_trainer.remote.messages import ModelManifest, WeightManifest
from art_trainer.remote.status import ServerStatus
from art_trainer.web.app import guarded_app
from art_trainer.web.errors import ApiError
from art_trainer.web.guard import Rules

_KNOWN = "/status, /model, /weights/{version}, /ws/{client_id} and /shutdown"


class Weights(Protocol):
    """Where the files lie that workers fetch; see :class:`art_trainer.remote.weights.WeightStore`."""

    def manifest(self, version: int | None = None) -> WeightManifest | None:
        """What is to be known of a version's file, by default of the newest's."""

    def path(self, version: int) -> Path | None:
        """The file."""

    def model(self) -> ModelManifest:
        """The files of the model below the weights."""

    def model_path(self, name: str) -> Path | None:
        """One of them; ``None`` for a name that is not among them."""


@dataclass(frozen=True, slots=True)
class Service:
    """What the routes serve.

    Attributes:
        connections: The workers' sockets.
        weights: Files to be fetched.
        status: The server's state now.
        shut_down: Begins to end the run; returns at once.
    """

    connections: Connections
    weights: Weights
    status: Callable[[], ServerStatus]
    shut_down: Callable[[], None]


def make_app(service: Service, rules: Rules, routers: Sequence[APIRouter] = ()) -> FastAPI:
    """Make the application.

    Args:
        service: What it serves.
        rules: Who may come in.
        routers: Other routes, behind the same door.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.connections.running():
            yield

    app = guarded_app(rules, _KNOWN, lifespan=lifespan)
    app.state.service = service
    for router in (_ROUTES, *routers):
        app.include_router(router)
    return app


def _service(connection: HTTPConnection) -> Service:
    found: Service = connection.app.state.service
    return found


Serving = Annotated[Service, Depends(_service)]


class _LargeFile(FileResponse):
    """Reads in larger pieces than usual: each costs a trip to another thread."""

    chunk_size = 2**20


VersionNumber = Annotated[int, PathParameter(ge=0, le=2**53)]
_ROUTES = APIRouter()


@_ROUTES.get("/status")
def tell_status(serving: Serving) -> Response:
    """Answer with a :class:`~art_trainer.remote.status.ServerStatus`."""
    return _json(serving.status())


@_ROUTES.get("/model")
def list_model(serving: Serving) -> Response:
    """Answer with a :class:`~art_trainer.remote.messages.ModelManifest`."""
    return _json(serving.weights.model())


@_ROUTES.get("/model/{name}")
def send_model_file(serving: Serving, name: str) -> Response:
    """Answer with one of the files that the manifest lists."""
    return _file(serving.weights.model_path(name), "no such file of the model; /model lists them")


@_ROUTES.get("/weights/{version}")
def describe_weights(serving: Serving, version: VersionNumber) -> Response:
    """Answer with a :class:`~art_trainer.remote.messages.WeightManifest`."""
    manifest = serving.weights.manifest(version)
    if manifest is None:
        raise _gone(f"there are no weights of version {version}, or none any more")
    return _json(manifest)


@_ROUTES.get("/weights/{version}/data")
def send_weights(serving: Serving, version: VersionNumber) -> Response:
    """Answer with a version's file."""
    return _file(
        serving.weights.path(version), f"there are no weights of version {version}, or none any more"
    )


@_ROUTES.post("/shutdown")
def shut_down(serving: Serving, request: Request) -> Response:
    """End the run: no new leases, what is being played is waited for, a checkpoint is written."""
    serving.shut_down()
    return JSONResponse({"state": "draining"}, 202)


@_ROUTES.websocket("/ws/{client_id}")
async def speak(socket: WebSocket, client_id: str) -> None:
    """Speak the protocol of :mod:`art_trainer.remote.messages`."""
    await _service(socket).connections.serve(socket, client_id)


def _json(model: BaseModel) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")


def _gone(words: str) -> ApiError:
    return ApiError(words, status=404, code="not_found")


def _file(path: Path | None, otherwise: str) -> Response:
    """A file's bytes, or those of a range that was asked for."""
    try:
        if path is not None:
            return _LargeFile(path, media_type="application/octet-stream", stat_result=path.stat())
    except FileNotFoundError:  # deleted this moment
        pass
    raise _gone(otherwise)
