"""Downloads from a training server, streamed to disk and cached under their sha256."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import httpx2
from pydantic import ValidationError

from art_trainer.distributed.protocol import (
    FileEntry,
    Message,
    ModelManifest,
    WeightManifest,
    describe_invalid,
)
from art_trainer.distributed.weights import file_error
from art_trainer.distributed.worker.connection import (
    HTTP_REFUSALS,
    Backoff,
    DownloadError,
    RefusedError,
    UnreachableError,
)

_MAX_MANIFEST_BYTES = 2**20
_TIMEOUT = httpx2.Timeout(60.0, connect=10.0)
_ATTEMPTS = 6
_KEPT_WEIGHTS = 3
"""Files of weights on disk: workers that share a cache may be a version apart, and fetch the next one."""
_Value = TypeVar("_Value")
_Manifest = TypeVar("_Manifest", bound=Message)


class ArtifactCache:
    """Files of a server, cached on disk. All methods belong to one event loop.

    A broken download is resumed; a file that is not what the manifest says is fetched once more. All methods
    that fetch raise :class:`DownloadError` if all attempts fail, and :class:`RefusedError` if the server
    rejects this worker.

    Args:
        url: The server's address, without a path.
        token: Its bearer token.
        cache: Where files are kept; several workers may share it.
        backoff: How long to wait between attempts.
    """

    def __init__(self, url: str, token: str | None, cache: Path, backoff: Backoff) -> None:
        self._url = url
        self._folder = cache / "files"
        self._weights = cache / "weights"
        self._backoff = backoff
        self._client = httpx2.AsyncClient(
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=_TIMEOUT,
            # Reading the certificates takes a while, and without TLS there is nothing to verify.
            verify=httpx2.create_ssl_context() if url.startswith("https://") else False,
        )

    async def model(self) -> ModelManifest:
        """Fetch the manifest of the model's files."""
        return await self._manifest("/model", ModelManifest)

    async def weights(self, version: int) -> WeightManifest:
        """Fetch a version's manifest."""
        found = await self._manifest(f"/weights/{version}", WeightManifest)
        if found.policy_version != version:
            raise DownloadError(f"the server's weights {version} say that they are {found.policy_version}")
        return found

    async def model_file(self, entry: FileEntry) -> Path:
        """Fetch a file of the model unless it is cached; return its path."""
        return await self._file(f"/model/{entry.name}", entry, self._folder)

    async def weight_file(self, manifest: WeightManifest) -> Path:
        """Fetch a version's file unless it is cached; return its path. The oldest files are deleted."""
        file = await self._file(f"/weights/{manifest.policy_version}/data", manifest.file, self._weights)
        kept = []
        for one in self._weights.glob("[!.]*"):
            with suppress(FileNotFoundError):  # another worker has deleted it
                if one == file:
                    os.utime(one)
                kept.append((one.stat().st_mtime_ns, one))
        for _, old in sorted(kept)[:-_KEPT_WEIGHTS]:
            old.unlink(missing_ok=True)
        return file

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _manifest(self, path: str, kind: type[_Manifest]) -> _Manifest:
        async def get() -> bytes:
            body = b""
            async with self._client.stream("GET", self._url + path) as response:
                _check_status(response, path)
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > _MAX_MANIFEST_BYTES:
                        raise DownloadError(f"the server's {path} is too large for a manifest")
            return body

        try:
            return kind.model_validate_json(await self._retry(path, get))
        except ValidationError as error:
            raise DownloadError(f"the server's {path} is no manifest: {describe_invalid(error)}") from None

    async def _file(self, path: str, entry: FileEntry, folder: Path) -> Path:
        target = folder / entry.sha256
        if await asyncio.to_thread(file_error, target, entry, entry.name) is None:
            return target
        # Another worker may be fetching the same file.
        partial = folder / f".{entry.sha256}.{secrets.token_hex(4)}"
        damaged = 0

        async def get() -> None:
            nonlocal damaged
            await self._continue(path, partial, entry.size)
            error = await asyncio.to_thread(file_error, partial, entry, entry.name)
            if error is not None:
                partial.unlink()
                damaged += 1
                kind = UnreachableError if damaged == 1 else DownloadError
                raise kind(f"damaged on the server: {error}")

        try:
            folder.mkdir(parents=True, exist_ok=True)
            await self._retry(path, get)
            os.replace(partial, target)
        except (DownloadError, RefusedError):
            raise
        except OSError as error:
            raise DownloadError(f"{entry.name} cannot be kept in {folder}: {error}") from error
        finally:
            partial.unlink(missing_ok=True)
        return target

    async def _continue(self, path: str, partial: Path, size: int) -> None:
        """Fetch what is missing of a file, and at most a little more than its size."""
        begun = partial.stat().st_size if partial.exists() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={begun}-"} if begun else {})
        async with self._client.stream("GET", self._url + path, headers=headers) as response:
            _check_status(response, path)
            resumed = response.status_code == httpx2.codes.PARTIAL_CONTENT
            with partial.open("ab" if resumed else "wb") as stream:
                async for chunk in response.aiter_raw():
                    stream.write(chunk)
                    if stream.tell() > size:
                        return

    async def _retry(self, path: str, get: Callable[[], Awaitable[_Value]]) -> _Value:
        """Try again while the server does not answer and there are attempts left."""
        attempt = 1
        while True:
            try:
                return await get()
            except (httpx2.TransportError, UnreachableError) as error:
                if attempt == _ATTEMPTS:
                    reason = str(error) or type(error).__name__
                    raise DownloadError(f"{path} cannot be fetched from {self._url}: {reason}") from error
            await asyncio.sleep(self._backoff.seconds(attempt))
            attempt += 1


def _check_status(response: httpx2.Response, path: str) -> None:
    """Raise for an error status: one that is temporary, a refusal, or any other."""
    status = response.status_code
    if response.is_success:
        return
    if status in HTTP_REFUSALS:
        raise RefusedError(f"the server at {response.url.host} answered {status}: {HTTP_REFUSALS[status]}")
    if status == httpx2.codes.TOO_MANY_REQUESTS or status >= 500:
        raise UnreachableError(f"the server answered {status}")
    raise DownloadError(f"the server has no {path}: it answered {status}")
