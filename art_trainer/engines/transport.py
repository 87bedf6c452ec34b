"""JSON over HTTP to an engine, with bounded patience."""

from __future__ import annotations

import asyncio
import email.utils
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import httpx2

from art_trainer.errors import ConfigError, EngineRequestError

_LONGEST_PAUSE = 60.0
_CONNECT_SECONDS = 10.0
_SHOWN = 300
_CONNECTIONS = 8
"""Of one client. Its pool looks through all of them for every request: one client with 256 connections takes
four times the CPU time a request that 32 clients with 8 take (5.0 and 1.3 ms on one core)."""

Json = Mapping[str, Any]


class Transport:
    """Sends requests, and again where the server is busy, broken or not there yet.

    Args:
        url: The server's address, with or without ``/v1``.
        api_key: Sent as a bearer token.
        max_concurrency: Most requests under way at one time; others wait their turn.
        timeout: Most seconds one attempt may take.
        max_retries: Attempts after the first where the connection fails, or the server answers 429 or 5xx.
        backoff: Seconds before the second attempt, doubled with each; what the server asks for in
            ``Retry-After`` goes before, up to a minute.

    Raises:
        ConfigError: For an address that is none, or numbers out of range.
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
            raise ConfigError(f"{url!r} is no server's address: write it as in http://localhost:8000")
        if max_concurrency < 1:
            raise ConfigError(f"max_concurrency is at least 1, got {max_concurrency}")
        if max_retries < 0:
            raise ConfigError(f"max_retries is at least 0, got {max_retries}")
        self.url = address
        self._max_retries = max_retries
        self._backoff = backoff
        self._places = asyncio.Semaphore(max_concurrency)
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
        self._free = [client for client in self._clients for _ in range(_CONNECTIONS)][:max_concurrency]

    async def get(self, path: str) -> Json:
        """Return the JSON object that the server answers to a GET, see :meth:`post`."""
        return _object(await self._ask("GET", path, None))

    async def post(self, path: str, body: Json) -> Json:
        """Return the JSON object that the server answers.

        Raises:
            EngineRequestError: Where it refused, did not answer in all attempts, or answered something else.
        """
        return _object(await self._ask("POST", path, body))

    async def tell(self, path: str, body: Json) -> None:
        """Send what the server only has to accept; whatever words it does so with.

        Raises:
            EngineRequestError: Where it refused, or did not answer in all attempts.
        """
        await self._ask("POST", path, body)

    async def aclose(self) -> None:
        """Close the connections."""
        for client in self._clients:
            await client.aclose()

    async def _ask(self, method: str, path: str, body: Json | None) -> httpx2.Response:
        async with self._places:
            client = self._free.pop()
            try:
                return await self._insist(client, method, path, body)
            finally:
                self._free.append(client)

    async def _insist(
        self, client: httpx2.AsyncClient, method: str, path: str, body: Json | None
    ) -> httpx2.Response:
        attempt = 0
        while True:
            try:
                return await self._try(client, method, path, body)
            except EngineRequestError as failure:
                if attempt == self._max_retries or not _passes(failure.status):
                    raise
                wanted = failure.retry_after
            pause = self._backoff * 2**attempt if wanted is None else wanted
            await asyncio.sleep(min(pause, _LONGEST_PAUSE))
            attempt += 1

    async def _try(
        self, client: httpx2.AsyncClient, method: str, path: str, body: Json | None
    ) -> httpx2.Response:
        address = self.url + path
        try:
            response = await client.request(method, address, json=body)
        except httpx2.TransportError as fault:
            words = str(fault) or type(fault).__name__
            raise EngineRequestError(f"no answer from {address}: {words}") from fault
        if response.is_success:
            return response
        status = response.status_code
        words = f"{address} answered {status}: {_words(response)}"
        raise EngineRequestError(words, status, _retry_after(response.headers.get("Retry-After")))


def _passes(status: int | None) -> bool:
    """Whether the same request may succeed a little later."""
    return status is None or status == httpx2.codes.TOO_MANY_REQUESTS or status >= 500


def _object(response: httpx2.Response) -> Json:
    """The answer as a JSON object.

    Raises:
        EngineRequestError: For anything else.
    """
    try:
        found = response.json()
    except ValueError as fault:  # of JSON, or of UTF-8
        raise EngineRequestError(f"{response.url} answered with what is not JSON: {fault}") from fault
    if not isinstance(found, dict):
        shown = response.text[:_SHOWN]
        raise EngineRequestError(f"{response.url} answered with no JSON object; it begins {shown!r}")
    return found


def _words(response: httpx2.Response) -> str:
    """What an error's body says: servers put it in different places."""
    try:
        found = response.json()
    except ValueError:
        return response.text[:_SHOWN] or response.reason_phrase
    if isinstance(found, dict) and isinstance(found.get("error"), dict):
        found = found["error"]
    for key in ("message", "error_message", "error", "detail"):
        if isinstance(found, dict) and isinstance(found.get(key), str):
            return str(found[key])[:_SHOWN]
    return response.text[:_SHOWN]


def _retry_after(header: str | None) -> float | None:
    """Seconds to wait: the header is a number of them, or a date (RFC 9110, section 10.2.3)."""
    if header is None:
        return None
    try:
        return max(float(header), 0.0)
    except ValueError:
        pass
    try:
        when = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return None
    return max((when - datetime.now(UTC)).total_seconds(), 0.0)
