"""Groups played by workers elsewhere, for a trainer here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Unpack

from fastapi import APIRouter

from art_trainer.backends.backend import Told
from art_trainer.config import GRPOConfig
from art_trainer.episodes import Group
from art_trainer.errors import EngineError
from art_trainer.remote.collecting import LedgerGroups
from art_trainer.remote.description import describe_run
from art_trainer.remote.episode_bounds import EpisodeBounds
from art_trainer.remote.journal import Journal
from art_trainer.remote.journal_run import claim
from art_trainer.remote.ledger import Ledger
from art_trainer.remote.limits import Limits
from art_trainer.remote.progress import RunProgress
from art_trainer.remote.server import TrainingServer
from art_trainer.remote.status import ServerStatus
from art_trainer.remote.tensor_files import WeightError
from art_trainer.remote.weights import WeightStore
from art_trainer.starts import GroupTask
from art_trainer.transformers_policy import TransformersPolicy
from art_trainer.web.access import check_access
from art_trainer.web.thread import Certificate


class RemoteBackend:
    """Has groups played by workers that come over the network.

    It is a :class:`~art_trainer.backends.backend.RolloutBackend`, and answers workers from the moment it is
    made until :meth:`close`. What they play is on disk before they are told so: a new backend on the same
    folder, with a trainer that goes on from its checkpoint, uses each result once. A group that was collected
    is kept until a later batch is asked for, so that a trainer that was broken off may ask for it again.

    Args:
        policy: Whose weights are played with.
        env: The environment's id, which workers make.
        env_args: Its arguments.
        config: The trainer's settings.
        folder: The run's folder.
        host: The address to listen on. Any but this machine's own needs a token.
        port: The port; 0 takes a free one.
        token: What workers and everybody else have to bring; ``None``: nothing.
        allowed_hosts: More names that clients may address the server by, without ports.
        lease_seconds: How long a lease lasts that is not renewed.
        max_lease_seconds: How long any lease lasts, however often it is renewed.
        drain_seconds: How long :meth:`close` waits for episodes that are being played.
        limits: What is taken from clients.
        certificate: For TLS.
        progress: How far the run is; give it to the trainer too, as a callback.
        routers: Other routes of the server.
        login_page: What ``GET /`` shows to who brings no token.
        login_headers: Headers of that page.
        on_publish: Told of each version, by the thread that trains, before workers are.
        on_shutdown: Called, from another thread, where somebody asks for the end of the run; by default
            :meth:`collect` raises ``KeyboardInterrupt``, at which a trainer writes a checkpoint.

    Raises:
        ConfigError: For an address that others reach, without a token, or that cannot be listened on.
        JournalError: Where the journal is another process's, another run's, or damaged.
        WeightError: Where weights cannot be written.

    Attributes:
        server: The server.
    """

    per_process = False

    def __init__(
        self,
        policy: TransformersPolicy,
        env: str,
        env_args: Mapping[str, Any],
        config: GRPOConfig,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        allowed_hosts: Sequence[str] = (),
        lease_seconds: float = 60.0,
        max_lease_seconds: float = 3600.0,
        drain_seconds: float = 30.0,
        limits: Limits | None = None,
        certificate: Certificate | None = None,
        progress: RunProgress | None = None,
        routers: Sequence[APIRouter] = (),
        login_page: bytes | None = None,
        login_headers: Mapping[str, str] | None = None,
        on_publish: Sequence[Callable[[int], None]] = (),
        on_shutdown: Callable[[], None] | None = None,
    ) -> None:
        check_access(host, token, allowed_hosts)
        self._config = config
        self._drain_seconds = drain_seconds
        self._on_publish = tuple(on_publish)
        self._version: int | None = None
        self._asked_to_stop = False
        with ExitStack() as opened:
            journal = Journal(folder / "journal")
            opened.callback(journal.close)
            described = describe_run(policy, env, env_args, config)
            claim(journal, described)
            self._ledger = Ledger(
                journal,
                max_staleness=config.max_staleness,
                lease_seconds=lease_seconds,
                max_lease_seconds=max_lease_seconds,
                fault_of=EpisodeBounds.of(policy).fault,
                on_work=lambda: self.server.connections.wake(),
            )
            opened.callback(self._ledger.close)
            self._groups = LedgerGroups(self._ledger, config.max_staleness, self._check)
            self._weights = WeightStore(folder / "weights", policy, keep=2 + config.max_staleness)
            self.server = TrainingServer(
                self._ledger,
                self._weights,
                described,
                progress=progress or RunProgress(folder.name, config.max_steps),
                host=host,
                port=port,
                token=token,
                allowed_hosts=allowed_hosts,
                routers=routers,
                login_page=login_page,
                login_headers=login_headers,
                limits=limits,
                version=policy.version,
                lease_seconds=lease_seconds,
                certificate=certificate,
                shut_down=on_shutdown or self._stop,
            )
            opened.enter_context(self.server)
            self._opened = opened.pop_all()

    @property
    def url(self) -> str:
        """Where the server is."""
        return self.server.url

    @property
    def stale(self) -> int:
        """How many episodes were played again, since their weights were too old when they were wanted."""
        return self._groups.stale

    def status(self) -> ServerStatus:
        """The server's state now."""
        return self.server.status()

    def publish(self, version: int) -> None:
        """Let workers play with the policy's present weights.

        Raises:
            EngineError: Where they cannot be written; workers keep the version before.
        """
        if version == self._version:
            return
        try:
            self._weights.publish(version)
        except WeightError as fault:
            raise EngineError(
                f"the weights of version {version} cannot be published: {fault}. Make room, and resume the "
                "run; workers still have the version before"
            ) from fault
        for tell in self._on_publish:
            tell(version)
        self._version = version
        self._groups.publish(version)
        self.server.announce(version)

    def prefetch(self, tasks: Sequence[GroupTask]) -> None:
        """Have groups played that will be asked for later."""
        self._ledger.submit(tasks)

    def collect(self, tasks: Sequence[GroupTask], **told: Unpack[Told]) -> list[Group]:
        """Wait for groups, see :meth:`~art_trainer.backends.backend.RolloutBackend.collect`.

        Raises:
            BackendClosed: Where it is closed meanwhile.
            EngineError: Where the server has stopped by itself.
            KeyboardInterrupt: Where somebody asked the server for the end of the run.
        """
        return self._groups.collect(tasks, **told)

    def saved(self, batch: int) -> None:
        """Forget the results of batches before one: a checkpoint holds what they taught."""
        self._ledger.forget(batch)

    def dismiss(self, reason: str) -> None:
        """Tell all workers to stop; the server goes on to answer."""
        self.server.connections.drain(reason)

    def close(self) -> None:
        """Tell the workers to stop, wait for what they are still playing, and stop the server."""
        opened = self._opened.pop_all()  # closed once, whatever happens
        with opened:
            if self.server.connections.book.connected:
                self.server.drain("training is over, or the server stops", self._drain_seconds)

    def abandon(self) -> None:
        """Stop the server without a word: the workers wait for whoever begins it again."""
        self._opened.pop_all().close()

    def _check(self) -> None:
        if self._asked_to_stop:
            raise KeyboardInterrupt
        self.server.check()

    def _stop(self) -> None:
        self._asked_to_stop = True
