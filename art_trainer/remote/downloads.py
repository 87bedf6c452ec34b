"""Files from a training server: streamed to the disk, hashed on the way, and kept by what is in them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from pydantic import ValidationError

from art_trainer.remote.backoff import Backoff
from art_trainer.remote.fields import Message
from art_trainer.remote.messages import FileEntry, ModelManifest, WeightManifest
from art_trainer.remote.tensor_files import WeightError, check_file
from art_trainer.remote.worker_errors import DownloadError, RefusedError, UnreachableError

_MOST_MANIFEST_BYTES = 2**20
_TIMEOUT = httpx2.Timeout(60.0, connect=10.0)
_ATTEMPTS = 6
_REFUSALS = {
    401: "it wants its token: give --token-file or set ART_SERVER_TOKEN",
    403: "it refuses this worker",
}
Found = TypeVar("Found", bound=Message)


class ServerFiles:
    """What a server serves over HTTP to its workers. All methods belong to one event loop.

    Args:
        url: The server's address, without a path.
        token: Its bearer token.
        cache: Where files are kept, under their sha256; several workers may share it.
        backoff: How long to wait between attempts.
        attempts: How often a file is tried before it is given up.
    """

    def __init__(
        self, url: str, token: str | None, cache: Path, backoff: Backoff, *, attempts: int = _ATTEMPTS
    ) -> None:
        self._url = url
        self._folder = cache / "files"
        self._backoff = backoff
        self._attempts = attempts
        self._client = httpx2.AsyncClient(
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=_TIMEOUT,
            # Without TLS there is nothing to verify, and reading the certificates takes a while.
            verify=httpx2.create_ssl_context() if url.startswith("https://") else False,
        )

    async def model(self) -> ModelManifest:
        """The files of the model.

        Raises:
            DownloadError: Where the server does not say, in all attempts.
            RefusedError: Where it does not let this worker in.
        """
        return await self._manifest("/model", ModelManifest)

    async def weights(self, version: int) -> WeightManifest:
        """What a version's file is.

        Raises:
            DownloadError: Where the server does not say, or has that version no more.
            RefusedError: Where it does not let this worker in.
        """
        found = await self._manifest(f"/weights/{version}", WeightManifest)
        if found.policy_version != version:
            raise DownloadError(f"the server's weights {version} say that they are {found.policy_version}")
        return found

    async def model_file(self, entry: FileEntry) -> Path:
        """Fetch a file of the model, see :meth:`weight_file`."""
        return await self._fetch(f"/model/{entry.name}", entry)

    async def weight_file(self, manifest: WeightManifest) -> Path:
        """Fetch a version's file, unless it is here already.

        A connection that is cut is taken up where it was; a file that is not what was promised is fetched
        once more from its beginning.

        Returns:
            Where it is; its hash is the manifest's.

        Raises:
            DownloadError: Where it cannot be had whole.
            RefusedError: Where the server does not let this worker in.
        """
        return await self._fetch(f"/weights/{manifest.policy_version}/data", manifest.file)

    def forget(self, sha256: str) -> None:
        """Delete a file that will not be asked for again."""
        (self._folder / sha256).unlink(missing_ok=True)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _manifest(self, path: str, kind: type[Found]) -> Found:
        async def ask() -> Found:
            body = b""
            async with self._client.stream("GET", self._url + path) as response:
                await _raise_for_status(response, path)
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > _MOST_MANIFEST_BYTES:
                        raise DownloadError(f"the server's {path} is too large for a manifest")
            try:
                return kind.model_validate_json(body)
            except ValidationError as wrong:
                first = wrong.errors(include_url=False, include_context=False, include_input=False)[0]
                place = ".".join(map(str, first["loc"])) or "it"
                raise DownloadError(f"the server's {path} is no manifest: {place}: {first['msg']}") from None

        found: Found = await self._insist(path, ask)
        return found

    async def _fetch(self, path: str, entry: FileEntry) -> Path:
        target = self._folder / entry.sha256
        if await asyncio.to_thread(_is_there, target, entry):
            return target
        self._folder.mkdir(parents=True, exist_ok=True)
        # Of its own, for another worker may be fetching the same.
        partial = self._folder / f".{entry.sha256}.{secrets.token_hex(4)}"
        download = _Download(self._client, self._url + path, partial, entry)
        try:
            await self._insist(path, download.go_on)
            os.replace(partial, target)
        except (DownloadError, RefusedError):
            raise
        except OSError as fault:
            raise DownloadError(f"{entry.name} cannot be kept in {self._folder}: {fault}") from fault
        finally:
            partial.unlink(missing_ok=True)
        return target

    async def _insist(self, path: str, ask: Callable[[], Any]) -> Any:
        """Ask again where the server does not answer, as long as there are attempts left."""
        attempt = 1
        while True:
            try:
                return await ask()
            except (httpx2.TransportError, UnreachableError) as fault:
                if attempt == self._attempts:
                    words = str(fault) or type(fault).__name__
                    raise DownloadError(f"{path} cannot be fetched from {self._url}: {words}") from fault
            await asyncio.sleep(self._backoff.seconds(attempt))
            attempt += 1


class _Download:
    """A file that is being fetched.

    Args:
        client: Asks the server.
        address: The file's.
        partial: Where to write.
        entry: What the file should be.
    """

    def __init__(self, client: httpx2.AsyncClient, address: str, partial: Path, entry: FileEntry) -> None:
        self._client = client
        self._address = address
        self._partial = partial
        self._entry = entry
        self._begin()
        self._fresh = True

    def _begin(self) -> None:
        self._done = 0
        self._digest = hashlib.sha256()

    async def go_on(self) -> None:
        """Read on from where the last call was cut off.

        Raises:
            UnreachableError: Where the server answers that it cannot now; call again.
            httpx2.TransportError: Where the connection is cut; call again.
            DownloadError: Where what the server sends is not what it promised, the second time.
            RefusedError: Where it does not let this worker in.
        """
        headers = {"Accept-Encoding": "identity"}
        if self._done:
            headers["Range"] = f"bytes={self._done}-"
        async with self._client.stream("GET", self._address, headers=headers) as response:
            await _raise_for_status(response, self._entry.name)
            if response.status_code != httpx2.codes.PARTIAL_CONTENT:
                self._begin()
            with self._partial.open("r+b" if self._done else "wb") as stream:
                stream.seek(self._done)
                async for chunk in response.aiter_raw():
                    self._done += len(chunk)
                    if self._done > self._entry.size:
                        break
                    self._digest.update(chunk)
                    stream.write(chunk)
        self._check()

    def _check(self) -> None:
        found, wanted = (self._done, self._digest.hexdigest()), (self._entry.size, self._entry.sha256)
        if found == wanted:
            return
        what = (
            f"it has {self._done} bytes, not {self._entry.size}"
            if self._done != self._entry.size
            else "its sha256 is not the manifest's"
        )
        self._begin()
        if self._fresh:
            self._fresh = False
            raise UnreachableError(f"{self._entry.name} came damaged: {what}")
        raise DownloadError(f"{self._entry.name} is damaged on the server: {what}")


def _is_there(file: Path, entry: FileEntry) -> bool:
    """Whether a file was fetched before, and is still what it was."""
    try:
        check_file(file, entry, entry.name)
    except WeightError:
        return False
    return True


async def _raise_for_status(response: httpx2.Response, what: str) -> None:
    """Tell apart what may pass, and what will not.

    Raises:
        UnreachableError: For what may.
        RefusedError: Where the server does not let this worker in.
        DownloadError: For anything else.
    """
    status = response.status_code
    if response.is_success:
        return
    if status in _REFUSALS:
        raise RefusedError(f"the server at {response.url.host} answered {status}: {_REFUSALS[status]}")
    if status == httpx2.codes.TOO_MANY_REQUESTS or status >= 500:
        raise UnreachableError(f"the server answered {status}")
    raise DownloadError(f"the server has no {what}: it answered {status}")
