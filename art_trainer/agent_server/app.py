"""The HTTP side: OpenAI's API under one URL per episode, and who may use it.

Every route belongs to an episode and wants its secret as a bearer token. No cookie is read and none is set; a
browser's requests from other pages (they carry an Origin) and names that were made to point here (another
Host) are refused. The server fetches nothing that a client names.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from art_trainer.agent_server.chat_api import STREAM_END, ChatRequest, models, server_sent
from art_trainer.agent_server.errors import ApiError
from art_trainer.agent_server.sessions import Exchange, Reward, Session


class RewardBody(BaseModel):
    """What an agent posts at the end of its episode."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    reward: float
    success: bool | None = None
    metrics: dict[str, float] = Field(default_factory=dict, max_length=100)


class Guard:
    """Refuses foreign hosts and origins, and bodies that are too large, before anything is read.

    Args:
        app: What is guarded.
        hosts: Names, without ports, that a client may address the server by.
        max_body_bytes: Largest body.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], max_body_bytes: int) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it through."""
        if scope["type"] != "http":
            return
        fault = self._fault({name.lower(): value for name, value in scope["headers"]})
        if fault is not None:
            await JSONResponse(fault.to_json(), fault.status)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _fault(self, headers: dict[bytes, bytes]) -> ApiError | None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if _without_port(host) not in self._hosts:
            return ApiError("this server does not go by that name", code="wrong_host")
        if b"origin" in headers:
            return ApiError("web pages may not use this server", status=403, code="wrong_origin")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._max_body_bytes:
            return _too_large(self._max_body_bytes)
        return None


@dataclass(frozen=True, slots=True)
class Service:
    """What the routes serve.

    Attributes:
        find: The live session with an id.
        name: The policy's name.
        version: The weights' version.
        max_body_bytes: Largest body of a request.
    """

    find: Callable[[str], Session | None]
    name: str
    version: Callable[[], int]
    max_body_bytes: int


def make_app(service: Service, hosts: Collection[str]) -> FastAPI:
    """Make the application.

    Args:
        service: What it serves.
        hosts: Names, without ports, that a client may address the server by.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.service = service
    app.add_middleware(Guard, hosts=hosts, max_body_bytes=service.max_body_bytes)
    app.add_exception_handler(ApiError, _tell)
    app.add_exception_handler(HTTPException, _tell_unknown)
    app.include_router(_ROUTES)
    return app


def _authorised(episode: str, request: Request) -> Session:
    service: Service = request.app.state.service
    session = service.find(episode)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    known = hmac.compare_digest((session.token if session else "").encode(), token.encode())
    if session is None or not known or scheme.lower() != "bearer":
        raise ApiError(
            "no such episode, or not its token: send the episode's own token as a bearer token",
            status=401,
            code="invalid_api_key",
        )
    return session


Speaker = Annotated[Session, Depends(_authorised)]
_ROUTES = APIRouter(prefix="/episodes/{episode}")


@_ROUTES.post("/v1/chat/completions")
async def chat_completions(session: Speaker, request: Request) -> Response:
    """Answer with a chat completion."""
    body = await _json_body(request)
    asked = ChatRequest.read(body)
    exchange = session.exchange(
        asked,
        body=body,
        retry=request.headers.get("x-stainless-retry-count", "0") not in ("", "0"),
        key=request.headers.get("idempotency-key", ""),
    )
    if asked.stream:
        return StreamingResponse(_events(exchange), media_type="text/event-stream")
    return await _whole(exchange, request)


@_ROUTES.get("/v1/models")
async def list_models(session: Speaker, request: Request) -> Response:
    """Answer with the list of models."""
    service: Service = request.app.state.service
    return JSONResponse(models(service.name, service.version()))


@_ROUTES.post("/reward")
async def take_reward(session: Speaker, request: Request) -> Response:
    """Take the episode's reward, which ends it."""
    data = await _json_body(request)
    try:
        posted = RewardBody.model_validate(data)
    except ValidationError as wrong:
        first = wrong.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the body"
        raise ApiError(f"{place}: {first['msg']}", param=place) from None
    session.pay(Reward(posted.reward, posted.success, posted.metrics))
    return JSONResponse({"episode": session.id, "reward": posted.reward})


async def _whole(exchange: Exchange, request: Request) -> Response:
    """The completion, unless the client hangs up before it is there."""
    exchange.clients += 1
    waiting = asyncio.ensure_future(exchange.reply())
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            return Response(status_code=499)  # nobody reads it
        reply = waiting.result()
        reply.delivered = True
        return JSONResponse(exchange.answer.whole(reply))
    finally:
        exchange.clients -= 1
        for task in (waiting, gone):
            task.cancel()


async def _events(exchange: Exchange) -> AsyncIterator[str]:
    """The completion as server-sent events, words as soon as they are certain."""
    exchange.clients += 1
    said = ""
    try:
        yield server_sent(exchange.answer.first_chunk())
        while not exchange.complete:
            new, said = exchange.said[len(said) :], exchange.said
            if new:
                yield server_sent(exchange.answer.words(new))
                continue  # there may be more by now
            exchange.grown.clear()
            await exchange.grown.wait()
        try:
            reply = await exchange.reply()
        except ApiError as fault:
            yield server_sent(fault.to_json())
            return
        for chunk in exchange.answer.last_chunks(reply, said):
            yield server_sent(chunk)
        reply.delivered = True
        yield STREAM_END
    finally:
        exchange.clients -= 1


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _json_body(request: Request) -> dict[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(f"content-type is {kind!r}: send application/json", status=415)
    service: Service = request.app.state.service
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > service.max_body_bytes:
            raise _too_large(service.max_body_bytes)
    try:
        data = from_json(bytes(body), allow_inf_nan=False)
    except ValueError as wrong:
        raise ApiError(f"the body is not JSON: {wrong}") from None
    if not isinstance(data, dict):
        raise ApiError(f"the body is a {type(data).__name__}: send an object")
    return data


async def _tell(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, ApiError)
    return JSONResponse(fault.to_json(), fault.status)


async def _tell_unknown(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, HTTPException)
    words = f"{fault.detail}: this server has /v1/chat/completions, /v1/models and /reward of each episode"
    return JSONResponse(ApiError(words, code="not_found").to_json(), fault.status_code)


def _too_large(limit: int) -> ApiError:
    return ApiError(f"the body is larger than {limit} bytes", status=413, code="body_too_large")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    with contextlib.suppress(ValueError):
        name, port = host.rsplit(":", 1)
        return name if port.isdigit() else host
    return host
