"""``art-trainer serve``: as ``art-trainer train``, but workers play, who come over the network."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import typer
from rich.console import Console

from art_trainer.backends.elsewhere import PlayedElsewhere
from art_trainer.commands.certificates import in_the_open
from art_trainer.commands.gathering import TrainRequest
from art_trainer.commands.settings import Settings
from art_trainer.commands.tokens import TOKEN_VARIABLE, read_token
from art_trainer.commands.training import INTERRUPTED, Hired, Players, run_train
from art_trainer.dashboard import PAGE_HEADERS, RunsSource, dashboard_router, page
from art_trainer.errors import ConfigError
from art_trainer.interrupt import wish_gets_through
from art_trainer.processes import is_main_to_be
from art_trainer.remote import journal
from art_trainer.remote.backend import RemoteBackend
from art_trainer.remote.progress import RunProgress
from art_trainer.remote.server import open_socket
from art_trainer.run_folder import RunFolder
from art_trainer.serving import ServedPolicy, openai_router
from art_trainer.transformers_policy import TransformersPolicy
from art_trainer.web.access import check_access
from art_trainer.web.thread import Certificate

DEFAULTS: Mapping[str, Any] = {"save_steps": 10, "process_timeout": 86400.0}
"""A server that is lost costs the updates since its last checkpoint; what was played is in the journal. Of
several processes the others wait for the main one, and that for workers, who may be long in coming."""


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """What ``art-trainer serve`` was asked for."""

    training: TrainRequest
    host: str = "127.0.0.1"
    port: int = 0
    token_file: Path | None = None
    """The file that holds the token; ``None``: the environment's ``ART_SERVER_TOKEN`` is the token."""
    allowed_hosts: tuple[str, ...] = ()
    lease_seconds: float = 60.0
    max_lease_seconds: float = 3600.0
    drain_seconds: float = 30.0
    api: bool = True
    """Whether to answer OpenAI's API."""
    dashboard: bool = True
    certificate: Certificate | None = None


class Stop:
    """How a run is asked to end, but for Ctrl-C: by SIGTERM, or by a request to the server.

    Attributes:
        asked: Whether it was.
        then: Done at once when it is asked, before the run gets to its end.
    """

    def __init__(self) -> None:
        self.asked = False
        self.then: Callable[[], None] = lambda: None
        self._first = threading.Lock()
        self._get_through: Callable[[], None] = lambda: None

    def ask(self) -> None:
        """End the run as Ctrl-C would, at the next moment at which no update is half done; any thread may.

        To ask again changes nothing, as where a request comes and then SIGTERM: a second Ctrl-C would end the
        run at once, without a checkpoint.
        """
        if not self._first.acquire(blocking=False):  # never released; a signal handler may not wait for it
            return
        self.asked = True
        self.then()
        self._get_through()
        _thread.interrupt_main()

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Within, who asks is heard even where Ctrl-C is ignored, and SIGTERM asks.

        But SIGTERM does not in a thread that is not the main one, or where it is handled already.
        """
        with wish_gets_through() as self._get_through, self._on_sigterm():
            yield

    @contextmanager
    def _on_sigterm(self) -> Iterator[None]:
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        ):
            yield
            return

        def hear(number: int, frame: FrameType | None) -> None:
            self.ask()

        signal.signal(signal.SIGTERM, hear)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run_serve(request: ServeRequest, console: Console) -> RunFolder:
    """Train with workers as players; the run's folder holds what came of it.

    Raises:
        ConfigError: As :func:`~art_trainer.commands.training.run_train`; and for an address that others
            reach, without a token.
        JournalError: Where another server trains the run that this one should go on with.
        typer.Exit: With code 130 after Ctrl-C, 0 after SIGTERM or a request to end; a checkpoint and a report
            were written.
    """
    token = read_token(request.token_file)
    check_access(request.host, token, request.allowed_hosts)
    if is_main_to_be():  # to know it before anything is loaded or written
        open_socket(request.host, request.port).close()
        if request.training.resume is not None:
            journal.require_unused(request.training.resume / "journal")
    stop = Stop()

    @contextmanager
    def find(
        settings: Settings, folder: RunFolder, policy: TransformersPolicy, console: Console
    ) -> Iterator[Players]:
        _check_settings(settings)
        if request.training.resume_step is not None:
            # What was played after that step was played by weights that are given up now.
            journal.discard(folder.path / "journal")
        with _players(request, token, stop, settings, folder, policy, console) as players:
            yield players

    with stop.heard():
        try:
            return run_train(request.training, console, Hired(find, lambda: Players(PlayedElsewhere())))
        except typer.Exit as end:
            # How a run of several processes ended is for the main one to say: it alone knows of a request.
            if end.exit_code == INTERRUPTED and (stop.asked or not is_main_to_be()):
                raise typer.Exit(0) from None
            raise


@contextmanager
def _players(
    request: ServeRequest,
    token: str | None,
    stop: Stop,
    settings: Settings,
    folder: RunFolder,
    policy: TransformersPolicy,
    console: Console,
) -> Iterator[Players]:
    """A server that is up within, and stopped at its end."""
    run, config = settings.run, settings.config
    progress = RunProgress(folder.path.name, config.max_steps)
    with ExitStack() as stack:
        routers, on_publish = [], []
        served = (
            stack.enter_context(ServedPolicy(policy, past_versions=config.max_staleness))
            if request.api
            else None
        )
        if served is not None:
            routers.append(openai_router(served))
            on_publish.append(served.update)
        closing = threading.Event()
        if request.dashboard:
            source = RunsSource([folder.path], lambda: backend.status())
            routers.append(dashboard_router(source, closing=closing))
        backend = RemoteBackend(
            policy,
            run.env,
            {**run.env_args, **run.train_env_args},
            config,
            folder.path,
            host=request.host,
            port=request.port,
            token=token,
            allowed_hosts=request.allowed_hosts,
            lease_seconds=request.lease_seconds,
            max_lease_seconds=request.max_lease_seconds,
            drain_seconds=request.drain_seconds,
            certificate=request.certificate,
            progress=progress,
            routers=routers,
            login_page=page() if request.dashboard else None,
            login_headers=PAGE_HEADERS,
            on_publish=on_publish,
            on_shutdown=stop.ask,
        )
        stack.push(lambda kind, fault, trace: _end(backend, fault))
        stack.callback(closing.set)  # first: whoever watches is let go before the server waits for them
        stop.then = lambda: backend.dismiss("the server was asked to stop")
        _tell(request, backend.url, console)
        yield Players(
            backend,
            callbacks=(progress,),
            on_evaluation=progress.evaluating,
            on_trained=lambda: backend.dismiss("training is over"),
        )


def _end(backend: RemoteBackend, fault: BaseException | None) -> None:
    """Send the workers away where the run is done or was asked to end; else let them wait for its return."""
    if isinstance(fault, Exception):
        backend.abandon()
    else:
        backend.close()


def _check_settings(settings: Settings) -> None:
    if settings.run.engine is not None:
        raise ConfigError(
            "engine is set, but the workers play: leave it out, or train with art-trainer train"
        )


def _tell(request: ServeRequest, url: str, console: Console) -> None:
    """Say where the server is and how to begin a worker; never what the token is."""
    worker = f"art-trainer worker --server {url}"
    if request.token_file is not None:
        worker += f" --token-file {request.token_file}"
    lines = [f"Server: {url}", f"Worker: {worker}"]
    if request.dashboard:
        lines.append(f"Dashboard: {url}/")
    if request.api:
        lines.append(f"OpenAI's API: {url}/v1")
    if request.token_file is None and read_token(None):
        lines.append(f"All of them want the token that {TOKEN_VARIABLE} holds.")
    elif request.token_file is not None:
        lines.append(f"All of them want the token in {request.token_file}.")
    open_words = in_the_open(request.host, request.certificate)
    if open_words is not None:
        lines.append(open_words)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
