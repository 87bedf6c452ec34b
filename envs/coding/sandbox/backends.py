"""Which walls hold on this machine, found by putting them up."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from art_gym.envs.coding.sandbox.bundle import source
from art_gym.envs.coding.sandbox.child import landlock, seccomp
from art_gym.envs.coding.sandbox.child.kernel import MACHINE
from art_gym.envs.coding.sandbox.child.rights import unused_id
from art_gym.envs.coding.sandbox.container import Container
from art_gym.envs.coding.sandbox.errors import SandboxUnavailable
from art_gym.envs.coding.sandbox.fresh import Fresh, bubblewrap
from art_gym.envs.coding.sandbox.interpreter import Interpreter, interpreters, places
from art_gym.envs.coding.sandbox.limits import Limits, Outcome, Run
from art_gym.envs.coding.sandbox.process import Handle, Process
from art_gym.envs.coding.sandbox.request import Request
from art_gym.envs.coding.sandbox.streams import Pipes, Streams, make_pipes
from art_gym.envs.coding.sandbox.warm import WallMissing, Warm
from art_gym.errors import did_you_mean

Layers = Literal["auto", "zygote", "bubblewrap", "container"]

_PRELOAD = """
abc ast atexit bisect collections collections.abc contextlib copy ctypes dataclasses datetime decimal enum
fractions functools heapq inspect io itertools json linecache math numbers operator queue random re string
struct textwrap threading time traceback types typing weakref
""".split()
"""What programs often import: a compiled module makes every run 10 µs dearer, and 300 µs cheaper those that
import it."""
_OURS = ["gc", "platform", "select", "signal", "site", "socket"]
"""What a zygote itself imports; first too, so that what every run executes lies together."""
_SYSTEM_FILES = ("/usr/share/zoneinfo", "/etc/ld.so.cache")
"""What else of the system the standard library reads: time zones, and where the loader finds libraries."""


_WALLS = ("namespaces", "mounts", "landlock")
_AROUND_FILES = {"mounts", "landlock"}
_FALLS_WITH = {"namespaces": {"namespaces", "mounts"}}
"""What else cannot be without a wall."""
_KNOWN: dict[tuple[str, int], tuple[str, ...]] = {}
"""By interpreter and user: the walls that stood."""
_MISSING: dict[str, str] = {}
"""The walls that did not, and why."""


class Backend(Protocol):
    """A way to start processes in the sandbox."""

    layers: tuple[str, ...]
    """What stands around them."""
    ahead: bool
    """Whether it is worth while to start one before it is known what it is to run."""

    @property
    def alive(self) -> bool:
        """Whether it can start any."""

    def spawn(self, request: Request, pipes: Pipes) -> Handle:
        """Start one on the child's ends of these pipes; the caller closes them."""

    def close(self) -> None:
        """End it, with all that it started."""


def open_backend(
    drivers: Mapping[str, str], layers: Layers, packages: Sequence[str], *, unsafe: bool = False
) -> Backend:
    """The way that is asked for, or with ``"auto"`` the first that holds here.

    Raises:
        SandboxUnavailable: It does not, or none does; the message says why.
        ValueError: There is no such way.
    """
    ways: dict[str, Callable[[Mapping[str, str], Sequence[str]], Backend]] = {
        "zygote": open_zygote,
        "bubblewrap": open_bubblewrap,
        "container": open_container,
    }
    if layers not in ("auto", *ways):
        raise ValueError(f"no layers `{layers}`{did_you_mean(layers, ['auto', *ways])}")
    if layers != "auto":
        return ways[layers](drivers, packages)
    reasons = []
    for name, way in ways.items():
        try:
            return way(drivers, packages)
        except SandboxUnavailable as error:
            reasons.append(f"{name}: {error}")
    if unsafe and sys.platform == "linux":
        return _open_nothing(drivers, packages)
    raise SandboxUnavailable("no sandbox holds on this machine. " + " | ".join(reasons))


def open_bubblewrap(drivers: Mapping[str, str], packages: Sequence[str]) -> Backend:
    """A fresh interpreter in bubblewrap, and inside it what the kernel has of the zygote's own walls."""
    _need_linux()
    reasons = []
    for interpreter in interpreters():
        if unused_id(0) is not None and not interpreter.public:
            reasons.append(_private(interpreter))
            continue
        plan = ["landlock"] * (landlock.abi() > 0) + ["seccomp"] * seccomp.supported(MACHINE)
        config = configuration(interpreter, drivers, packages, [*plan, "mounts"])
        try:
            prefix = bubblewrap(interpreter, config["roots"])
            return proven(
                Fresh(
                    "bubblewrap",
                    prefix,
                    interpreter,
                    {**config, "plan": plan, "preload": [], "counted": True},
                )
            )
        except SandboxUnavailable as error:
            reasons.append(str(error))
    raise SandboxUnavailable("; ".join(dict.fromkeys(reasons)))


def open_container(drivers: Mapping[str, str], packages: Sequence[str]) -> Backend:
    """A container for each run, and inside it the filter of system calls.

    Raises:
        SandboxUnavailable: There is no engine, or it has not got the image.
    """
    return proven(
        Container(
            {
                "drivers": {"script": source("script_driver"), **drivers},
                "plan": ["seccomp"] * seccomp.supported(MACHINE),
                "packages": {},
                "preload": [],
                "counted": True,
            }
        )
    )


def missing_walls() -> Mapping[str, str]:
    """Of the walls that a zygote wants, those that this machine has refused so far, and why."""
    also = {wall: f"not without {cause}" for cause, walls in _FALLS_WITH.items() for wall in walls}
    return {**(also if _FALLS_WITH.keys() & _MISSING.keys() else {}), **_MISSING}


def _open_nothing(drivers: Mapping[str, str], packages: Sequence[str]) -> Backend:
    interpreter = interpreters()[0]
    config = configuration(interpreter, drivers, packages, [])
    return proven(Fresh("nothing", [], interpreter, {**config, "preload": [], "counted": False}))


def open_zygote(drivers: Mapping[str, str], packages: Sequence[str]) -> Backend:
    """A zygote behind all the walls that the kernel has.

    The filter of system calls must hold, and a wall around the files: either one will do, as both are not to
    be had everywhere (containers forbid new namespaces, older kernels have no Landlock).

    Raises:
        SandboxUnavailable: The kernel has too little.
    """
    _need_linux()
    reasons = []
    for interpreter in interpreters():
        place = (interpreter.path, os.geteuid())
        plan = _KNOWN.get(place, _WALLS)
        while _AROUND_FILES & set(plan):
            if unused_id(0) is not None and "mounts" not in plan and not interpreter.public:
                reasons.append(_private(interpreter))
                break
            try:
                config = configuration(interpreter, drivers, packages, plan)
                backend = proven(Warm(interpreter, config))
            except WallMissing as found:
                reasons.append(str(found))
                _MISSING[found.wall] = found.why
                if found.wall not in plan:
                    break
                plan = tuple(wall for wall in plan if wall not in _FALLS_WITH.get(found.wall, {found.wall}))
                continue
            except SandboxUnavailable as error:
                reasons.append(str(error))
                break
            _KNOWN[place] = plan
            return backend
    raise SandboxUnavailable("; ".join(dict.fromkeys(reasons)) or "no interpreter will do")


def _need_linux() -> None:
    if sys.platform != "linux":
        raise SandboxUnavailable("this needs Linux")


def _private(interpreter: Interpreter) -> str:
    return f"{interpreter.path} lies in a directory that other users may not enter"


def start(backend: Backend, request: Request, *, stdin: bool) -> Process:
    """A process that locks itself down and then waits for ``begin``.

    Args:
        backend: What is to start it.
        request: What is to be run.
        stdin: Whether there will be something on its stdin.

    Raises:
        OSError: It could not be started.
    """
    parents, children = make_pipes(stdin=stdin)
    streams = Streams(parents, request.limits)
    try:
        handle = backend.spawn(request, children)
    except BaseException:
        streams.close()
        raise
    finally:
        children.close()
    return Process(handle, streams, request.limits)


def proven(backend: Backend) -> Backend:
    """The backend, after a run in it that did nothing and ended well.

    Raises:
        SandboxUnavailable: It did not; the backend is closed.
    """
    try:
        process = start(backend, Request("script", Limits()), stdin=False)
        process.begin(b"", b"")
        run = process.wait()
    except OSError as error:
        run = Run(Outcome.REFUSED, why=str(error))
    if not run.ok:
        backend.close()
        raise SandboxUnavailable(run.why or run.stderr.decode(errors="replace") or "a trial run failed")
    return backend


def configuration(
    interpreter: Interpreter, drivers: Mapping[str, str], packages: Sequence[str], plan: Sequence[str]
) -> dict[str, Any]:
    """What a zygote is told at its start."""
    found = places(interpreter, packages)
    extra = [directory for directories in found.values() for directory in directories]
    extra += [*interpreter.shared, *_SYSTEM_FILES]
    roots = [*interpreter.library, *extra]
    return {
        "drivers": {"script": source("script_driver"), **drivers},
        "plan": list(plan),
        "roots": roots,
        "hidden": interpreter.hidden,
        "links": interpreter.links(),
        # Every rule of Landlock makes every run a little dearer; behind the mounts one says the same.
        "readable": ["/"] if "mounts" in plan else [*interpreter.readable(), *extra],
        "listable": [*interpreter.library, *extra],
        "packages": {name: directories[0] for name, directories in found.items()},
        "preload": [*_PRELOAD, *_OURS],
    }
