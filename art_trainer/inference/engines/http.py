"""JSON over HTTP to an inference server, with retries and timeouts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import httpx2

from art_gym.wrappers.judging.http_client import retry_after
from art_trainer.errors import ConfigError, EngineRequestError

_MAX_PAUSE = 60.0
_CONNECT_SECONDS = 10.0
_SHOWN = 300
_CONNECTIONS = 8
"""Connections of one client. Its pool looks through all of them for every request: one client with 256 takes
four times the CPU time a request that 32 clients with 8 take (5.0 and 1.3 ms on one core)."""

Json = Mapping[str, Any]
T = TypeVar("T")


class HttpClient:
    """Sends JSON requests, and retries if the server is busy, broken or not there yet.

    Args:
        url: The server's address, with or without ``/v1``.
        api_key: Sent as a bearer token.
        max_concurrency: Most requests in flight at one time; others wait.
        timeout: Seconds of silence from the server that end an attempt.
        max_retries: Attempts after the first if the connection fails or the server answers 429 or 5xx.
        backoff: Seconds before the second attempt, doubled with each; a ``Retry-After`` header takes
            precedence, up to a minute.

    Raises:
        ConfigError: For an invalid address, or numbers out of range.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        max_concurrency: int = 256,
        timeout: float = 600.0,
        max_retries: int = 5,
        backoff: float = 0.5,
    ) -> None:
        address = url.rstrip("/").removesuffix("/v1")
        if not address.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r} is not a server's address: write it as in http://localhost:8000")
        if max_concurrency < 1:
            raise ConfigError(f"max_concurrency must be at least 1, got {max_concurrency}")
        if max_retries < 0:
            raise ConfigError(f"max_retries must be at least 0, got {max_retries}")
        self.url = address
        self._max_retries = max_retries
        self._backoff = backoff
        # Without TLS there is nothing to verify, and reading the certificates takes a while.
        verify = httpx2.create_ssl_context() if address.startswith("https://") else False
        self._clients = [
            httpx2.AsyncClient(
                headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
                timeout=httpx2.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS), pool=None),
                verify=verify,
            )
            for _ in range(-(-max_concurrency // _CONNECTIONS))
        ]
        # The client that became free last comes first: its connection is open.
        self._free: asyncio.LifoQueue[httpx2.AsyncClient] = asyncio.LifoQueue()
        for place in range(max_concurrency):
            self._free.put_nowait(self._clients[place // _CONNECTIONS])

    async def get(self, path: str) -> Json:
        """Return the JSON object that the server answers to a GET, see :meth:`post`."""
        return _json_object(await self._request("GET", path, None))

    async def post(self, path: str, body: Json) -> Json:
        """Return the JSON object that the server answers.

        Raises:
            EngineRequestError: If it refused, did not answer any attempt, or answered something else.
        """
        return _json_object(await self.send(path, body))

    async def send(self, path: str, body: Json) -> httpx2.Response:
        """Send a POST that the server only has to accept; see :meth:`post`."""
        return await self._request("POST", path, body)

    async def aclose(self) -> None:
        """Close the connections."""
        for client in self._clients:
            await client.aclose()

    async def _request(self, method: str, path: str, body: Json | None) -> httpx2.Response:
        client = await self._free.get()
        try:
            return await self._request_with_retries(client, method, path, body)
        finally:
            self._free.put_nowait(client)

    async def _request_with_retries(
        self, client: httpx2.AsyncClient, method: str, path: str, body: Json | None
    ) -> httpx2.Response:
        attempt = 0
        while True:
            try:
                return await _request_once(client, method, self.url + path, body)
            except EngineRequestError as failure:
                if attempt == self._max_retries or not _is_retryable(failure.status):
                    raise
                wanted = failure.retry_after
            pause = self._backoff * 2**attempt if wanted is None else wanted
            await asyncio.sleep(min(pause, _MAX_PAUSE))
            attempt += 1


async def _request_once(
    client: httpx2.AsyncClient, method: str, url: str, body: Json | None
) -> httpx2.Response:
    try:
        response = await client.request(method, url, json=body)
    except httpx2.RequestError as fault:
        raise EngineRequestError(f"no answer from {url}: {str(fault) or type(fault).__name__}") from fault
    if response.is_success:
        return response
    message = f"{url} answered {response.status_code}: {_error_message(response)}"
    raise EngineRequestError(message, response.status_code, retry_after(response.headers, time.time()))


def _is_retryable(status: int | None) -> bool:
    return status is None or status == httpx2.codes.TOO_MANY_REQUESTS or status >= 500


def _json_object(response: httpx2.Response) -> Json:
    try:
        found = response.json()
    except (ValueError, RecursionError) as fault:  # of JSON, or of UTF-8
        shown = response.text[:_SHOWN]
        message = f"{response.url} answered with invalid JSON ({fault}); it begins {shown!r}"
        raise EngineRequestError(message) from fault
    if not isinstance(found, dict):
        shown = response.text[:_SHOWN]
        raise EngineRequestError(f"{response.url} answered with no JSON object; it begins {shown!r}")
    return found


def _error_message(response: httpx2.Response) -> str:
    """Return the message in an error's body; servers put it in different places."""
    try:
        found = response.json()
    except (ValueError, RecursionError):
        return response.text[:_SHOWN] or response.reason_phrase
    if isinstance(found, dict) and isinstance(found.get("error"), dict):
        found = found["error"]
    for key in ("message", "error_message", "error", "detail"):
        if isinstance(found, dict) and isinstance(found.get(key), str):
            return str(found[key])[:_SHOWN]
    return response.text[:_SHOWN]


class BackgroundLoop:
    """An event loop in a daemon thread, for code that is not asynchronous.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; Ctrl-C cancels it."""
        future = self.start(work)
        try:
            return future.result()
        finally:
            future.cancel()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Cancel all tasks, run ``last`` (such as closing connections), and end the thread."""
        if self._loop.is_closed():
            return
        self.run(_cancel_all(last))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_all(last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    if last is not None:
        await last()
