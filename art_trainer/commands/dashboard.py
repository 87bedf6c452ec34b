"""``art-trainer dash``: the dashboard for run folders, without a training server."""

from __future__ import annotations

import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from art_trainer.commands.certificates import in_the_open
from art_trainer.commands.tokens import read_token
from art_trainer.dashboard import PAGE_HEADERS, RunsSource, dashboard_router, page
from art_trainer.errors import ConfigError
from art_trainer.web.access import check_access
from art_trainer.web.app import guarded_app
from art_trainer.web.guard import Rules
from art_trainer.web.hosts import WILDCARDS, HostNames, in_url
from art_trainer.web.rates import RateLimit
from art_trainer.web.thread import Certificate, ServerThread, listen

_REQUESTS_PER_SECOND = 100.0
_BURST = 400.0
_MAX_BODY_BYTES = 1 << 12
"""Nothing is posted here."""
_MAX_CONNECTIONS = 200
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class DashRequest:
    """What ``art-trainer dash`` was asked for."""

    folders: tuple[Path, ...]
    host: str = "127.0.0.1"
    port: int = 0
    token_file: Path | None = None
    """The file that holds the token; ``None``: the environment's ``ART_SERVER_TOKEN`` is the token."""
    allowed_hosts: tuple[str, ...] = ()
    open_browser: bool = False
    certificate: Certificate | None = None


def run_dash(request: DashRequest, console: Console) -> None:
    """Serve the dashboard until Ctrl-C.

    Raises:
        ConfigError: Where a folder is missing, the address is taken or open to others without a token.
    """
    with serving(request) as url:
        shown = ", ".join(str(folder) for folder in request.folders)
        console.print(f"Dashboard of {shown}: {url}  (Ctrl-C ends it)", soft_wrap=True, highlight=False)
        open_words = in_the_open(request.host, request.certificate)
        if open_words is not None:
            console.print(open_words, soft_wrap=True, highlight=False, markup=False)
        if request.open_browser:
            webbrowser.open(url)
        try:
            while True:
                time.sleep(_LOOK_SECONDS)
        except KeyboardInterrupt:
            console.print("Ended; the runs go on without it.")


@contextmanager
def serving(request: DashRequest) -> Iterator[str]:
    """A dashboard that is up within; gives its URL.

    Raises:
        ConfigError: As :func:`run_dash`.
    """
    for folder in request.folders:
        if not folder.is_dir():
            raise ConfigError(f"no folder at {folder}: name a run's folder, or one that runs are written to")
    token = read_token(request.token_file)
    check_access(request.host, token, request.allowed_hosts)
    rules = Rules(
        hosts=HostNames(request.host, request.allowed_hosts),
        max_body_bytes=_MAX_BODY_BYTES,
        token=token,
        own_pages=True,
        login_page=page(),
        login_headers=PAGE_HEADERS,
        rate=RateLimit(_REQUESTS_PER_SECOND, _BURST),
    )
    closing = threading.Event()
    app = guarded_app(rules, "a page at /")
    app.include_router(dashboard_router(RunsSource(request.folders), closing=closing))
    try:
        listening = listen(request.host, request.port)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {request.host}, port {request.port}: {error}; --port 0 takes a free one"
        ) from error
    port = listening.getsockname()[1]
    server = ServerThread(
        app,
        listening,
        name="dashboard",
        max_connections=_MAX_CONNECTIONS,
        grace_seconds=1,
        certificate=request.certificate,
    )
    server.start()
    try:
        scheme = "http" if request.certificate is None else "https"
        yield f"{scheme}://{in_url('127.0.0.1' if request.host in WILDCARDS else request.host)}:{port}/"
    finally:
        closing.set()
        server.stop()
