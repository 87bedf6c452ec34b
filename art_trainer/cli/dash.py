"""``art-trainer dash``: the dashboard for run folders, without a training server."""

from __future__ import annotations

import threading
import time
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art_trainer.cli.options import AllowedHost, Flag, Host, Port, TlsCert, TlsKey, TokenFile, command
from art_trainer.errors import ConfigError

if TYPE_CHECKING:
    from art_trainer.serving.http.server import Certificate

_REQUESTS_PER_SECOND = 100.0
_BURST = 400.0
_MAX_BODY_BYTES = 1 << 12
"""The dashboard takes no uploads."""
_MAX_CONNECTIONS = 200


@command(
    "dash",
    "`art-trainer dash --open` shows all runs below the folder runs, new ones too.",
    "`art-trainer dash runs/Email-v0-art-tiny-1 runs/Email-v0-art-tiny-2` compares two.",
    "`art-trainer dash --host 10.0.0.5 --token-file token.txt` for colleagues on the same network.",
)
def dash(
    runs: Annotated[Sequence[Path], Flag(metavar="RUN_DIR…")] | None = None,
    *,
    host: Host = "127.0.0.1",
    port: Port = 8275,
    token_file: TokenFile | None = None,
    allowed_host: AllowedHost = (),
    tls_cert: TlsCert | None = None,
    tls_key: TlsKey | None = None,
    open_: bool = False,
) -> None:
    """Show runs in a browser: curves, warnings, evaluations, every recorded episode; live while they train.

    It only reads the runs' folders, so it can be started and stopped at any time.

    Flags:
        runs: Folders of runs, or folders that contain runs. [default: runs]
        port: Port; 0 takes a free one.
        open_: Open the page in a browser.
    """
    from art_trainer.cli.access import read_certificate, warn_if_unencrypted

    folders = tuple(runs or [Path("runs")])
    certificate = read_certificate(tls_cert, tls_key)
    with serving(folders, host, port, token_file, allowed_host, certificate) as url:
        shown = ", ".join(str(folder) for folder in folders)
        typer.echo(f"Dashboard of {shown}: {url}  (Ctrl-C ends it)")
        warn_if_unencrypted(host, certificate)
        if open_:
            webbrowser.open(url)
        try:
            while True:
                time.sleep(0.2)
        except KeyboardInterrupt:
            typer.echo("Dashboard stopped; the runs continue.")


@contextmanager
def serving(
    folders: Sequence[Path],
    host: str = "127.0.0.1",
    port: int = 0,
    token_file: Path | None = None,
    allowed_hosts: Sequence[str] = (),
    certificate: Certificate | None = None,
) -> Iterator[str]:
    """Serve the dashboard within the context; gives its URL. A ConfigError if it cannot be served."""
    from art_trainer.cli.access import read_token
    from art_trainer.serving.dashboard import RunsSource, dashboard_router, page
    from art_trainer.serving.http.middleware import AccessPolicy, HostNames, RateLimit, check_access
    from art_trainer.serving.http.server import ServerThread, create_app

    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"no folder at {folder}: name a run's folder, or one that contains runs")
    token = read_token(token_file)
    check_access(host, token, tuple(allowed_hosts))
    policy = AccessPolicy(
        hosts=HostNames(host, tuple(allowed_hosts)),
        max_body_bytes=_MAX_BODY_BYTES,
        token=token,
        allow_same_origin=True,
        login_page=page,
        rate=RateLimit(_REQUESTS_PER_SECOND, _BURST),
    )
    closing = threading.Event()
    web_app = create_app(policy, "a page at /")
    web_app.include_router(dashboard_router(RunsSource(folders), closing=closing))
    server = ServerThread(
        web_app,
        host,
        port,
        name="dashboard",
        certificate=certificate,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    try:
        yield f"{server.url}/"
    finally:
        closing.set()
        server.stop()
