"""Plays a worker's leases, independent of its connection.

A lease ends in one of three ways: its result gets a receipt, it is released, or the server takes it away.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError

from art_trainer.distributed.protocol import (
    MAX_MESSAGE_BYTES,
    EpisodeData,
    EpisodeResult,
    Lease,
    LeaseRequest,
    ReleaseLeases,
    ResultReceipt,
    RunSpec,
    StatusUpdate,
    TrainEpisodes,
    describe_invalid,
)
from art_trainer.distributed.worker.connection import Backoff, RefusedError
from art_trainer.distributed.worker.inference import (
    OUT_OF_MEMORY,
    WEIGHT_ERRORS,
    Inference,
    PlayStoppedError,
)
from art_trainer.errors import EngineError
from art_trainer.rollout.envs import EnvPool, MakeEnv
from art_trainer.rollout.episodes import last_line
from art_trainer.types import Ending, Episode

EnvMaker = Callable[[str, Mapping[str, Any]], MakeEnv]
"""Returns a maker of environments from an id and arguments."""
_RATE_SECONDS = 60.0
_MAX_WEIGHT_ERRORS = 10
"""Consecutive failures to get weights after which the worker gives up."""
_MAX_SHRINKS = 3
"""Consecutive times that one episode alone may run out of memory."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Result:
    text: str
    """The message."""
    sent_at: float


class DaemonThread(Executor):
    """An executor of one daemon thread: a program that ends does not wait for what it computes."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="play", daemon=True).start()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function after everything else."""
        future: Future[Any] = Future()
        self._calls.put((future, partial(function, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread when all calls are done; never waits."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:  # it belongs to the caller
                    future.set_exception(error)


class LeaseExecutor:
    """Plays leases as they come, and keeps each result until the server has it.

    All of it lives in one event loop, except what the inference thread does.

    Args:
        send: Sends a message if there is a connection; what has no answer is sent again after the next one.
        inference: Where replies come from.
        capacity: Most episodes under way at one time.
        backoff: How long to wait after weights could not be had.
        name: The worker's name, for log messages.

    Attributes:
        leases: Leases without a result, by id.
        results: Results without a receipt, by lease.
        newest: Version of the server's weights.
        capacity: Most episodes under way at one time; halved when memory runs out.
    """

    def __init__(
        self,
        send: Callable[[str], None],
        inference: Inference,
        *,
        capacity: int,
        backoff: Backoff,
        name: str,
    ) -> None:
        self.leases: dict[str, Lease] = {}
        self.results: dict[str, _Result] = {}
        self.newest = 0
        self.capacity = capacity
        self._send = send
        self._inference = inference
        self._backoff = backoff
        self._name = name
        self._granted: asyncio.Queue[TrainEpisodes] = asyncio.Queue()
        self._wanted = False
        """Whether a request for leases has no answer yet."""
        self._acknowledged = asyncio.Event()
        self._stop = threading.Event()
        self._closed: str | None = None
        self._weight_errors = 0
        self._shrinks = 0
        self._played = 0
        self._started = time.monotonic()
        self._ends: deque[float] = deque()
        self._last_error: str | None = None

    async def run(self, run: RunSpec, make_env: EnvMaker) -> None:
        """Load the model, then play until cancelled.

        Args:
            run: The server's run.
            make_env: Creates its environment.

        Raises:
            RefusedError: If this worker cannot play the run.
            ConfigError: If the environment cannot be created.
        """
        pool = EnvPool(await self._inference.in_thread(partial(make_env, run.env, run.env_args)))
        try:
            while not await self._try(partial(self._inference.prepare, run, pool)):
                pass
            while True:
                await self._play(await self._next())
        finally:
            # Some environments belong to the thread that created them.
            self._inference.thread.submit(pool.close)

    # What the server says.

    def grant(self, granted: TrainEpisodes) -> None:
        """Accept leases."""
        self._wanted = False
        if self._closed is not None:
            self._return([lease.lease for lease in granted.leases], self._closed, failed=False)
            return
        self.newest = granted.policy_version
        self.leases |= {lease.lease: lease for lease in granted.leases}
        self._granted.put_nowait(granted)

    def receipt(self, receipt: ResultReceipt) -> None:
        """Drop a result that the server has, whatever its outcome."""
        self.results.pop(receipt.lease, None)
        self._acknowledged.set()
        if receipt.outcome not in ("accepted", "duplicate"):
            why = f" ({receipt.reason})" if receipt.reason else ""
            self.report_error(f"a result was not accepted: {receipt.outcome}{why}")

    def update(self, version: int) -> None:
        """Fetch newer weights in the background."""
        if version != self.newest:
            self.newest = version
            self._inference.prefetch_version(version)

    def reconnected(self, kept: Collection[str], version: int) -> None:
        """Continue after a handshake with the server or its successor: send what has no answer.

        Args:
            kept: The leases that still belong to this worker.
            version: The newest weights.
        """
        # The server may have restarted, with other weights under the same version: they are checked again.
        self._inference.version = None
        self.newest = version
        lost = [lease for lease in self.leases if lease not in kept]
        for lease in lost:
            del self.leases[lease]
        if lost and not self.leases:
            self._halt()
        self.resend_older(0.0)
        self._request()

    def resend_older(self, seconds: float) -> None:
        """Send results again that have had no receipt for so long."""
        now = time.monotonic()
        for result in self.results.values():
            if now - result.sent_at >= seconds:
                result.sent_at = now
                self._send(result.text)

    def close(self, reason: str) -> None:
        """Release all leases, stop playing, and accept no more."""
        self._closed, self._wanted = reason, False
        self._release(list(self.leases.values()), reason, failed=False)
        self._halt()

    def report_error(self, message: str) -> None:
        """Log an error, and show it in the server's status."""
        self._last_error = message[:2_000]
        _log.warning("%s: %s", self._name, message)

    def status(self) -> StatusUpdate:
        """Return a heartbeat."""
        now = time.monotonic()
        while self._ends and now - self._ends[0] > _RATE_SECONDS:
            self._ends.popleft()
        return StatusUpdate(
            leases=[*self.leases, *self.results],
            policy_version=self._inference.version,
            episodes_played=self._played,
            episodes_per_second=len(self._ends) / max(1.0, min(_RATE_SECONDS, now - self._started)),
            last_error=self._last_error,
        )

    def _halt(self) -> None:
        """Stop what is being played."""
        self._stop.set()
        self._inference.stop()

    def _request(self) -> None:
        if self._wanted:
            self._send(LeaseRequest(count=self.capacity).model_dump_json())

    def _return(self, leases: Sequence[str], reason: str, *, failed: bool) -> None:
        message = ReleaseLeases(leases=list(leases), reason=reason[:2_000], failed=failed)
        self._send(message.model_dump_json())

    # Playing.

    async def _next(self) -> TrainEpisodes:
        """Wait for leases, and before that for receipts if many are missing."""
        while len(self.results) > self.capacity:
            self._acknowledged.clear()
            await self._acknowledged.wait()
        if self._granted.empty() and self._closed is None:
            self._wanted = True
            self._request()
        return await self._granted.get()

    async def _try(self, fetch: Callable[[], Awaitable[None]]) -> bool:
        """Fetch something; if it cannot be had, wait a little and return false."""
        try:
            await fetch()
        except WEIGHT_ERRORS as error:
            self._weight_errors += 1
            self.report_error(str(error))
            if self._weight_errors == _MAX_WEIGHT_ERRORS:
                raise RefusedError(
                    f"the server's files cannot be used, after {_MAX_WEIGHT_ERRORS} tries: {error}"
                ) from error
            await asyncio.sleep(self._backoff.seconds(self._weight_errors))
            return False
        self._weight_errors = 0
        return True

    async def _play(self, granted: TrainEpisodes) -> None:
        version = self.newest
        if not await self._try(partial(self._inference.load_version, version)):
            loaded = self._inference.version
            if loaded is None or not granted.policy_version <= loaded <= version:
                self._release(granted.leases, f"no weights of version {version} here", failed=False)
                return
        leases = [lease for lease in granted.leases if lease.lease in self.leases]
        if not leases:
            return
        self._stop = threading.Event()
        on_end = partial(self._on_end, asyncio.get_running_loop())
        try:
            play = partial(self._inference.play, leases, self.capacity, on_end, self._stop)
            await self._inference.in_thread(play)
        except PlayStoppedError:
            return
        except OUT_OF_MEMORY as error:
            self._shrink(leases, error)
        except EngineError as error:
            self.report_error(str(error))
            self._release(leases, str(error), failed=False)
            await asyncio.sleep(self._backoff.seconds(1))
        except Exception:
            # The process ends with it; the server need not wait for the leases to expire.
            self._release(leases, f"the worker failed: {last_line()}", failed=True)
            raise
        else:
            self._shrinks = 0

    def _release(self, leases: Sequence[Lease], reason: str, *, failed: bool) -> None:
        """Return those leases that have no result."""
        left = [lease.lease for lease in leases if self.leases.pop(lease.lease, None) is not None]
        if left:
            self._return(left, reason, failed=failed)

    def _shrink(self, leases: Sequence[Lease], error: BaseException) -> None:
        """Halve the capacity.

        Raises:
            RefusedError: If one episode at a time runs out of memory again and again.
        """
        reason = f"out of memory with {self.capacity} episodes at one time: {error}"
        self.report_error(reason)
        # Of several at one time none is to blame.
        self._release(leases, reason, failed=self.capacity == 1)
        self._shrinks = self._shrinks + 1 if self.capacity == 1 else 0
        if self._shrinks == _MAX_SHRINKS:
            raise RefusedError("one episode at a time is too much for this machine's memory")
        self.capacity = max(1, self.capacity // 2)

    def _on_end(self, loop: asyncio.AbstractEventLoop, lease: Lease, episode: Episode) -> None:
        """Encode a finished episode, in the inference thread."""
        text, reason, failed = "", "", True
        if self._inference.is_remote and episode.ending is Ending.POLICY_ERROR:
            # The server failed, or has other weights by now; the episode is not to blame.
            reason, failed = episode.error or "no reply", self._inference.version == self.newest
        else:
            try:
                text = _encode(lease, episode)
            except ValueError as error:
                why = describe_invalid(error) if isinstance(error, ValidationError) else str(error)
                reason = f"its episode cannot be sent: {why}"
        loop.call_soon_threadsafe(self._ended, lease, text, reason, failed)

    def _ended(self, lease: Lease, text: str, reason: str, failed: bool) -> None:
        if lease.lease not in self.leases:
            return  # it was released or taken away
        self._played += 1
        self._ends.append(time.monotonic())
        if text:
            del self.leases[lease.lease]
            self.results[lease.lease] = _Result(text, time.monotonic())
            self._send(text)
        else:
            self.report_error(reason)
            self._release([lease], reason, failed=failed)


def _encode(lease: Lease, episode: Episode) -> str:
    """Return the message of a result.

    Raises:
        ValueError: If it does not fit the protocol.
    """
    result = EpisodeResult(lease=lease.lease, token=lease.token, episode=EpisodeData.of(episode))
    text = result.model_dump_json()
    size = len(text.encode())
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"it has {size} bytes, more than {MAX_MESSAGE_BYTES}")
    return text
