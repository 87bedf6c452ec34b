"""Routes of the dashboard: the page, and the data that it asks for.

Access control belongs to the application; nothing here writes. A run is named by its number: no path comes
from a client.

``/api/stream`` is a stream of server-sent events: ``runs`` when anything about a run has changed, so that the
page asks for new metrics or episodes, ``status`` every second if there is a training server, and at its end
``end`` with all that the overview shows, since nobody answers the page then.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import threading
from collections.abc import AsyncIterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi import Path as PathParam
from fastapi.responses import StreamingResponse

from art_trainer.formatting import to_bytes
from art_trainer.tracking.reading.episode_index import LARGEST, EpisodeQuery
from art_trainer.tracking.reading.run_reader import RunsSource

_POLL_SECONDS = 0.1
"""How soon a stream notices that the server stops."""
_POLLS = 10
"""After how many of them a stream looks at the runs again."""
_LOOKS_FIRST = 10
"""Looks before a stream reads what no page has asked for: the first curves come first."""
_KEEP_ALIVE_PERIODS = 15
"""Periods without an event after which a comment shows that the connection is alive."""
_HERE = Path(__file__).parent
_PARTS = {
    "style": ("vendor/uPlot.min.css", "static/base.css", "static/parts.css", "static/episodes.css"),
    "library": ("vendor/uPlot.iife.min.js",),
    "script": tuple(
        f"static/{name}.js"
        for name in (
            "elements", "format", "api", "store", "series", "zoom", "plots", "overview", "findings",
            "workers", "filters", "table", "tokens", "episode", "keyboard", "main",
        )
    ),
}  # fmt: skip

Number = Annotated[int, PathParam(ge=0, le=LARGEST)]


@lru_cache(maxsize=1)
def _built() -> tuple[bytes, str]:
    """The page with its styles and scripts inside, and its Content-Security-Policy.

    Scripts and styles are allowed by their hashes, so that text of an episode could not run even if it became
    markup.
    """
    page, hashes = _read("static/page.html"), {}
    for name, files in _PARTS.items():
        part = "\n".join(_read(file) for file in files)
        for end in ("</script", "</style"):
            assert end not in part.lower(), f"{name} would end its own element"
        before, found, after = page.partition(f"/*{name}*/")
        assert found, name
        page = before + part + after
        digest = hashlib.sha256(part.encode("utf-8")).digest()
        hashes[name] = f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
    policy = (
        f"default-src 'none'; script-src {hashes['library']} {hashes['script']}; "
        f"style-src {hashes['style']}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page.encode("utf-8"), policy


def _read(file: str) -> str:
    return (_HERE / file).read_text(encoding="utf-8")


def page(status: int = 200) -> Response:
    """Return the page: the same for everybody, without any data."""
    text, policy = _built()
    headers = {
        "Content-Security-Policy": policy,
        "X-Frame-Options": "DENY",
        "Cross-Origin-Opener-Policy": "same-origin",
    }
    return Response(text, status, headers, "text/html; charset=utf-8")


class _JsonResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_bytes(content)


def dashboard_router(source: RunsSource, *, closing: threading.Event | None = None) -> APIRouter:
    """Create the routes ``/`` and ``/api/…``.

    Args:
        source: What is shown.
        closing: Set by the server before it stops, so that streams end by themselves.
    """
    router = APIRouter()

    @router.get("/")
    def get_page() -> Response:
        return page()

    @router.get("/api/runs")
    def runs() -> Response:
        return _JsonResponse(source.runs())

    @router.get("/api/stream")
    async def stream() -> Response:
        events = _events(source, closing or threading.Event())
        return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    @router.get("/api/runs/{run}/metrics")
    def metrics(run: Number, after: Annotated[str | None, Query(max_length=100)] = None) -> Response:
        return _JsonResponse(source.run(run).metrics(after))

    @router.get("/api/runs/{run}/events")
    def events(run: Number) -> Response:
        return _JsonResponse(source.run(run).events())

    @router.get("/api/runs/{run}/evaluations")
    def evaluations(run: Number) -> Response:
        return _JsonResponse(source.run(run).evaluations())

    @router.get("/api/runs/{run}/episodes")
    def episodes(run: Number, query: Annotated[EpisodeQuery, Query()]) -> Response:
        return _JsonResponse(source.run(run).episodes.page(query))

    @router.get("/api/runs/{run}/episodes/{step}/{place}")
    def episode(run: Number, step: Number, place: Number) -> Response:
        return _JsonResponse(source.run(run).episode(step, place))

    return router


async def _events(source: RunsSource, closing: threading.Event) -> AsyncIterator[bytes]:
    """Yield the stream's events for as long as somebody reads them."""
    last, silent, looks = b"", 0, 0
    yield b"retry: 2000\n\n"
    while not closing.is_set():
        runs, status = await asyncio.to_thread(_look, source)
        block = b"" if runs == last else b"event: runs\ndata: " + runs + b"\n\n"
        if status is not None:
            block += b"event: status\ndata: " + status + b"\n\n"
        last, silent = runs, 0 if block else silent + 1
        if silent >= _KEEP_ALIVE_PERIODS:
            block, silent = b": nothing new\n\n", 0
        if block:
            yield block
        for _ in range(_POLLS):
            if not closing.is_set():
                await asyncio.sleep(_POLL_SECONDS)
        looks += 1
        if looks > _LOOKS_FIRST and not closing.is_set():
            await asyncio.to_thread(source.read_one)
    if source.status() is not None:
        yield b"event: end\ndata: " + await asyncio.to_thread(lambda: to_bytes(source.ending())) + b"\n\n"


def _look(source: RunsSource) -> tuple[bytes, bytes | None]:
    # The page itself counts quiet seconds on, so that a quiet run is not news.
    runs = [{**run, "quiet_seconds": None} for run in source.runs()]
    status = source.status()
    return to_bytes(runs), None if status is None else to_bytes(status.model_dump(mode="json"))
