"""Runs ``art-trainer train`` again and again in children of one process, and kills some of them.

Called with the path of a JSON file, ``{"folder": …, "runs": [{"name": …, "arguments": […], "kill": …}]}``.
What kills a run is null or one of

- ``{"event": E, "path": P, "count": N}``: at the N-th change of kind E to a path that holds P, before it;
- ``{"call": "module:Class.method", "count": N}``: at the N-th call of a method.

The process kills itself there with SIGKILL, so that nothing can tidy up. Prints a JSON list: of each run its
exit status, and what then lies among the checkpoints of the folder of its name.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from art_trainer.cli.main import main
from tests.art_trainer.tiny_models import EchoEnv

ENV = "toy/Words-v0"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DieAtChange:
    """An audit hook that dies at a change of a file below the folder."""

    def __init__(self, folder: str, moment: Mapping[str, Any]) -> None:
        self.folder = folder
        self.moment = moment
        self.matching = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != self.moment["event"] or not arguments or not isinstance(arguments[0], str | os.PathLike):
            return
        paths = [os.fspath(x) for x in arguments[:2] if isinstance(x, str | os.PathLike)]
        # Deleting a tree names its files relative to an open folder.
        ours = paths[0].startswith(self.folder) or (event == "os.remove" and "/" not in paths[0])
        if not ours or (event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        self.matching += any(self.moment["path"] in path for path in paths)
        if self.matching == self.moment["count"]:
            die()


def die_at_call(target: str, count: int) -> None:
    """Replace a method by one that dies when it is called so many times."""
    module, _, name = target.partition(":")
    owner, _, method = name.partition(".")
    holder = getattr(importlib.import_module(module), owner)
    plain, calls = getattr(holder, method), []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == count:
            die()
        return plain(*arguments, **options)

    setattr(holder, method, counted)


def work(arguments: Sequence[str], moment: Mapping[str, Any], folder: str) -> None:
    """Be the command: exit as it does, or die at the moment."""
    if "call" in moment:
        die_at_call(moment["call"], moment["count"])
    elif moment:
        sys.addaudithook(DieAtChange(folder, moment))
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            main(list(arguments))
        except SystemExit as exit_:
            status = int(exit_.code or 0)
    os._exit(status)


def play(run: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Run the command in a child; return its exit status and what is left among its checkpoints."""
    child = os.fork()
    if child == 0:
        work(run["arguments"], run["kill"] or {}, folder)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = sorted(path.name for path in Path(folder, run["name"], "checkpoints").glob("*"))
    return {"status": status, "left": left}


if __name__ == "__main__":
    gym.register(ENV, entry_point=EchoEnv, order_enforce=False, disable_env_checker=True)
    plan = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps([play(run, plan["folder"]) for run in plan["runs"]]))
