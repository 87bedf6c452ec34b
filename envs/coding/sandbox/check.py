"""Which sandboxes can be made on this machine, and whether they hold."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass

from art_gym.envs.coding.sandbox.backends import Layers, missing_walls
from art_gym.envs.coding.sandbox.child import landlock, seccomp
from art_gym.envs.coding.sandbox.child.rights import unused_id
from art_gym.envs.coding.sandbox.errors import SandboxUnavailable
from art_gym.envs.coding.sandbox.limits import Limits, Outcome, Run
from art_gym.envs.coding.sandbox.probes import FIRST, PROBES, Probe
from art_gym.envs.coding.sandbox.sandbox import Sandbox

_LIMITS = Limits(wall_seconds=2.0, cpu_seconds=2.0)
_WAYS: tuple[Layers, ...] = ("zygote", "bubblewrap", "container")


@dataclass(frozen=True)
class Layer:
    """One way of isolation, or one wall of it."""

    name: str
    holds: bool
    detail: str
    """What it does where it holds; why it does not where not."""


@dataclass(frozen=True)
class Result:
    """What came of an attempt to get out."""

    probe: Probe
    held: bool
    run: Run
    after: bool
    """Whether the sandbox still answered rightly afterwards."""


def walls() -> list[Layer]:
    """The walls that a zygote puts around a run, on this machine."""
    machine = platform.machine()
    own = unused_id(0)
    found = [
        Layer("system calls", seccomp.supported(machine), f"seccomp allow-list for {machine}"),
        Layer(
            "landlock",
            landlock.abi() > 0,
            f"ABI {landlock.abi()}: reads the standard library, writes nothing",
        ),
        Layer("namespaces", True, "no network, no other process, IPC or host name"),
        Layer("mounts", True, "a root directory with the standard library only"),
        Layer("user", own is not None, "a user id that nobody has" if own else "not root: runs as you"),
    ]
    missing = missing_walls()
    return [Layer(wall.name, False, missing[wall.name]) if wall.name in missing else wall for wall in found]


def ways() -> list[Layer]:
    """The ways of isolation, best first: whether each holds here, or why it does not."""
    found = []
    for way in _WAYS:
        try:
            with Sandbox(layers=way) as sandbox:
                found.append(Layer(way, True, ", ".join(sandbox.layers[1:])))
        except SandboxUnavailable as error:
            found.append(Layer(way, False, str(error)))
    return found


def probe(sandbox: Sandbox) -> Iterator[Result]:
    """Run programs that try to get out; no more after one of the first few did, as others could do harm."""
    for attempt in PROBES:
        run = sandbox.run("script", attempt.program, limits=_LIMITS)
        answer = sandbox.run("script", "print(6 * 7)")
        after = answer.outcome is Outcome.EXITED and answer.stdout == b"42\n"
        result = Result(attempt, attempt.held(run), run, after)
        yield result
        if attempt in FIRST and not result.held:
            return
