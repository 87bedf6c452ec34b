"""The HTTP side: OpenAI's API under one URL per episode, and who may use it.

Every route belongs to an episode and wants its secret as a bearer token. No cookie is read and none is set; a
browser's requests from other pages (they carry an Origin) and names that were made to point here (another
Host) are refused. The server fetches nothing that a client names.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from art_trainer.agent_server.requests import read_request
from art_trainer.agent_server.sessions import Exchange, Reward, Session
from art_trainer.serving.wire import STREAM_END, hung_up, models, read_json, server_sent
from art_trainer.web.app import guarded_app
from art_trainer.web.errors import ApiError
from art_trainer.web.guard import Rules


class RewardBody(BaseModel):
    """What an agent posts at the end of its episode."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    reward: float
    success: bool | None = None
    metrics: dict[str, float] = Field(default_factory=dict, max_length=100)


@dataclass(frozen=True, slots=True)
class Service:
    """What the routes serve.

    Attributes:
        find: The live session with an id.
        name: The policy's name.
        version: The weights' version.
    """

    find: Callable[[str], Session | None]
    name: str
    version: Callable[[], int]


def make_app(service: Service, rules: Rules) -> FastAPI:
    """Make the application.

    Args:
        service: What it serves.
        rules: Who may come in at all; the episodes' own secrets are its routes' business.
    """
    app = guarded_app(rules, "/v1/chat/completions, /v1/models and /reward of each episode")
    app.state.service = service
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
    body = await read_json(request)
    asked = read_request(body)
    exchange = session.exchange(
        asked,
        body=body,
        retry=request.headers.get("x-stainless-retry-count", "0") not in ("", "0"),
        key=request.headers.get("idempotency-key", ""),
    )
    if asked.terms.stream:
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
    data = await read_json(request)
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
    gone = asyncio.ensure_future(hung_up(request))
    try:
        await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            return Response(status_code=499)  # nobody reads it
        reply = waiting.result()
        reply.delivered = True
        return JSONResponse(exchange.answer.whole([reply]))
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
        for chunk in (*exchange.answer.last_chunks(reply, said), *exchange.answer.closing([reply])):
            yield server_sent(chunk)
        reply.delivered = True
        yield STREAM_END
    finally:
        exchange.clients -= 1
