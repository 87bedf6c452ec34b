"""``art-trainer worker``: one worker in this process, or several in processes that are restarted."""

from __future__ import annotations

import enum
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art_gym.cache import cache_folder
from art_trainer.cli.options import Amount, Count, Flag, TokenFile, Whole, command, flag_words
from art_trainer.distributed.worker.processes import PARENT_VARIABLE, run_workers
from art_trainer.tracking.env_vars import load_env_vars

if TYPE_CHECKING:
    from art_trainer.rollout.envs import MakeEnv


class Inference(enum.StrEnum):
    """Where replies are sampled."""

    OWN = "own"
    SERVER = "server"


@command(
    "worker",
    "`art-trainer worker --server http://127.0.0.1:8270`.",
    "`ART_SERVER_TOKEN=… art-trainer worker --server https://trainer.example --workers 4 --capacity 16`.",
    "`art-trainer worker --server http://10.0.0.5:8270 --token-file token --inference server` on a machine "
    "that cannot run the model.",
)
def worker(
    *,
    server: Annotated[str, Flag(metavar="URL")],
    token_file: TokenFile | None = None,
    capacity: Count = 32,
    workers: Count | None = None,
    inference: Inference = Inference.OWN,
    id_: Annotated[str, Flag(metavar="NAME")] | None = None,
    cache: Annotated[Path, Flag(metavar="DIR")] | None = None,
    allow_module: Annotated[Sequence[str], Flag(metavar="MODULE|FILE.py")] = (),
    device: str | None = None,
    env_threads: Whole = 0,
    patience: Amount = 600.0,
) -> None:
    """Play episodes for a training server: with its weights, in environments of this machine.

    Ctrl-C and SIGTERM return unfinished episodes to the server. The exit code is 0 if the server ended the
    run, 1 if the server is gone, 2 if it refused this worker or the worker refused its run.

    Flags:
        server: Address of the training server.
        capacity: Episodes that one worker plays at the same time.
        workers: Number of worker processes; one that dies is restarted. [default: the setting
            ART_CLIENT_WORKERS, or 1]
        inference: Sample with the worker's own copy of the model, or on the server.
        id_: The worker's name. [default: a new one]
        cache: Folder for downloaded files. [default: ~/.cache/art-gym/worker]
        allow_module: A module or Python file that the server may have imported for its environment. A file
            is found here by its name, wherever the server has it.
        device: Device of the model. [default: the first GPU, else the CPU]
        env_threads: Threads that step environments while the model samples.
        patience: Seconds without a server after which the worker gives up.
    """
    shared = {name: value for name, value in locals().items() if name not in ("token_file", "workers", "id_")}
    from art_trainer.cli.access import TOKEN_VARIABLE, read_token
    from art_trainer.models.cpu import usable_cores

    token = read_token(token_file)
    count = load_env_vars().integer("ART_CLIENT_WORKERS") if workers is None else workers
    if count == 1:
        raise typer.Exit(_work(token, id_, **shared))
    words = [sys.executable, "-m", "art_trainer", "worker", "--workers", "1", *flag_words(shared)]
    environment = dict(os.environ) | ({} if token is None else {TOKEN_VARIABLE: token})
    # Each with all cores would be slower than each with its share.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // count)))
    raise typer.Exit(run_workers(words, environment, count, id_))


def allowed_environments(modules: Collection[str]) -> Callable[[str, Mapping[str, Any]], MakeEnv]:
    """Return what makes the environments that a server names, but imports only modules that are allowed."""
    from art_trainer.distributed.worker.connection import RefusedError
    from art_trainer.rollout.envs import env_maker

    def make(name: str, env_args: Mapping[str, Any]) -> MakeEnv:
        module, colon, env_id = name.rpartition(":")
        if not colon:
            return env_maker(name, env_args)
        # A file may lie elsewhere on this machine: the one that is allowed is imported.
        own = next((one for one in modules if _module_name(one) == _module_name(module)), None)
        if own is None:
            what = "file" if module.endswith(".py") else "module"
            copy = ", and copy it to this machine if it is not here" if what == "file" else ""
            raise RefusedError(
                f"the server's environment {env_id!r} would import the {what} {module!r}: start the worker "
                f"with --allow-module {module} if you trust it{copy}"
            )
        return env_maker(f"{own}:{env_id}", env_args)

    return make


def _module_name(source: str) -> str:
    """The module that is imported for a module's name or a file's path."""
    path = PurePath(source)
    if path.name == "__init__.py":
        return path.parent.name
    return path.stem if path.suffix == ".py" else source


def _work(
    token: str | None,
    name: str | None,
    *,
    server: str,
    allow_module: Sequence[str],
    cache: Path | None,
    **options: Any,
) -> int:
    """Run one worker in this process; returns the exit code."""
    # Transformers reads it when it is imported: a model that a server names is not downloaded from elsewhere.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from art_trainer.distributed.worker.connection import ServerChangedError, UnreachableError
    from art_trainer.distributed.worker.worker import Worker

    make_env = allowed_environments(allow_module)
    made = Worker(
        server, make_env, cache or cache_folder() / "worker", token=token, client_id=name, **options
    )
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is not None:
        threading.Thread(target=_stop_without_parent, args=(int(parent), made.stop), daemon=True).start()
    try:
        made.run()
        code = 0
    except (UnreachableError, ServerChangedError) as gone:
        typer.echo(f"art-trainer: {gone}")
        code = 1
    if made.stuck:
        # A thread inside PyTorch must not see the interpreter shut down around it.
        sys.stdout.flush()
        os._exit(code)
    return code


def _stop_without_parent(parent: int, stop: Callable[[str], None]) -> None:
    """Stop a worker whose parent is gone: nobody would ever end it."""
    while os.getppid() == parent:
        time.sleep(1.0)
    stop("its parent is gone")
