"""Find the best backend that this machine supports, by trying the layers of isolation."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from art_gym.base import require_choice
from art_gym.envs.coding.sandbox.bundle import source
from art_gym.envs.coding.sandbox.child import seccomp
from art_gym.envs.coding.sandbox.child.kernel import MACHINE
from art_gym.envs.coding.sandbox.child.lockdown import unused_id
from art_gym.envs.coding.sandbox.container_backend import ContainerBackend
from art_gym.envs.coding.sandbox.interpreter import Interpreter, interpreters, places
from art_gym.envs.coding.sandbox.process import Handle, Process
from art_gym.envs.coding.sandbox.run import Limits, Outcome, Request, Run, SandboxUnavailableError
from art_gym.envs.coding.sandbox.streams import Pipes, Streams, make_pipes
from art_gym.envs.coding.sandbox.zygote_backend import MissingLayerError, ZygoteBackend

BackendName = Literal["auto", "zygote", "container"]

_PRELOAD = """
abc ast atexit bisect collections collections.abc contextlib copy ctypes dataclasses datetime decimal enum
fractions functools heapq inspect io itertools json linecache math numbers operator queue random re string
struct textwrap threading time traceback types typing weakref
""".split()
"""What programs often import: a compiled module makes every run 10 µs slower, and those that import it 300 µs
faster."""
_OURS = ["gc", "platform", "select", "signal", "site", "socket"]
"""What a zygote itself imports; first too, so that what every run executes is close together."""
_SYSTEM_FILES = ("/usr/share/zoneinfo", "/etc/ld.so.cache")
"""What else of the system the standard library reads: time zones, and where the loader finds libraries."""


_LAYERS = ("namespaces", "mounts", "landlock")
_AROUND_FILES = {"mounts", "landlock"}
_FALLS_WITH = {"namespaces": {"namespaces", "mounts"}}
"""What else fails without a layer."""
_KNOWN: dict[tuple[str, int], tuple[str, ...]] = {}
"""By interpreter and user: the layers that worked."""
_MISSING: dict[str, str] = {}
"""The layers that did not, and why."""


class Backend(Protocol):
    """A way to start processes in the sandbox."""

    layers: tuple[str, ...]
    """The layers of isolation around them."""
    ahead: bool
    """Whether starting one in advance, before its request is known, saves time."""

    @property
    def alive(self) -> bool:
        """Whether it can start any."""

    def spawn(self, request: Request, pipes: Pipes) -> Handle:
        """Start one on the child's ends of these pipes; the caller closes them."""

    def close(self) -> None:
        """End it, with all that it started."""


def open_backend(drivers: Mapping[str, str], layers: BackendName) -> Backend:
    """Open the backend of this name, or with ``"auto"`` the first that works here.

    Raises:
        SandboxUnavailableError: It does not work, or none does; the message says why.
        ValueError: There is no such backend.
    """
    ways: dict[str, Callable[..., Backend]] = {"zygote": open_zygote, "container": open_container}
    require_choice("layers", layers, ("auto", *ways))
    if layers != "auto":
        return ways[layers](drivers)
    reasons = []
    for name, way in ways.items():
        try:
            return way(drivers)
        except SandboxUnavailableError as error:
            reasons.append(f"{name}: {error}")
    raise SandboxUnavailableError("no sandbox works on this machine. " + " | ".join(reasons))


def open_container(drivers: Mapping[str, str]) -> Backend:
    """A container for each run, and inside it the filter of system calls.

    Raises:
        SandboxUnavailableError: There is no engine, or it does not have the image.
    """
    return proven(
        ContainerBackend(
            {
                "drivers": {"script": source("script_driver"), **drivers},
                "plan": ["seccomp"] * seccomp.supported(MACHINE),
                "packages": {},
                "preload": [],
            }
        )
    )


def missing_layers() -> Mapping[str, str]:
    """The layers of a zygote that this machine has refused so far, and why."""
    also = {layer: f"not without {cause}" for cause, layers in _FALLS_WITH.items() for layer in layers}
    return {**(also if _FALLS_WITH.keys() & _MISSING.keys() else {}), **_MISSING}


def open_zygote(drivers: Mapping[str, str]) -> Backend:
    """A zygote with all the layers that the kernel supports.

    The filter of system calls must work, and one of the two layers around the files: some machines have only
    one of them (containers forbid new namespaces, older kernels have no Landlock).

    Raises:
        SandboxUnavailableError: The kernel has too little.
    """
    if sys.platform != "linux":
        raise SandboxUnavailableError("this needs Linux")
    reasons = []
    for interpreter in interpreters():
        place = (interpreter.path, os.geteuid())
        plan = _KNOWN.get(place, _LAYERS)
        while _AROUND_FILES & set(plan):
            if unused_id(0) is not None and "mounts" not in plan and not interpreter.public:
                reasons.append(f"{interpreter.path} is in a directory that other users may not enter")
                break
            try:
                config = configuration(interpreter, drivers, plan)
                backend = proven(ZygoteBackend(interpreter, config))
            except MissingLayerError as found:
                reasons.append(str(found))
                _MISSING[found.layer] = found.why
                if found.layer not in plan:
                    break
                lost = _FALLS_WITH.get(found.layer, {found.layer})
                plan = tuple(layer for layer in plan if layer not in lost)
                continue
            except SandboxUnavailableError as error:
                reasons.append(str(error))
                break
            _KNOWN[place] = plan
            return backend
    raise SandboxUnavailableError("; ".join(dict.fromkeys(reasons)) or "no interpreter can be used")


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
    """Return the backend after a successful trial run.

    Raises:
        SandboxUnavailableError: The trial run failed; the backend is closed.
    """
    try:
        process = start(backend, Request("script", Limits()), stdin=False)
        process.begin(b"", b"")
        run = process.wait()
    except OSError as error:
        run = Run(Outcome.REFUSED, why=str(error))
    if not run.ok:
        backend.close()
        raise SandboxUnavailableError(run.why or run.stderr.decode(errors="replace") or "a trial run failed")
    return backend


def configuration(
    interpreter: Interpreter, drivers: Mapping[str, str], plan: Sequence[str]
) -> dict[str, Any]:
    """The configuration of a zygote."""
    found = places(interpreter)
    extra = [directory for directories in found.values() for directory in directories]
    extra += [*interpreter.shared, *_SYSTEM_FILES]
    roots = [*interpreter.library, *extra]
    return {
        "drivers": {"script": source("script_driver"), **drivers},
        "plan": list(plan),
        "roots": roots,
        "hidden": interpreter.hidden,
        "links": interpreter.links(),
        # Every rule of Landlock makes every run a little slower; inside the new root one rule is enough.
        "readable": ["/"] if "mounts" in plan else [*interpreter.readable(), *extra],
        "listable": [*interpreter.library, *extra],
        "packages": {name: directories[0] for name, directories in found.items()},
        "preload": [*_PRELOAD, *_OURS],
    }
