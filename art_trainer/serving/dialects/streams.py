"""Requests in progress, and their responses: whole, or as server-sent events while replies are sampled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from art_trainer.serving.dialects.batch_scheduler import GenerationJob, GenerationOutput
from art_trainer.serving.dialects.writers import ResponseWriter
from art_trainer.serving.http.middleware import ApiError

T = TypeVar("T")


class PendingRequest:
    """The replies of one request; created in the event loop that waits for them.

    Args:
        jobs: One job for each reply.
        results: The reply of each job.
        stream: Whether to wake waiters at each token, not only when a reply is complete.

    Attributes:
        changed: Set at the next change, and then replaced: take it before looking at the jobs.
    """

    def __init__(
        self,
        jobs: Sequence[GenerationJob],
        results: Iterable[Awaitable[GenerationOutput]],
        *,
        stream: bool,
    ) -> None:
        self.jobs = jobs
        self.results = [asyncio.ensure_future(result) for result in results]
        self._loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()
        for job, result in zip(jobs, self.results, strict=True):
            result.add_done_callback(self._notify)
            if stream:
                job.on_token = self._post

    async def started_version(self) -> int:
        """Wait until sampling has started; return the version of the weights.

        Raises:
            ApiError: Sampling failed.
        """
        while True:
            changed = self.changed
            for job, result in zip(self.jobs, self.results, strict=True):
                if result.done():
                    return result.result().version
                if job.started_version is not None and job.run.token_ids:
                    return job.started_version
            await changed.wait()

    async def outputs(self) -> list[GenerationOutput]:
        """Wait for all replies; whoever stops waiting does not end the sampling.

        Raises:
            ApiError: Sampling failed.
        """
        return [await asyncio.shield(result) for result in self.results]

    def delivered(self) -> None:
        """The client receives all replies."""

    def close(self) -> None:
        """Cancel unfinished replies: the client has left, or has them all."""
        for job in self.jobs:
            job.cancelled = True

    def _post(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._notify)

    def _notify(self, result: asyncio.Future[GenerationOutput] | None = None) -> None:
        if result is not None and not result.cancelled():
            result.exception()  # reported by whoever waits, if anybody does
        self.changed.set()
        self.changed = asyncio.Event()


async def respond(request: Request, pending: PendingRequest, writer: ResponseWriter) -> Response:
    """Answer with all replies, or with a stream of events once the first token is there.

    Args:
        request: The HTTP request; if its client disconnects, nobody waits any longer.
        pending: The replies; closed at the end.
        writer: Writes them.

    Raises:
        ApiError: Sampling failed.
    """
    streams, responding = writer.generation.stream, False
    try:
        # The status of a stream is decided once the first token is there.
        waits: Coroutine[Any, Any, object] = pending.started_version() if streams else pending.outputs()
        if await _unless_disconnected(request, waits) is None:
            return Response(status_code=499)
        writer.begin(await pending.started_version())
        if streams:
            responding = True
            return _EventStream(pending, writer)
        body = writer.whole(await pending.outputs())
        pending.delivered()
        return JSONResponse(body)
    finally:
        if not responding:
            pending.close()


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Await something; ``None`` if the client disconnects first."""

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, left = asyncio.ensure_future(work), asyncio.ensure_future(disconnect())
    try:
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        left.cancel()


class _EventStream(StreamingResponse):
    """Server-sent events, which proxies such as nginx do not buffer; text as soon as it is certain."""

    def __init__(self, pending: PendingRequest, writer: ResponseWriter) -> None:
        events = _events(pending, writer)
        super().__init__(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._pending = pending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._pending.close()


async def _events(pending: PendingRequest, writer: ResponseWriter) -> AsyncIterator[str]:
    try:
        unfinished = dict(enumerate(pending.jobs))
        for index in unfinished:
            for chunk in writer.start(index):
                yield _event(chunk)
        while unfinished:
            changed = pending.changed
            for index, job in list(unfinished.items()):
                result = pending.results[index]
                if not result.done():
                    for chunk in writer.delta(index, job):
                        yield _event(chunk)
                    continue
                *chunks, last = writer.finish(index, result.result())
                for chunk in chunks:
                    yield _event(chunk)
                del unfinished[index]
                if not unfinished:
                    pending.delivered()  # the client may act on the last event at once
                yield _event(last)
            if unfinished:
                await changed.wait()
        for chunk in writer.end():
            yield _event(chunk)
        yield writer.last_line
    except ApiError as error:
        yield _event(writer.failure(error))


def _event(data: Mapping[str, Any]) -> str:
    name = f"event: {data['type']}\n" if "type" in data else ""
    return f"{name}data: {json.dumps(data, ensure_ascii=False)}\n\n"
