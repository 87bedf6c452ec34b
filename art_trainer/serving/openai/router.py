"""Routes of OpenAI's API for a policy in training: ``/v1/models``, chat and text completions.

Access control, body limits and the form of errors belong to the application, see
:mod:`art_trainer.serving.http`. Log-probs are those of the distribution that a token was sampled from, with
temperature and filters, as vLLM's ``processed_logprobs``; at temperature 0 they are the model's own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from art_trainer.serving.openai.chat_completions import ChatRequest, ChatWriter
from art_trainer.serving.openai.completions import CompletionRequest, CompletionWriter
from art_trainer.serving.openai.requests import Generation, GenerationRequest, parse, read_json_body
from art_trainer.serving.openai.responses import ResponseWriter, respond
from art_trainer.serving.openai.served_policy import ServedPolicy

DIALECTS: dict[str, tuple[type[GenerationRequest], type[ResponseWriter]]] = {
    "/chat/completions": (ChatRequest, ChatWriter),
    "/completions": (CompletionRequest, CompletionWriter),
}
"""The request and the response of each path."""


def openai_router(served: ServedPolicy) -> APIRouter:
    """Create the routes."""
    router = APIRouter(prefix="/v1")

    @router.get("/models")
    @router.get("/models/")
    async def list_models() -> Response:
        return JSONResponse(model_list(served.name, served.versions, served.context_limit))

    @router.get("/models/{model:path}")  # a path, since names such as Qwen/Qwen3-0.6B have a slash
    async def retrieve_model(model: str) -> Response:
        version = served.requested_version(model)
        versions = [] if version is None else [version]
        return JSONResponse(model_list(served.name, versions, served.context_limit)["data"][-1])

    for path in DIALECTS:
        router.add_api_route(path, _endpoint(served, *DIALECTS[path]), methods=["POST"])
    return router


def _endpoint(
    served: ServedPolicy, dialect: type[GenerationRequest], writer: type[ResponseWriter]
) -> Callable[[Request], Awaitable[Response]]:
    async def generate(request: Request) -> Response:
        data = await read_json_body(request)

        def read() -> tuple[list[list[int]], Generation]:
            body = parse(dialect, data)
            return body.prompts(served.chat), body.generation(served.sampling)

        prompts, generation = await served.chat.in_thread(read)
        pending = served.submit(generation, prompts)
        return await respond(request, pending, writer(generation, served.name, prompts, served.chat))

    return generate


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
