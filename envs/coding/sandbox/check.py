"""Check which sandboxes can be made on this machine, and whether they hold: ``art-gym sandbox check``."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass

from art_gym.envs.coding.sandbox.backends import BackendName, missing_layers
from art_gym.envs.coding.sandbox.child import landlock, seccomp
from art_gym.envs.coding.sandbox.child.lockdown import unused_id
from art_gym.envs.coding.sandbox.run import Limits, Outcome, Run, SandboxUnavailableError
from art_gym.envs.coding.sandbox.sandbox import Sandbox

# --- programs that try to get out, harmless if they succeed ---


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


def _attempt(code: str, error: str = "OSError") -> str:
    """A program that tries something, and says HELD if that raises."""
    lines = "\n".join(f"    {line}" for line in code.strip().splitlines())
    return f"try:\n{lines}\nexcept {error}:\n    print('HELD')\nelse:\n    print('OUT')\n"


_CALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
"""

FIRST = (
    # Whoever gets past these could do harm with the others.
    Probe("endless loop", "runs for ever with all signals ignored", """
import signal
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
while True:
    pass
""", (Outcome.TIMEOUT, Outcome.CPU)),
    Probe("fork", "makes a second process", _attempt("import os\nif os.fork() == 0: os._exit(0)")),
    Probe("signal", "asks whether it may signal its parent", _attempt("import os\nos.kill(os.getppid(), 0)")),
)  # fmt: skip
PROBES = (
    *FIRST,
    Probe("exec", "starts another program", _attempt("import os\nos.execv('/bin/true', ['true'])")),
    Probe("posix_spawn", "starts another program beside itself", _attempt(
        "import os\nos.posix_spawn('/bin/true', ['true'], {})")),
    Probe("read files", "reads the list of users", _attempt("open('/etc/passwd').read()")),
    Probe("list files", "lists the root directory", _attempt("import os\nos.listdir('/')")),
    Probe("write files", "writes to /tmp", _attempt(
        "import os\nos.open('/tmp/art-gym-probe', os.O_CREAT | os.O_WRONLY)")),
    Probe("processes", "reads about other processes", _attempt("open('/proc/1/status').read()")),
    Probe("network", "makes a socket", _attempt("import socket\nsocket.socket()")),
    Probe("abstract socket", "makes a socket for other processes here", _attempt(
        "import socket\nsocket.socket(socket.AF_UNIX)")),
    Probe("ptrace", "attaches to its parent", _CALL + _attempt(
        "import os\ncall('ptrace', 16, os.getppid(), 0, 0)")),
    Probe("shared memory", "makes System V shared memory", _CALL + _attempt(
        "call('shmget', 0, 4096, 0o1600)")),
    Probe("namespaces", "becomes root of a user namespace", _CALL + _attempt("call('unshare', 0x10000000)")),
    Probe("limits", "raises its own limits", _attempt(
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))", "(OSError, ValueError)")),
    Probe("environment", "finds the parent's environment", """
import os
print("OUT" if {"HOME", "PATH", "USER"} & set(os.environ) else "HELD")
"""),
    Probe("descriptors", "finds descriptors that it was not given", """
import os
def is_open(number):
    try: os.fstat(number)
    except OSError: return False
    return True
print("OUT" if any(map(is_open, range(3, 1024))) else "HELD")
"""),
    Probe("packages", "imports what is installed beside the tests", _attempt(
        "import art_gym", "ImportError")),
    Probe("memory", "allocates 10 GB", "print(len(bytes(10 << 30)))", (Outcome.MEMORY,)),
    Probe("output", "prints for ever", "while True: print('A' * 1000)", (Outcome.OUTPUT,)),
    Probe("threads", "starts threads until there are no more", """
import threading, time
try:
    for _ in range(5_000):
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
except RuntimeError:
    print("HELD", flush=True)
import os
os._exit(0)
"""),
)  # fmt: skip


# --- the check ---

_LIMITS = Limits(wall_seconds=2.0, cpu_seconds=2.0)
_BACKENDS: tuple[BackendName, ...] = ("zygote", "bubblewrap", "container")


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
    """Whether the sandbox still answered rightly afterwards."""


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
