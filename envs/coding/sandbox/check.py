"""Check which sandboxes work on this machine, and whether programs can escape: ``art-gym sandbox check``."""

from __future__ import annotations

import platform
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from art_gym.envs.coding.sandbox.backends import BackendName, missing_layers
from art_gym.envs.coding.sandbox.child import landlock, seccomp
from art_gym.envs.coding.sandbox.child.lockdown import unused_id
from art_gym.envs.coding.sandbox.run import Limits, Outcome, Run, SandboxUnavailableError
from art_gym.envs.coding.sandbox.sandbox import Sandbox


@dataclass(frozen=True)
class Probe:
    """An attempt to get out."""

    name: str
    what: str
    program: str
    ends: tuple[Outcome, ...] = ()
    """Outcomes by which the sandbox is seen to hold; by default the program says so itself."""

    def held(self, run: Run) -> bool:
        """Whether the sandbox held. A run that was refused shows nothing."""
        if self.ends:
            return run.outcome in self.ends
        return run.outcome is Outcome.EXITED and run.stdout.startswith(b"HELD")


_ATTEMPT = "{setup}\ntry:\n    {code}\nexcept {error}:\n    print('HELD')\nelse:\n    print('OUT')\n"


def _read_probes() -> Iterator[Probe]:
    tables = tomllib.loads(files(__package__).joinpath("probes.toml").read_text("utf-8"))
    libc = tables.pop("libc")
    for name, table in tables.items():
        setup = libc * table.get("uses_libc", False) + table.get("setup", "")
        attempt = {"setup": setup, "code": table.get("attempt"), "error": table.get("error", "OSError")}
        program = table.get("program") or _ATTEMPT.format(**attempt)
        yield Probe(name, table["what"], program, tuple(map(Outcome, table.get("ends", ()))))


PROBES = tuple(_read_probes())
FIRST = PROBES[:3]
"""A program that passes these could do harm with the others."""

_LIMITS = Limits(wall_seconds=2.0, cpu_seconds=2.0)
_BACKENDS: tuple[BackendName, ...] = ("zygote", "container")


@dataclass(frozen=True)
class Layer:
    """One backend, or one layer of isolation."""

    name: str
    holds: bool
    detail: str
    """What it does, or why it is not available."""


@dataclass(frozen=True)
class Result:
    """What came of an attempt to get out."""

    probe: Probe
    held: bool
    run: Run
    after: bool
    """Whether the sandbox still gave the right answer afterwards."""


def zygote_layers() -> list[Layer]:
    """The layers of isolation that a zygote puts around a run, on this machine."""
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
    missing = missing_layers()
    return [
        Layer(layer.name, False, missing[layer.name]) if layer.name in missing else layer for layer in found
    ]


def available_backends() -> list[Layer]:
    """The backends, best first: whether each works here, or why it does not."""
    found = []
    for name in _BACKENDS:
        try:
            with Sandbox(layers=name) as sandbox:
                found.append(Layer(name, True, ", ".join(sandbox.layers[1:])))
        except SandboxUnavailableError as error:
            found.append(Layer(name, False, str(error)))
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
