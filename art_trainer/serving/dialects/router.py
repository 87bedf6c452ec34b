"""Routes of the APIs that a policy in training answers: OpenAI's and Anthropic's.

OpenAI's are chat and text completions, responses and the list of models; Anthropic's are messages and the
count of a prompt's tokens. Access control, body limits and the form of errors belong to the application, see
:mod:`art_trainer.serving.http`. Log-probs are those of the distribution that a token was sampled from, with
temperature and filters, as vLLM's ``processed_logprobs``; at temperature 0 they are the model's own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from art_trainer.serving.dialects.chat import AgentChat
from art_trainer.serving.dialects.chat_completions import ChatRequest, ChatWriter
from art_trainer.serving.dialects.completions import CompletionRequest, CompletionWriter
from art_trainer.serving.dialects.conversation import ConversationRequest
from art_trainer.serving.dialects.messages import MessagesRequest, MessagesWriter, TokenCountRequest
from art_trainer.serving.dialects.requests import DialectRequest, Generation, parse, read_json_body
from art_trainer.serving.dialects.responses import ResponsesRequest, ResponsesWriter, StoredResponses
from art_trainer.serving.dialects.served_policy import ServedPolicy
from art_trainer.serving.dialects.streams import respond
from art_trainer.serving.dialects.writers import ResponseWriter

CONVERSATIONS: Mapping[str, tuple[type[ConversationRequest], type[ResponseWriter]]] = {
    "/chat/completions": (ChatRequest, ChatWriter),
    "/responses": (ResponsesRequest, ResponsesWriter),
    "/messages": (MessagesRequest, MessagesWriter),
}
"""The request and the response of each path that continues a conversation."""


def dialect_router(served: ServedPolicy) -> APIRouter:
    """Create the routes."""
    router, stored = APIRouter(prefix="/v1"), StoredResponses()

    @router.get("/models")
    @router.get("/models/")
    async def list_models() -> Response:
        return JSONResponse(model_list(served.name, served.versions, served.context_limit))

    @router.get("/models/{model:path}")  # a path, since names such as Qwen/Qwen3-0.6B have a slash
    async def retrieve_model(model: str) -> Response:
        version = served.requested_version(model)
        versions = [] if version is None else [version]
        return JSONResponse(model_list(served.name, versions, served.context_limit)["data"][-1])

    @router.post("/messages/count_tokens")
    async def count_tokens(request: Request) -> Response:
        return await token_count(request, served.chat)

    dialects: dict[str, tuple[type[DialectRequest], type[ResponseWriter]]] = {
        **CONVERSATIONS,
        "/completions": (CompletionRequest, CompletionWriter),
    }
    for path, dialect in dialects.items():
        router.add_api_route(path, _endpoint(served, stored, *dialect), methods=["POST"])
    return router


def _endpoint(
    served: ServedPolicy,
    stored: StoredResponses,
    dialect: type[DialectRequest],
    writer: type[ResponseWriter],
) -> Callable[[Request], Awaitable[Response]]:
    async def generate(request: Request) -> Response:
        data = await read_json_body(request)

        def read() -> tuple[DialectRequest, list[list[int]], Generation]:
            body = parse(dialect, data, stored)
            return body, body.prompts(served.chat), body.generation(served.sampling)

        body, prompts, generation = await served.chat.in_thread(read)
        pending = served.submit(generation, prompts)
        return await respond(request, pending, writer(body, generation, served.name, prompts, served.chat))

    return generate


async def token_count(request: Request, chat: AgentChat) -> Response:
    """Answer with the number of a prompt's tokens."""
    data = await read_json_body(request)
    (prompt,) = await chat.in_thread(lambda: parse(TokenCountRequest, data).prompts(chat))
    return JSONResponse({"input_tokens": len(prompt)})


def model_list(name: str, versions: Iterable[int], context_limit: int | None = None) -> dict[str, Any]:
    """List the served models: the policy by its name, and by ``NAME@VERSION``.

    Args:
        name: The policy's name.
        versions: Of its weights.
        context_limit: Most tokens of prompt and reply, vLLM's ``max_model_len``.
    """
    common = {"object": "model", "created": 0, "owned_by": "art-trainer", "root": name}
    common["max_model_len"] = context_limit
    newest = {"id": name, "parent": None, **common}
    pinned = [{"id": f"{name}@{version}", "parent": name, **common} for version in versions]
    return {"object": "list", "data": [newest, *pinned]}
