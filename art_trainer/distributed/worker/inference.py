"""Inference of a worker: a local model that follows the server's weights, or the server's API."""

from __future__ import annotations

import asyncio
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from art_trainer.distributed.protocol import FileEntry, Lease, ModelManifest, RunSpec, WeightManifest
from art_trainer.distributed.weights import WeightError, apply_weights, match_dtypes
from art_trainer.distributed.worker.connection import Backoff, DownloadError, RefusedError
from art_trainer.distributed.worker.downloads import ArtifactCache
from art_trainer.distributed.worker.model import (
    MAX_WEIGHT_BYTES,
    files_to_fetch,
    load_tokenizer,
    make_model,
    make_policy,
)
from art_trainer.errors import EngineError, EngineRequestError
from art_trainer.inference.engine_policy import EnginePolicy
from art_trainer.inference.engines.clients import VLLMEngine
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models.loading import ModelOptions
from art_trainer.rollout.envs import EnvPool
from art_trainer.rollout.episodes import rollout_episodes
from art_trainer.types import Episode, EpisodeSpec

WEIGHT_ERRORS = (DownloadError, WeightError)
"""Why weights may be unavailable; the worker continues with the old ones, or waits."""
OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)
OnEnd = Callable[[Lease, Episode], None]
_SERVED_POLLS = 10
_Value = TypeVar("_Value")


class PlayStoppedError(Exception):
    """The episodes are no longer wanted."""


class Inference:
    """What a worker plays with. :meth:`play` runs in the inference thread, the rest in the event loop.

    Args:
        files: The server's files.
        thread: An executor of one thread, where everything is computed: PyTorch keeps worker threads for each
            thread that computes.
        capacity: Most episodes under way at one time.
        env_threads: As in :func:`~art_trainer.rollout.episodes.rollout_episodes`.

    Attributes:
        version: Version of the weights that play; ``None``: none yet, or not certain.
        thread: The executor.
        is_remote: Whether replies come from another machine, which may fail or have other weights by now.
    """

    is_remote = False
    _spec: RunSpec
    _pool: EnvPool
    _policy: TransformersPolicy | EnginePolicy | None = None

    def __init__(self, files: ArtifactCache, thread: Executor, capacity: int, env_threads: int) -> None:
        self.version: int | None = None
        self._files = files
        self.thread = thread
        self._capacity = capacity
        self._env_threads = env_threads

    async def prepare(self, run: RunSpec, pool: EnvPool) -> None:
        """Get ready to play a run in environments of a pool.

        Raises:
            RefusedError: If this worker does not take the server's model.
            DownloadError: If it cannot be fetched.
            WeightError: If it is damaged.
        """
        self._spec, self._pool = run, pool

    async def load_version(self, version: int) -> None:
        """Play with the weights of this version from now on; called between batches.

        Raises:
            DownloadError: If they cannot be fetched.
            WeightError: If they are damaged or another model's; the old ones stay.
        """
        raise NotImplementedError

    def prefetch_version(self, version: int) -> None:
        """Start to fetch weights in the background, if there is something to fetch."""

    def stop(self) -> None:
        """Cancel requests to other machines."""

    def play(self, leases: Sequence[Lease], capacity: int, on_end: OnEnd, stop: threading.Event) -> None:
        """Play each lease once.

        Args:
            leases: The episodes.
            capacity: Most episodes under way at one time.
            on_end: Called with each episode as it ends.
            stop: If it is set, playing stops before the next token.

        Raises:
            PlayStoppedError: If it was stopped.
            torch.OutOfMemoryError, MemoryError: A smaller ``capacity`` may work.
        """
        policy = self._policy
        assert policy is not None
        groups: dict[str, int] = {}
        specs = [
            EpisodeSpec(
                lease.seed, lease.options, groups.setdefault(lease.group, len(groups)), tuple(lease.rng_seed)
            )
            for lease in leases
        ]

        def ended(index: int, episode: Episode) -> None:
            if stop.is_set():
                raise PlayStoppedError
            on_end(leases[index], episode)

        try:
            with self._stopping(stop):
                rollout_episodes(
                    policy,
                    self._pool,
                    specs,
                    max_concurrent=capacity,
                    on_end=ended,
                    record_states=self._spec.record_states,
                    env_threads=self._env_threads,
                )
        except BaseException as error:
            policy.sampling = policy.sampling  # an empty KV cache: after an error it may hold anything
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if stop.is_set():
                raise PlayStoppedError from error
            raise

    @contextmanager
    def _stopping(self, stop: threading.Event) -> Iterator[None]:
        """Within, playing raises :class:`PlayStoppedError` once ``stop`` is set."""
        yield

    async def in_thread(self, function: Callable[[], _Value]) -> _Value:
        """Call a function in the inference thread."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, function)

    async def _load(self, load: Callable[[Path], _Value], entries: Sequence[FileEntry]) -> _Value:
        """Fetch files, and load something from a folder in which they have their names."""
        paths = [await self._files.model_file(entry) for entry in entries]

        def in_folder() -> _Value:
            with tempfile.TemporaryDirectory(prefix="art-worker-") as name:
                for entry, path in zip(entries, paths, strict=True):
                    (Path(name) / entry.name).symlink_to(path.resolve())
                return load(Path(name))

        return await self.in_thread(in_folder)


class LocalInference(Inference):
    """A model in this process.

    Args:
        *common: As of :class:`Inference`.
        device: Where the model goes; ``None``: the first GPU, else the CPU.
    """

    def __init__(self, *common: Any, device: str | None) -> None:
        super().__init__(*common)
        self._device = ModelOptions(device=device).torch_device
        self._model: ModelManifest | None = None
        self._applied: str | None = None
        """sha256 of the weights in the model."""
        self._prefetch: tuple[int, asyncio.Task[tuple[WeightManifest, Path] | None]] | None = None

    async def prepare(self, run: RunSpec, pool: EnvPool) -> None:
        """Fetch and create the model; :meth:`load_version` loads its weights."""
        await super().prepare(run, pool)
        manifest = await self._files.model()
        entries = files_to_fetch(manifest, weights=True)

        def load(folder: Path) -> TransformersPolicy:
            model = make_model(folder, run, self._device)
            return make_policy(model, load_tokenizer(folder), run, self._capacity)

        self._policy = await self._load(load, entries)
        self._model, self._applied = manifest, None

    def prefetch_version(self, version: int) -> None:
        """Start to fetch a version; if that fails it is fetched again when it is needed."""

        async def fetch() -> tuple[WeightManifest, Path] | None:
            with suppress(*WEIGHT_ERRORS):
                return await self._fetch(version)
            return None

        if self._prefetch is not None:
            before, task = self._prefetch
            if before == version and not task.done():
                return
            task.cancel()
        self._prefetch = version, asyncio.create_task(fetch())

    async def load_version(self, version: int) -> None:
        """Load a version's weights, see :meth:`Inference.load_version`."""
        if self.version == version:
            return
        if self.version is None and await self._files.model() != self._model:
            await self.prepare(self._spec, self._pool)
        manifest, file = await self._wait_for(version)
        await self.in_thread(lambda: self._apply(manifest, file))
        self.version = version

    def _apply(self, manifest: WeightManifest, file: Path) -> None:
        policy = self._policy
        assert isinstance(policy, TransformersPolicy)
        if self._applied != manifest.file.sha256:
            if self._applied is None:
                match_dtypes(policy.model, file)
            apply_weights(policy.model, file, manifest)
            self._applied = manifest.file.sha256
        policy.version = manifest.policy_version

    async def _wait_for(self, version: int) -> tuple[WeightManifest, Path]:
        if self._prefetch is not None and self._prefetch[0] == version:
            task = self._prefetch[1]
            self._prefetch = None
            if (found := await task) is not None:
                return found
        return await self._fetch(version)

    async def _fetch(self, version: int) -> tuple[WeightManifest, Path]:
        manifest = await self._files.weights(version)
        if manifest.file.size > MAX_WEIGHT_BYTES:
            raise WeightError(f"{manifest.file.name} has {manifest.file.size} bytes, above the limit")
        return manifest, await self._files.weight_file(manifest)

    @contextmanager
    def _stopping(self, stop: threading.Event) -> Iterator[None]:
        """Within, the model's forward passes raise once ``stop`` is set."""

        def check(*_: object) -> None:
            if stop.is_set():
                raise PlayStoppedError

        assert isinstance(self._policy, TransformersPolicy)
        # Every pass starts with the embeddings, whichever part of the model is called.
        embeddings: nn.Module = self._policy.model.get_input_embeddings()  # type: ignore[operator]
        handle = embeddings.register_forward_pre_hook(check)
        try:
            yield
        finally:
            handle.remove()


class RemoteInference(Inference):
    """The server's own ``/v1`` API, for machines with environments and little compute.

    A version is requested by its name, so that no reply comes from another.

    Args:
        *common: As of :class:`Inference`.
        url: The server's address.
        token: Its bearer token.
        backoff: How long to wait for a version that the server has announced.
    """

    is_remote = True

    def __init__(self, *common: Any, url: str, token: str | None, backoff: Backoff) -> None:
        super().__init__(*common)
        self._url = url
        self._token = token
        self._backoff = backoff
        self._tokenizer: Any = None

    async def prepare(self, run: RunSpec, pool: EnvPool) -> None:
        """Fetch the tokenizer."""
        await super().prepare(run, pool)
        entries = files_to_fetch(await self._files.model(), weights=False)
        self._tokenizer = await self._load(load_tokenizer, entries)

    async def load_version(self, version: int) -> None:
        """Request replies of this version, see :meth:`Inference.load_version`."""
        if self.version == version:
            return
        name = await self._served(version)
        self._policy = await self.in_thread(lambda: self._make_policy(name, version))
        self.version = version

    def stop(self) -> None:
        """Cancel the replies that are awaited."""
        self.version = None
        if isinstance(self._policy, EnginePolicy):
            self._policy.close()

    def _make_policy(self, name: str, version: int) -> EnginePolicy:
        self.stop()
        run = self._spec
        policy = EnginePolicy(
            self._engine(name, self._capacity),
            None,
            self._tokenizer,
            sampling=run.sampling,
            max_context=run.max_context,
            history_window=run.history_window,
            name=name,
        )
        policy.version = version
        return policy

    def _engine(self, model: str | None, capacity: int) -> VLLMEngine:
        return VLLMEngine(self._url, model, api_key=self._token, max_concurrency=capacity)

    async def _served(self, version: int) -> str:
        """Return the name of the server's model in this version.

        Raises:
            DownloadError: If it is not served.
            RefusedError: If the server has no such API.
        """
        stem = re.sub(r"@\d+$", "", await self._served_name(None))
        name = f"{stem}@{version}"
        for attempt in range(1, _SERVED_POLLS + 1):
            try:
                return await self._served_name(name)
            except EngineError:  # it still has the version before
                await asyncio.sleep(min(1.0, self._backoff.seconds(attempt)))
        raise DownloadError(f"{self._url} does not serve {name}")

    async def _served_name(self, name: str | None) -> str:
        """Return the name of a served model, by default of the newest."""
        engine = self._engine(name, 1)
        try:
            return (await engine.served_model()).name
        except EngineRequestError as error:
            if error.status in (401, 403, 404):
                raise RefusedError(f"{self._url} samples for no workers: {error}") from error
            raise DownloadError(f"{self._url} does not say what it serves: {error}") from error
        finally:
            await engine.aclose()
