"""OpenAI's API for a policy that is being trained: ``/v1/models``, chat and text completions.

Who may use it is the business of the application that includes the routes, see :mod:`art_trainer.web`; so is
the largest body, and how an :class:`~art_trainer.web.errors.ApiError` is told. Log-probs are those of the
distribution that a token was sampled from, with temperature and filters, as vLLM's ``processed_logprobs``; at
temperature 0 they are the model's own.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from jinja2 import TemplateError

from art_trainer.sampler import SamplingParams
from art_trainer.serving.chat_answer import ChatAnswer
from art_trainer.serving.chat_request import ChatRequest
from art_trainer.serving.completion_answer import CompletionAnswer
from art_trainer.serving.completion_request import CompletionRequest
from art_trainer.serving.completion_request import Prompt as Given
from art_trainer.serving.replies import Ends
from art_trainer.serving.served_policy import Manner, Prompt, ServedPolicy
from art_trainer.serving.telling import ChatTelling, CompletionTelling, Telling, events
from art_trainer.serving.terms import Terms, read_sampling
from art_trainer.serving.wire import hung_up, models, read_json
from art_trainer.web.errors import ApiError

T = TypeVar("T")
Tell = Callable[[str], Telling]
"""Makes what writes the answer, from the model's name and version."""

_UNBUFFERED = {"X-Accel-Buffering": "no"}
"""A proxy such as nginx passes a stream on as it comes, where it is told so."""


def openai_router(served: ServedPolicy) -> APIRouter:
    """Make the routes.

    Args:
        served: Who answers.
    """
    router = APIRouter(prefix="/v1")

    @router.get("/models")
    async def list_models() -> Response:
        newest, *past = served.versions
        return JSONResponse(models(served.name, newest, served.context_limit, past=past))

    @router.get("/models/{model:path}")
    async def one_model(model: str) -> Response:
        version = served.wanted_version(model)
        shown = served.version if version is None else version
        newest, pinned = models(served.name, shown, served.context_limit)["data"]
        return JSONResponse(newest if version is None else pinned)

    @router.post("/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await _chat(served, request)

    @router.post("/completions")
    async def completions(request: Request) -> Response:
        return await _completions(served, request)

    return router


async def _chat(served: ServedPolicy, request: Request) -> Response:
    body = await read_json(request)
    wanted = ChatRequest.read(body)
    sampling = read_sampling(body, served.sampling)
    ends = Ends(wanted.terms.stops, sampling.stop_strings)
    manner = _manner(served, wanted.terms, sampling, ends)
    messages = [message.for_template() for message in wanted.messages]
    try:
        token_ids = served.chat.prompt(messages, wanted.tools)
    except TemplateError as refused:
        words = f"the model's chat template refuses these messages: {refused}"
        raise ApiError(words, param="messages") from refused
    prompt = served.prompt(token_ids, wanted.terms.max_tokens)

    def tell(model: str) -> Telling:
        answer = ChatAnswer(_wire_id("chatcmpl"), model, wanted, served.texts, prompt.token_ids)
        return ChatTelling(answer, ends, served.chat)

    return await _answer(served, request, [prompt], manner, tell, wanted.terms)


async def _completions(served: ServedPolicy, request: Request) -> Response:
    body = await read_json(request)
    wanted = CompletionRequest.read(body)
    sampling = read_sampling(body, served.sampling)
    ends = Ends(kept=wanted.terms.stops) if wanted.keep_stops else Ends(wanted.terms.stops)
    manner = _manner(served, wanted.terms, sampling, ends, wanted.stop_tokens)
    prompts = [
        served.prompt(_tokens(served, prompt, wanted), wanted.terms.max_tokens, "prompt")
        for prompt in wanted.prompts
    ]

    def tell(model: str) -> Telling:
        contexts = [prompt.token_ids for prompt in prompts]
        answer = CompletionAnswer(_wire_id("cmpl"), model, wanted, served.texts, contexts)
        return CompletionTelling(answer, ends, served.chat)

    return await _answer(served, request, prompts, manner, tell, wanted.terms)


def _manner(
    served: ServedPolicy,
    terms: Terms,
    sampling: SamplingParams,
    ends: Ends,
    stop_tokens: tuple[int, ...] = (),
) -> Manner:
    return Manner(
        sampling,
        ends,
        stop_tokens,
        alternatives=terms.logprobs or 0,
        count=terms.count,
        seed=terms.seed,
        version=served.wanted_version(terms.model),
    )


def _tokens(served: ServedPolicy, prompt: Given, wanted: CompletionRequest) -> Sequence[int]:
    if not isinstance(prompt, str):
        return prompt
    token_ids: list[int] = served.chat.tokenizer(prompt, add_special_tokens=wanted.special_tokens)[
        "input_ids"
    ]
    return token_ids


async def _answer(
    served: ServedPolicy,
    request: Request,
    prompts: Sequence[Prompt],
    manner: Manner,
    tell: Tell,
    terms: Terms,
) -> Response:
    asked = served.ask(prompts, manner, follow=terms.stream)
    streaming = False
    try:
        if terms.stream:
            version = await _unless_gone(asked.begun(), request)
            if version is not None:
                streaming = True
                telling = tell(f"{served.name}@{version}")
                return StreamingResponse(
                    events(asked, telling), media_type="text/event-stream", headers=_UNBUFFERED
                )
        else:
            replies = await _unless_gone(asked.replies(), request)
            if replies is not None:
                return JSONResponse(tell(f"{served.name}@{replies[0].version}").whole(replies))
        return Response(status_code=499)  # nobody reads it
    finally:
        if not streaming:
            asked.close()


async def _unless_gone(waiting: Coroutine[Any, Any, T], request: Request) -> T | None:
    """What is waited for; ``None`` where the client hangs up before it is there."""
    task = asyncio.ensure_future(waiting)
    gone = asyncio.ensure_future(hung_up(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for other in (task, gone):
            other.cancel()


def _wire_id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}"
