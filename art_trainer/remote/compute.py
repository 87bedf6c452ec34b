"""Who samples for a worker: a model of its own that follows the server's weights, or the server itself."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from art_trainer.engine_policy import EnginePolicy
from art_trainer.engines.vllm import VLLMEngine
from art_trainer.env_pool import EnvPool
from art_trainer.errors import EngineError, EngineRequestError
from art_trainer.loading import ModelOptions
from art_trainer.remote.backoff import Backoff
from art_trainer.remote.downloads import ServerFiles
from art_trainer.remote.messages import FileEntry, ModelManifest, RunDescription, WeightManifest
from art_trainer.remote.play_thread import PlayThread
from art_trainer.remote.player import Player
from art_trainer.remote.tensor_files import WeightError
from art_trainer.remote.weights import apply_weights
from art_trainer.remote.worker_errors import DownloadError, RefusedError
from art_trainer.remote.worker_model import (
    files_to_fetch,
    load_tokenizer,
    make_model,
    make_policy,
    sampling_params,
    take_types,
)

WEIGHT_FAULTS = (DownloadError, WeightError)
"""Why weights may be missing that are asked for; the worker goes on with those it has, or waits."""
_SERVED_POLLS = 10


class Compute(Protocol):
    """What a worker plays with. All methods but :meth:`stop` belong to its event loop.

    Attributes:
        version: Of the weights that play; ``None``: there are none yet.
        player: Plays, in the play thread; there after :meth:`bring`.
        elsewhere: Whether replies come from another machine, which may be gone or have other weights by now.
    """

    version: int | None
    player: Player
    elsewhere: bool

    async def prepare(self, run: RunDescription, pool: EnvPool, *, capacity: int, env_threads: int) -> None:
        """Get ready to play a run.

        Raises:
            RefusedError: Where the server's model is none that this worker takes.
            DownloadError: Where it cannot be fetched.
            WeightError: Where it is damaged.
        """

    def announce(self, version: int) -> None:
        """There are weights of this version: fetch them meanwhile."""

    def doubt(self) -> None:
        """The server may be another one now, and mean other weights by the same version."""

    async def bring(self, version: int) -> None:
        """Play with the weights of this version from now on; nothing is being played.

        Raises:
            DownloadError: Where they cannot be fetched.
            WeightError: Where they are damaged or another model's; those from before are still there.
        """

    def stop(self) -> None:
        """Let go of what waits for another machine."""


class OwnModel:
    """A model in this process.

    Args:
        files: The server's files.
        thread: Where everything is computed.
        device: Where the model lives; ``None``: the first GPU, else the CPU.
        most_bytes: The largest file of weights that is fetched.
        on_fault: Told, in words, what went wrong with weights that nobody waits for yet.
    """

    player: Player
    elsewhere = False

    def __init__(
        self,
        files: ServerFiles,
        thread: PlayThread,
        *,
        device: str | None,
        most_bytes: int,
        on_fault: Callable[[str], None],
    ) -> None:
        self.version: int | None = None
        self._files = files
        self._thread = thread
        self._options = ModelOptions(device=device)
        self._most_bytes = most_bytes
        self._on_fault = on_fault
        self._applied: FileEntry | None = None
        self._model: ModelManifest | None = None
        self._prepare_again: Callable[[], Coroutine[Any, Any, None]]
        self._fetching: tuple[int, asyncio.Task[tuple[WeightManifest, Path]]] | None = None
        self._here: dict[int, str] = {}
        """Versions whose files are on the disk, and their hashes."""

    async def prepare(self, run: RunDescription, pool: EnvPool, *, capacity: int, env_threads: int) -> None:
        """Fetch the model and make it; its weights come with :meth:`bring`."""
        self._prepare_again = partial(self.prepare, run, pool, capacity=capacity, env_threads=env_threads)
        manifest = await self._files.model()
        entries = files_to_fetch(manifest, weights=True, most_bytes=self._most_bytes)
        paths = [await self._files.model_file(entry) for entry in entries]

        def make() -> Player:
            with tempfile.TemporaryDirectory(prefix="art-worker-") as name:
                folder = _folder_of(Path(name), entries, paths)
                model = make_model(folder, run, self._options.place)
                policy = make_policy(model, load_tokenizer(folder), run, capacity, "worker")
            return Player(policy, pool, record_states=run.record_states, env_threads=env_threads)

        self.player = await self._thread.run(make)
        self._model, self._applied = manifest, None

    def announce(self, version: int) -> None:
        """Begin to fetch a version; what goes wrong is told, and tried again when it is needed."""
        if self._fetching is not None:
            before, task = self._fetching
            if before == version and not task.done():
                return
            task.cancel()
        task = asyncio.create_task(self._fetch(version))
        task.add_done_callback(self._fetched)
        self._fetching = version, task

    def doubt(self) -> None:
        """Hold the model and its weights against the manifests again before the next lease is played."""
        self.version = None

    async def bring(self, version: int) -> None:
        """Apply a version's weights, see :meth:`Compute.bring`."""
        if self.version == version:
            return
        if self.version is None and await self._files.model() != self._model:
            await self._prepare_again()
        manifest, file = await self._wait_for(version)
        if self._applied is None or self._applied.sha256 != manifest.file.sha256:
            await self._thread.run(lambda: self._apply(manifest, file))
            self._applied = manifest.file
        self._forget_all_but(version)
        await self._thread.run(lambda: self._set_version(version))
        self.version = version

    def stop(self) -> None:
        """Do nothing: nothing is waited for."""

    async def _wait_for(self, version: int) -> tuple[WeightManifest, Path]:
        """What is being fetched already, or else is from now on."""
        if self._fetching is not None and self._fetching[0] == version:
            task = self._fetching[1]
            self._fetching = None
            try:
                return await task
            except WEIGHT_FAULTS:
                pass  # it was told; once more
        return await self._fetch(version)

    async def _fetch(self, version: int) -> tuple[WeightManifest, Path]:
        manifest = await self._files.weights(version)
        if manifest.file.size > self._most_bytes:
            raise WeightError(f"{manifest.file.name} has {manifest.file.size} bytes, more than is taken")
        file = await self._files.weight_file(manifest)
        sha256 = manifest.file.sha256
        if self._here.get(version, sha256) != sha256:  # of a server that was started anew
            self._files.forget(self._here[version])
        self._here[version] = sha256
        return manifest, file

    def _forget_all_but(self, version: int) -> None:
        """Delete the files of other versions, those that were fetched and never played with among them."""
        wanted = {version} if self._fetching is None else {version, self._fetching[0]}
        kept = {other: sha256 for other, sha256 in self._here.items() if other in wanted}
        for sha256 in set(self._here.values()) - set(kept.values()):
            self._files.forget(sha256)
        self._here = kept

    def _fetched(self, task: asyncio.Task[tuple[WeightManifest, Path]]) -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._on_fault(str(fault))

    def _apply(self, manifest: WeightManifest, file: Path) -> None:
        model = self.player.policy.model
        if self._applied is None and manifest.kind == "full":
            take_types(model, file)
        apply_weights(model, file, manifest)

    def _set_version(self, version: int) -> None:
        self.player.policy.version = version


class ServerModel:
    """The server's own ``/v1``: for machines that have environments, and no compute.

    A version is asked for by its name, so that no reply is another's.

    Args:
        url: The server's address.
        token: Its bearer token.
        files: The server's files, for the tokenizer.
        thread: Where episodes are played.
        backoff: How long to wait for the server to serve a version that it has announced.
    """

    player: Player
    elsewhere = True

    def __init__(
        self, url: str, token: str | None, files: ServerFiles, thread: PlayThread, backoff: Backoff
    ) -> None:
        self.version: int | None = None
        self._url = url
        self._token = token
        self._files = files
        self._thread = thread
        self._backoff = backoff
        self._policy: EnginePolicy | None = None
        self._make: Callable[[str], Player]

    async def prepare(self, run: RunDescription, pool: EnvPool, *, capacity: int, env_threads: int) -> None:
        """Fetch the tokenizer."""
        manifest = await self._files.model()
        entries = files_to_fetch(manifest, weights=False, most_bytes=0)
        paths = [await self._files.model_file(entry) for entry in entries]

        def load() -> PreTrainedTokenizerBase:
            with tempfile.TemporaryDirectory(prefix="art-worker-") as name:
                return load_tokenizer(_folder_of(Path(name), entries, paths))

        tokenizer = await self._thread.run(load)

        def make(model: str) -> Player:
            self.stop()
            self._policy = EnginePolicy(
                self._engine(model, capacity),
                None,
                tokenizer,
                sampling=sampling_params(run),
                max_context=run.max_context,
                history_window=run.history_window,
                name=model,
            )
            return Player(self._policy, pool, record_states=run.record_states, env_threads=env_threads)

        self._make = make

    def announce(self, version: int) -> None:
        """Do nothing: there is nothing to fetch."""

    def doubt(self) -> None:
        """Look at what is served before the next lease is played."""
        self.version = None

    async def bring(self, version: int) -> None:
        """Ask for replies of this version from now on, see :meth:`Compute.bring`."""
        if self.version == version:
            return
        name = await self._served(version)
        player = await self._thread.run(lambda: self._make(name))
        player.policy.version = version
        self.player, self.version = player, version

    def stop(self) -> None:
        """Cancel the replies that are waited for."""
        self.version = None
        if self._policy is not None:
            self._policy.close()

    def _engine(self, model: str | None, capacity: int) -> VLLMEngine:
        return VLLMEngine(self._url, model, api_key=self._token, max_concurrency=capacity)

    async def _served(self, version: int) -> str:
        """The name that the server's model has in this version.

        Raises:
            DownloadError: Where it is not served.
            RefusedError: Where the server serves none at all.
        """
        stem = re.sub(r"@\d+$", "", await self._ask_for(None))
        name = f"{stem}@{version}"
        for attempt in range(1, _SERVED_POLLS + 1):
            try:
                return await self._ask_for(name)
            except EngineError:  # it still has the version before
                await asyncio.sleep(min(1.0, self._backoff.seconds(attempt)))
        raise DownloadError(f"{self._url} does not serve {name}")

    async def _ask_for(self, name: str | None) -> str:
        """The name of a model that is served, by default of the newest."""
        engine = self._engine(name, 1)
        try:
            return (await engine.served()).name
        except EngineRequestError as fault:
            if fault.status in (401, 403, 404):
                raise RefusedError(f"{self._url} samples for no workers: {fault}") from fault
            raise DownloadError(f"{self._url} does not say what it serves: {fault}") from fault
        finally:
            await engine.aclose()


def _folder_of(folder: Path, entries: Sequence[FileEntry], paths: Sequence[Path]) -> Path:
    """A folder in which fetched files have their names."""
    for entry, path in zip(entries, paths, strict=True):
        (folder / entry.name).symlink_to(path.resolve())
    return folder
