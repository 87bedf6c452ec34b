"""``art-trainer worker``: one worker in this process, or several that are watched over."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from art_trainer.commands.policies import env_maker
from art_trainer.commands.tokens import TOKEN_VARIABLE, read_token
from art_trainer.commands.worker_processes import PARENT_VARIABLE, Supervisor
from art_trainer.env_pool import MakeEnv
from art_trainer.remote.worker_errors import RefusedError, ServerChangedError, UnreachableError

LOST = 1
"""Exit code of a worker that could do its work at another time."""


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """What ``art-trainer worker`` was asked for; the flags' help texts say what each means."""

    server: str
    token_file: Path | None
    capacity: int
    workers: int
    inference: Literal["own", "server"]
    client_id: str | None
    cache: Path | None
    allow_modules: tuple[str, ...]
    device: str | None
    env_threads: int
    patience: float


def run_worker(request: WorkerRequest, console: Console) -> int:
    """Play for a training server.

    Returns:
        The exit code: 0 where the server or a signal ended it, 1 where the server is gone or another one.

    Raises:
        RefusedError: Where the server will not have this worker, or the worker not the server's run.
        ConfigError: For words that are wrong, or an environment that cannot be made here.
    """
    token = read_token(request.token_file)

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    if request.workers > 1:
        return _supervise(request, token, say)
    return _work(request, token, say)


def allowed_environments(modules: Collection[str]) -> Callable[[str, Mapping[str, Any]], MakeEnv]:
    """What makes the environments that a server names, but imports no module that it names.

    Args:
        modules: Those that may be imported all the same.
    """

    def make(env_id: str, env_args: Mapping[str, Any]) -> MakeEnv:
        module, colon, _ = env_id.partition(":")
        if colon and module not in modules:
            raise RefusedError(
                f"the server's environment {env_id!r} would import the module {module!r}: start the worker "
                f"with --allow-module {module} if you trust it"
            )
        return env_maker(env_id, env_args)

    return make


def cache_folder() -> Path:
    """Where workers keep files unless they are told: below ``$ART_GYM_CACHE``, or the user's cache."""
    named = os.environ.get("ART_GYM_CACHE")
    if named:
        return Path(named) / "worker"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "art-gym" / "worker"


def _work(request: WorkerRequest, token: str | None, say: Callable[[str], None]) -> int:
    # Read when Transformers is imported: what a server names is not looked for elsewhere.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Torch takes seconds to import, and who only watches over others needs none.
    from art_trainer.remote.worker import Worker

    worker = Worker(
        request.server,
        allowed_environments(request.allow_modules),
        request.cache or cache_folder(),
        token=token,
        client_id=request.client_id,
        capacity=request.capacity,
        inference=request.inference,
        device=request.device,
        env_threads=request.env_threads,
        patience=request.patience,
        say=say,
    )
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is not None:
        watch = threading.Thread(target=_outlive, args=(int(parent), worker.stop), daemon=True)
        watch.start()
    try:
        code = worker.run()
    except (UnreachableError, ServerChangedError) as gone:
        say(f"art-trainer: {gone}")
        code = LOST
    if worker.stuck:
        # A thread inside PyTorch must not see the interpreter taken down around it.
        sys.stdout.flush()
        os._exit(code)
    return code


def _outlive(parent: int, stop: Callable[[str], None]) -> None:
    """Stop a worker whose supervisor is gone: nobody would ever end it."""
    while os.getppid() == parent:
        time.sleep(1.0)
    stop("its supervisor is gone")


def _supervise(request: WorkerRequest, token: str | None, say: Callable[[str], None]) -> int:
    command = [sys.executable, "-m", "art_trainer", "worker", "--server", request.server]
    command += ["--workers", "1", "--capacity", str(request.capacity), "--inference", request.inference]
    command += ["--env-threads", str(request.env_threads), "--patience", str(request.patience)]
    for flag, value in (("--cache", request.cache), ("--device", request.device)):
        command += [] if value is None else [flag, str(value)]
    for module in request.allow_modules:
        command += ["--allow-module", module]
    environment = dict(os.environ)
    if token is not None:
        environment[TOKEN_VARIABLE] = token
    # Each with all cores would be slower than each with its share.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // request.workers)))
    return Supervisor(command, environment, request.workers, request.client_id, say).run()
