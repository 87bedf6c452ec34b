"""What a worker does with its leases, whatever becomes of its connection.

A lease ends in one of three ways: its result gets the server's receipt, it is given back, or the server takes
it away.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError

from art_trainer.env_pool import EnvPool, MakeEnv
from art_trainer.episodes import Ending, Episode
from art_trainer.errors import EngineError
from art_trainer.remote.backoff import Backoff
from art_trainer.remote.client import MAX_MESSAGE_BYTES
from art_trainer.remote.compute import WEIGHT_FAULTS, Compute
from art_trainer.remote.episode_data import EpisodeData, TimingData
from art_trainer.remote.messages import EpisodeResult, Lease, RunDescription, StatusUpdate, TrainEpisodes
from art_trainer.remote.pending import Pending
from art_trainer.remote.play_thread import PlayThread
from art_trainer.remote.player import OUT_OF_MEMORY, PlayStopped
from art_trainer.remote.worker_errors import RefusedError
from art_trainer.rollout import last_line
from art_trainer.timings import EpisodeTiming

EnvMaker = Callable[[str, Mapping[str, Any]], MakeEnv]
"""What makes an environment, from its id and its arguments."""
_RATE_SECONDS = 60.0
_MOST_FAULTS = 10
"""Times in a row that weights may not be had or not fit; a worker that never can is of no use to anyone."""
_MOST_SHRINKS = 3
"""Times that one episode alone may be too much for the memory."""


class LeaseWork:
    """Plays leases as they come. All of it lives in one event loop, but for what the play thread does.

    Args:
        pending: What is to be sent.
        compute: Who samples.
        thread: Where it is played.
        capacity: Most episodes under way at one time.
        env_threads: As in :func:`~art_trainer.rollout.rollout`.
        backoff: How long to wait where weights cannot be had.
        say: Takes a line for whoever watches.

    Attributes:
        leases: What is to be played, or being played, by its id.
        newest: The version of the server's weights.
        capacity: Most episodes under way at one time; halved where the memory does not hold them.
    """

    def __init__(
        self,
        pending: Pending,
        compute: Compute,
        thread: PlayThread,
        *,
        capacity: int,
        env_threads: int,
        backoff: Backoff,
        say: Callable[[str], None],
    ) -> None:
        self.leases: dict[str, Lease] = {}
        self.newest = 0
        self.capacity = capacity
        self._pending = pending
        self._compute = compute
        self._thread = thread
        self._env_threads = env_threads
        self._backoff = backoff
        self._say = say
        self._granted: asyncio.Queue[TrainEpisodes] = asyncio.Queue()
        self._stop = threading.Event()
        self._over: str | None = None
        self._faults = 0
        self._shrinks = 0
        self._played = 0
        self._began = time.monotonic()
        self._ends: deque[float] = deque()
        self._last_error: str | None = None

    async def run(self, run: RunDescription, make_env: EnvMaker) -> None:
        """Get ready, then play until this is cancelled.

        Args:
            run: What the server says of its run.
            make_env: What makes its environment.

        Raises:
            RefusedError: Where the run is one that this machine cannot play.
            ConfigError: Where the environment cannot be made.
        """
        pool = EnvPool(await self._thread.run(partial(make_env, run.env, run.env_args)))
        ready = partial(
            self._compute.prepare, run, pool, capacity=self.capacity, env_threads=self._env_threads
        )
        try:
            while not await self._tries(ready):
                pass
            while True:
                await self._play(await self._next())
        finally:
            # Where they were made: some environments belong to a thread.
            self._thread.later(pool.close)

    def grant(self, granted: TrainEpisodes) -> None:
        """Take leases."""
        self._pending.granted()
        if self._over is not None:
            self._pending.release([lease.lease for lease in granted.leases], self._over, failed=False)
            return
        self.newest = granted.policy_version
        self.leases |= {lease.lease: lease for lease in granted.leases}
        self._granted.put_nowait(granted)

    def update(self, version: int) -> None:
        """There are newer weights: fetch them meanwhile."""
        if version != self.newest:
            self.newest = version
            self._compute.announce(version)

    def reconnected(self, mine: Collection[str], version: int) -> None:
        """The server, or another in its place, has answered a ``hello``.

        Args:
            mine: The leases that it still knows as this worker's.
            version: Of its weights.
        """
        self._compute.doubt()
        self.newest = version
        lost = [lease for lease in self.leases if lease not in mine]
        for lease in lost:
            del self.leases[lease]
        if lost and not self.leases:
            self.halt()

    def give_back(self, reason: str) -> None:
        """Give all leases back, break off what is being played, and take no more."""
        self._over = reason
        leases = list(self.leases)
        self.leases = {}
        if leases:
            self._pending.release(leases, reason, failed=False)
        self._pending.granted()
        self.halt()

    def halt(self) -> None:
        """Break off what is being played."""
        self._stop.set()
        self._compute.stop()

    def fault(self, words: str) -> None:
        """Note what went wrong, for the server's status and whoever watches."""
        self._last_error = words[:2_000]
        self._say(words)

    def status(self) -> StatusUpdate:
        """What the server is told every few seconds."""
        now = time.monotonic()
        while self._ends and now - self._ends[0] > _RATE_SECONDS:
            self._ends.popleft()
        return StatusUpdate(
            leases=[*self.leases, *self._pending.results],
            policy_version=self._compute.version,
            episodes_played=self._played,
            episodes_per_second=len(self._ends) / max(1.0, min(_RATE_SECONDS, now - self._began)),
            last_error=self._last_error,
        )

    async def _next(self) -> TrainEpisodes:
        """Wait for leases; those whose results are not acknowledged come first."""
        while len(self._pending.results) > self.capacity:
            self._pending.arrived.clear()
            await self._pending.arrived.wait()
        if self._granted.empty() and self._over is None:
            self._pending.ask(self.capacity)
        return await self._granted.get()

    async def _tries(self, get: Callable[[], Any]) -> bool:
        """Get something from the server; where it cannot be had, wait a little."""
        try:
            await get()
        except WEIGHT_FAULTS as fault:
            self._faults += 1
            self.fault(str(fault))
            if self._faults == _MOST_FAULTS:
                raise RefusedError(
                    f"the server's files cannot be used, after {_MOST_FAULTS} tries: {fault}"
                ) from fault
            await asyncio.sleep(self._backoff.seconds(self._faults))
            return False
        self._faults = 0
        return True

    async def _play(self, granted: TrainEpisodes) -> None:
        version = self.newest
        if not await self._tries(partial(self._compute.bring, version)):
            had = self._compute.version
            if had is None or not granted.policy_version <= had <= version:
                self._release(self._mine(granted), f"no weights of version {version} here", failed=False)
                return
        leases = self._mine(granted)
        if not leases:
            return
        self._stop = threading.Event()
        tell = partial(self._tell, asyncio.get_running_loop())
        play = partial(self._compute.player.play, leases, self.capacity, tell, self._stop)
        try:
            await self._thread.run(play)
        except PlayStopped:
            return
        except OUT_OF_MEMORY as fault:
            self._shrink(leases, fault)
        except EngineError as fault:
            self.fault(str(fault))
            self._release(leases, str(fault), failed=False)
            await asyncio.sleep(self._backoff.seconds(1))
        except Exception:
            # This process ends of it: the server is told why, and need not wait for the leases to run out.
            self._release(leases, f"the worker failed: {last_line()}", failed=True)
            raise
        else:
            self._shrinks = 0

    def _mine(self, granted: TrainEpisodes) -> list[Lease]:
        return [lease for lease in granted.leases if lease.lease in self.leases]

    def _release(self, leases: Sequence[Lease], reason: str, *, failed: bool) -> None:
        """Give those back that have not ended."""
        left = [lease.lease for lease in leases if lease.lease in self.leases]
        for lease in left:
            del self.leases[lease]
        if left:
            self._pending.release(left, reason, failed=failed)

    def _shrink(self, leases: Sequence[Lease], fault: BaseException) -> None:
        """Play fewer at one time from now on.

        Raises:
            RefusedError: Where one at a time is too much, again and again.
        """
        words = f"out of memory with {self.capacity} episodes at one time: {fault}"
        self.fault(words)
        self._release(leases, words, failed=True)
        self._shrinks = self._shrinks + 1 if self.capacity == 1 else 0
        if self._shrinks == _MOST_SHRINKS:
            raise RefusedError("one episode at a time is too much for this machine's memory")
        self.capacity = max(1, self.capacity // 2)

    def _tell(
        self, loop: asyncio.AbstractEventLoop, lease: Lease, episode: Episode, timing: EpisodeTiming | None
    ) -> None:
        """In the play thread: an episode has ended."""
        text, reason, failed = "", "", True
        if self._compute.elsewhere and episode.ending is Ending.POLICY_ERROR:
            # The server's fault, or it has other weights by now: not the episode's.
            reason, failed = episode.error or "no reply", self._compute.version == self.newest
        else:
            try:
                text = _result(lease, episode, timing)
            except ValueError as wrong:
                reason = f"its episode cannot be sent: {_first(wrong)}"
        loop.call_soon_threadsafe(self._ended, lease, text, reason, failed)

    def _ended(self, lease: Lease, text: str, reason: str, failed: bool) -> None:
        if lease.lease not in self.leases:
            return  # it was given back, or taken away
        self._played += 1
        self._ends.append(time.monotonic())
        if text:
            del self.leases[lease.lease]
            self._pending.result(lease.lease, text)
        else:
            self.fault(reason)
            self._release([lease], reason, failed=failed)


def _result(lease: Lease, episode: Episode, timing: EpisodeTiming | None) -> str:
    """An episode as a message.

    Raises:
        ValueError: Where the protocol has no place for it.
    """
    told = None if timing is None else TimingData.of(timing)
    message = EpisodeResult(
        lease=lease.lease, token=lease.token, episode=EpisodeData.of(episode), timing=told
    )
    text = message.model_dump_json()
    size = len(text.encode())
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"it has {size} bytes, more than {MAX_MESSAGE_BYTES}")
    return text


def _first(wrong: ValueError) -> str:
    if not isinstance(wrong, ValidationError):
        return str(wrong)
    first = wrong.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
