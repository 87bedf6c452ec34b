"""``art-trainer serve``: as ``art-trainer train``, but workers play the episodes, over the network."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from art_trainer.cli import options as flags
from art_trainer.config import LeaseOptions
from art_trainer.errors import ConfigError, StalledError
from art_trainer.signals import StopRequest
from art_trainer.tracking.env_vars import load_env_vars
from art_trainer.training.run_settings import Settings

if TYPE_CHECKING:
    from art_trainer.distributed.backend import RemoteBackend
    from art_trainer.distributed.server import ServerOptions
    from art_trainer.inference.transformers_policy import TransformersPolicy
    from art_trainer.rollout.backend import RolloutSetup

_LEASES = LeaseOptions()
DEFAULTS: Mapping[str, Any] = {"save_steps": 10, "process_timeout": 86400.0}
"""A server that is lost costs the updates since its last checkpoint; episodes played are in its log. Of
several processes the others wait for the main one, which waits for workers, and those may come late."""


@flags.command(
    "serve",
    "`art-trainer serve` and, in other terminals, `art-trainer worker --server http://127.0.0.1:8270`.",
    "`ART_SERVER_TOKEN=… art-trainer serve --host 10.0.0.5 --lora 16 --model Qwen/Qwen3-0.6B` for workers on "
    "other machines.",
    "`art-trainer serve --resume runs/Email-v0-art-tiny-1` resumes after a server was stopped or lost.",
    settings=(
        "env env_args model lora max_steps max_staleness seed eval_episodes save_steps keep_going "
        "output_dir".split()
    ),
    defaults=DEFAULTS,
)
def serve(
    settings: Settings,
    *,
    host: flags.Host = "127.0.0.1",
    port: flags.Port | None = None,
    token_file: flags.TokenFile | None = None,
    allowed_host: flags.AllowedHost = (),
    lease_seconds: Annotated[float, flags.Flag(min=1)] = _LEASES.lease_seconds,
    max_lease_seconds: Annotated[float, flags.Flag(min=1)] = _LEASES.max_lease_seconds,
    drain_seconds: flags.Amount = 30.0,
    tls_cert: flags.TlsCert | None = None,
    tls_key: flags.TlsKey | None = None,
    no_api: bool = False,
    no_dashboard: bool = False,
) -> None:
    """Train with workers, on other machines or in other processes, that play the episodes.

    Same as `art-trainer train`, except that the episodes of training are played by `art-trainer worker`.
    Workers may come and go; no episode is lost. Ctrl-C, SIGTERM and `POST /shutdown` save a checkpoint.
    `--quiet` prints the server's addresses, too.

    Flags:
        port: Port; 0 takes a free one. [default: the setting ART_SERVER_PORT, or 8270]
        lease_seconds: Lease timeout: seconds without a heartbeat before an episode is reassigned.
        max_lease_seconds: Longest lease, heartbeats or not; then the episode is reassigned.
        drain_seconds: Seconds that a stopping server waits for workers to send finished results and leave.
        no_api: Do not serve OpenAI's API; saves a copy of the weights.
        no_dashboard: Serve no dashboard.
    """
    from art_trainer.rollout.envs import env_maker

    env_maker(settings.run.env, settings.run.all_env_args)  # a wrong argument is named before PyTorch loads
    from art_trainer.cli.access import read_certificate, read_token, warn_if_unencrypted
    from art_trainer.cli.training_run import run_training
    from art_trainer.distributed import result_log
    from art_trainer.distributed.server import ServerOptions
    from art_trainer.serving.http.middleware import check_access
    from art_trainer.serving.http.server import listen
    from art_trainer.training.distributed import is_rank_zero_env
    from art_trainer.training.run_setup import fit_to_env

    token, certificate = read_token(token_file), read_certificate(tls_cert, tls_key)
    check_access(host, token, allowed_host)
    if settings.run.engine is not None:
        raise ConfigError("engine is set, but the workers sample: leave it out, or use art-trainer train")
    if settings.run.backend != "local":
        raise ConfigError(f"backend is {settings.run.backend}, but the server's workers play: leave it out")
    port = load_env_vars().integer("ART_SERVER_PORT", 65_535) if port is None else port
    log_folder = settings.folder.path / result_log.FOLDER
    if is_rank_zero_env():  # fail before anything is loaded or written
        listen(host, port).close()
        if settings.resume is not None:
            result_log.require_unused(log_folder)
    settings, stop = fit_to_env(settings), StopRequest()

    @contextmanager
    def make_setup(policy: TransformersPolicy) -> Iterator[RolloutSetup]:
        if settings.resume_step is not None:
            # Episodes after that step were played with weights that are given up now.
            result_log.discard(log_folder)
        leases = LeaseOptions(lease_seconds, max_lease_seconds)
        options = ServerOptions(host, port, token, allowed_host, certificate, leases=leases)
        with server_setup(
            settings, policy, stop, options, drain_seconds, api=not no_api, dashboard=not no_dashboard
        ) as (setup, url):
            flag = "" if token_file is None else f" --token-file {token_file}"
            source = settings.run.env.rpartition(":")[0]
            flag += f" --allow-module {source}" if source else ""
            typer.echo(f"Server: {url}\nWorker: art-trainer worker --server {url}{flag}")
            if not no_dashboard:
                typer.echo(f"Dashboard: {url}/")
            if not no_api:
                typer.echo(f"OpenAI's and Anthropic's APIs: {url}/v1")
            if token is not None:
                typer.echo(f"All of them require the token in {token_file or '$ART_SERVER_TOKEN'}.")
            warn_if_unencrypted(host, certificate)
            yield setup

    with stop.listening():
        try:
            run_training(settings, Console(), make_setup)
        except typer.Exit as end:
            # With several processes the main one decides the exit code: it alone knows of a request.
            if end.exit_code == flags.INTERRUPTED and (stop.requested or not is_rank_zero_env()):
                raise typer.Exit(0) from None
            raise


@contextmanager
def server_setup(
    settings: Settings,
    policy: TransformersPolicy,
    stop: StopRequest,
    options: ServerOptions,
    drain_seconds: float,
    *,
    api: bool,
    dashboard: bool,
) -> Iterator[tuple[RolloutSetup, str]]:
    """Run a training server within the context; gives its rollout setup and its URL.

    Args:
        settings: All settings of the run.
        policy: The policy that is trained.
        stop: Gets requests to end the run.
        options: Address, access and limits of the server.
        drain_seconds: How long a stopping server waits for its workers to send finished results and leave.
        api: Serve OpenAI's API.
        dashboard: Serve the dashboard.
    """
    from art_trainer.distributed.backend import RemoteBackend
    from art_trainer.distributed.server import RunProgress
    from art_trainer.rollout.backend import RolloutSetup
    from art_trainer.serving.dashboard import RunsSource, dashboard_router, page
    from art_trainer.serving.dialects import ServedPolicy
    from art_trainer.serving.dialects.router import dialect_router
    from art_trainer.serving.http.server import shorten_garbage_collections

    run, config, folder = settings.run, settings.config, settings.folder.path
    progress = RunProgress(folder.name, config.max_steps)
    closing = threading.Event()
    routers, on_publish = [], []
    shorten_garbage_collections()
    with ExitStack() as stack:
        if api:
            served = stack.enter_context(ServedPolicy(policy, past_versions=config.max_staleness))
            routers.append(dialect_router(served))
            on_publish.append(served.update)
        if dashboard:
            source = RunsSource([folder], lambda: backend.status())
            routers.append(dashboard_router(source, closing=closing))
        backend = RemoteBackend(
            policy,
            run.env,
            run.all_env_args,
            config,
            folder,
            options=replace(
                options,
                routers=routers,
                login_page=page if dashboard else None,
            ),
            drain_seconds=drain_seconds,
            progress=progress,
            on_publish=on_publish,
            on_shutdown=stop.request,
        )
        stack.push(lambda kind, fault, trace: _close(backend, fault))
        stack.callback(closing.set)  # first: readers of the dashboard leave before the server waits for them
        stop.then = lambda: backend.drain_workers("the server was asked to stop")
        setup = RolloutSetup(
            backend,
            callbacks=(progress,),
            on_evaluation=progress.evaluating,
            on_trained=lambda: backend.drain_workers("training is over"),
        )
        yield setup, backend.url


def _close(backend: RemoteBackend, fault: BaseException | None) -> None:
    """Dismiss the workers at the end of the run; after a fault let them wait for the server's return."""
    if isinstance(fault, Exception) and not isinstance(fault, StalledError):
        backend.stop_without_drain()
    else:
        backend.close()
