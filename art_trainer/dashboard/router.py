"""The dashboard's routes: the page, and the data it asks for.

Who may use them is for the application's guard to say; nothing here writes anything. A run is named by its
number: no path of the disk comes from a client.

``/api/stream`` is a stream of server-sent events. ``runs`` comes when anything about a run has changed:
whoever shows its metrics or episodes then asks for what is new. ``status`` comes every second where there is
a training server.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse

from art_trainer.dashboard.episode_query import EpisodePage, EpisodeQuery, Outcome, SortKey
from art_trainer.dashboard.json_values import to_bytes
from art_trainer.dashboard.metric_table import MetricRows
from art_trainer.dashboard.page import PAGE_HEADERS, page
from art_trainer.dashboard.source import DashboardSource, UnknownPlaceError
from art_trainer.errors import RecordError

PERIOD = 1.0
"""Seconds between two looks."""
_SLICE = 0.1
"""Seconds after which a stream notices at the latest that the server stops."""
_SILENCE = 15
"""Periods without an event after which a comment shows that the connection lives."""
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_LARGEST = 2**31 - 1

RunNumber = Annotated[int, Path(ge=0, le=_LARGEST)]
Number = Annotated[int, Path(ge=0, le=_LARGEST)]
Words = Annotated[str, Query(max_length=200)]
Bound = Annotated[float | None, Query(allow_inf_nan=False)]
Step = Annotated[int | None, Query(ge=0, le=_LARGEST)]


def dashboard_router(
    source: DashboardSource, *, period: float = PERIOD, closing: threading.Event | None = None
) -> APIRouter:
    """Make the routes ``/`` and ``/api/…``.

    Args:
        source: What is shown.
        period: Seconds between two looks at the source while somebody listens to the stream.
        closing: Set by the server before it stops: streams then end by themselves, where they would else
            have to be cut off.
    """
    router = APIRouter()

    @router.get("/")
    def the_page() -> Response:
        return Response(page(), headers=dict(PAGE_HEADERS))

    @router.get("/api/runs")
    def runs() -> Response:
        return _answer([dataclasses.asdict(run) for run in source.runs()])

    @router.get("/api/status")
    def status() -> Response:
        found = source.status()
        return _answer(None if found is None else found.model_dump(mode="json"))

    @router.get("/api/stream")
    async def stream() -> Response:
        headers = {**_HEADERS, "X-Accel-Buffering": "no"}
        return StreamingResponse(
            _events(source, period, closing), media_type="text/event-stream", headers=headers
        )

    _add_run_routes(router, source)
    return router


def _add_run_routes(router: APIRouter, source: DashboardSource) -> None:
    @router.get("/api/runs/{run}/metrics")
    def metrics(run: RunNumber, after: Annotated[str | None, Query(max_length=100)] = None) -> Response:
        return _told(lambda: _fields(source.metrics(run, after)))

    @router.get("/api/runs/{run}/events")
    def events(run: RunNumber) -> Response:
        return _told(lambda: source.events(run))

    @router.get("/api/runs/{run}/evaluations")
    def evaluations(run: RunNumber) -> Response:
        return _told(lambda: source.evaluations(run))

    @router.get("/api/runs/{run}/episodes")
    def episodes(
        run: RunNumber,
        text: Words = "",
        task: Words = "",
        outcome: Outcome | None = None,
        reward_min: Bound = None,
        reward_max: Bound = None,
        step_min: Step = None,
        step_max: Step = None,
        sort: SortKey = "step",
        descending: bool = True,
        offset: Annotated[int, Query(ge=0, le=_LARGEST)] = 0,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> Response:
        query = EpisodeQuery(
            text=text,
            task=task,
            outcome=outcome,
            reward_min=reward_min,
            reward_max=reward_max,
            step_min=step_min,
            step_max=step_max,
            sort=sort,
            descending=descending,
            offset=offset,
            limit=limit,
        )

        def ask() -> Any:
            found = source.episodes(run, query)
            return {**_fields(found), "complete": found.complete}

        return _told(ask)

    @router.get("/api/runs/{run}/episodes/{step}/{place}")
    def episode(run: RunNumber, step: Number, place: Number) -> Response:
        return _told(lambda: source.episode(run, step, place))


async def _events(
    source: DashboardSource, period: float, closing: threading.Event | None = None
) -> AsyncIterator[bytes]:
    """Give the stream's events for as long as somebody reads them."""
    last = b""
    silent = 0
    yield b"retry: 2000\n\n"
    while True:
        runs, status = await asyncio.to_thread(_look, source)
        said = b""
        if runs != last:
            said, last = b"event: runs\ndata: " + runs + b"\n\n", runs
        if status is not None:
            said += b"event: status\ndata: " + status + b"\n\n"
        silent = 0 if said else silent + 1
        if silent >= _SILENCE:
            said, silent = b": nothing new\n\n", 0
        if said:
            yield said
        for _ in range(max(1, round(period / _SLICE))):
            if closing is not None and closing.is_set():
                return
            await asyncio.sleep(min(period, _SLICE))


def _look(source: DashboardSource) -> tuple[bytes, bytes | None]:
    runs = []
    for run in source.runs():
        shown = dataclasses.asdict(run)
        # It grows by itself: the page counts on from what it was told last.
        shown["quiet_seconds"] = None
        runs.append(shown)
    status = source.status()
    return to_bytes(runs), None if status is None else to_bytes(status.model_dump(mode="json"))


def _fields(data: MetricRows | EpisodePage) -> dict[str, Any]:
    """Return a dataclass's fields as they are; ``asdict`` would copy every number."""
    return {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}


def _told(ask: Callable[[], Any]) -> Response:
    """Answer with what a source gives, or with the words of what is wrong."""
    try:
        return _answer(ask())
    except UnknownPlaceError as missing:
        return _answer({"error": str(missing)}, 404)
    except RecordError as damaged:
        return _answer({"error": str(damaged)}, 409)


def _answer(data: Any, status: int = 200) -> Response:
    return Response(to_bytes(data), status, dict(_HEADERS), "application/json")
