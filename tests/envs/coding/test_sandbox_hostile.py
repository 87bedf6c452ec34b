"""Programs that try to get out, on every combination of layers that this machine has."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from art_gym.envs.coding.sandbox import Limits, Outcome, Run, Sandbox, SandboxUnavailableError, backends
from art_gym.envs.coding.sandbox.child.lockdown import unused_id

HERE = Path(__file__).parent
SHARED = Path(__file__).parents[4] / "shared" / "data" / "coding" / "hostile.jsonl"
PATIENT = Limits(wall_seconds=20.0, cpu_seconds=20.0, memory_bytes=128 << 20)
IMPATIENT = Limits(wall_seconds=0.5, cpu_seconds=1.0, memory_bytes=128 << 20)
NAMED = {Outcome.TIMEOUT: "timeout", Outcome.CPU: "timeout", Outcome.OUTPUT: "output_limit"}
WALLS = {
    "zygote": ("namespaces", "mounts", "landlock"),
    "zygote without landlock": ("namespaces", "mounts"),
    "zygote without mounts": ("namespaces", "landlock"),
    "zygote with landlock alone": ("landlock",),
}
WHOLE = "zygote"
"""Where programs run that only a limit ends: they take their time, and limits are the same everywhere."""


class Program(NamedTuple):
    """A hostile program."""

    name: str
    code: str
    expected: frozenset[str]
    """Any of these words means that it was contained."""

    @property
    def slow(self) -> bool:
        """Whether it may take a limit to end it."""
        return bool(self.expected & {"timeout", "cpu"})

    def run_in(self, sandbox: Sandbox) -> Run:
        return sandbox.run("script", self.code, limits=IMPATIENT if self.slow else PATIENT)


def own_programs() -> list[Program]:
    prelude = (HERE / "hostile" / "prelude.txt").read_text()
    found = []
    for path in sorted((HERE / "hostile").glob("*.txt")):
        if path.stem != "prelude":
            code = path.read_text()
            expected = code.splitlines()[0].split("expect:")[1].split()
            found.append(Program(path.stem, f"{prelude}\n{code}", frozenset(expected)))
    return found


def shared_programs() -> list[Program]:
    if not SHARED.exists():
        return []
    records = map(json.loads, SHARED.read_text().splitlines())
    return [Program(f"shared_{r['id']}", r["code"], frozenset(r["expect"])) for r in records]


PROGRAMS = own_programs() + shared_programs()
CASES = [
    pytest.param(layers, program, id=f"{layers}-{program.name}", marks=[pytest.mark.e2e] * (layers != WHOLE))
    for layers in WALLS
    for program in PROGRAMS
    if layers == WHOLE or not program.slow
]


def words(run: Run) -> set[str]:
    """What can be said of a run, in the words of the programs' expectations."""
    said = {run.outcome.value, NAMED.get(run.outcome, "")}
    if run.outcome in (Outcome.KILLED, Outcome.CPU):
        said |= {"sig", f"sig-{run.signal}"}
    if run.outcome is Outcome.MEMORY:
        said |= {"MemoryError", "exit1"}
    if run.outcome is Outcome.EXITED:
        first = (run.stdout.split() or [b"empty"])[0].decode(errors="replace")
        said |= {f"exit{run.exit_code}", first, first.lower(), f"exit{run.exit_code}-{first}"}
        said |= {name for name in ("ImportError", "OSError", "MemoryError") if name.encode() in run.stderr}
    return said


def open_with(layers: str, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """A sandbox with these layers only, as a machine that has no others would make it."""
    walls = WALLS[layers]
    monkeypatch.setattr(backends, "_LAYERS", walls)
    monkeypatch.setattr(backends, "_KNOWN", {})
    sandbox = Sandbox(layers="zygote")
    if layers != "zygote" and sandbox.layers != ("zygote", *walls, "seccomp"):
        sandbox.close()
        raise SandboxUnavailableError(f"this machine has not all of {', '.join(walls)}")
    return sandbox


@pytest.fixture(scope="module")
def sandboxes() -> Iterator[dict[str, Sandbox | str]]:
    """By layers the sandbox, or why there is none."""
    opened: dict[str, Sandbox | str] = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        for layers in WALLS:
            try:
                opened[layers] = open_with(layers, monkeypatch)
            except SandboxUnavailableError as error:
                opened[layers] = str(error)
    yield opened
    for sandbox in opened.values():
        if isinstance(sandbox, Sandbox):
            sandbox.close()


def leftovers(sandbox: Sandbox) -> set[str]:
    """Processes beside the zygote in its process namespace, and shared memory; empty where none is left."""
    zygote: Any = sandbox._backend
    left = set()
    if "namespaces" in sandbox.layers:
        [root] = children(zygote._process.pid)
        space = os.readlink(f"/proc/{root}/ns/pid")
        left = {f"process {pid}" for pid in processes() if pid != root and in_namespace(pid, space)}
    return left | {f"shared memory {name}" for name in os.listdir("/dev/shm") if "art" in name}


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def in_namespace(pid: int, space: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == space
    except OSError:
        return False


@pytest.mark.skipif(not SHARED.exists(), reason="the shared hostile programs are not on this machine")
def test_the_shared_programs_are_all_there() -> None:
    assert len(shared_programs()) == 27


def test_there_are_at_least_as_many_of_our_own() -> None:
    assert len(own_programs()) >= 27


@pytest.mark.parametrize(("layers", "program"), CASES)
def test_contained(sandboxes: dict[str, Sandbox | str], layers: str, program: Program) -> None:
    sandbox = sandboxes[layers]
    if isinstance(sandbox, str):
        pytest.skip(sandbox)
    run = program.run_in(sandbox)
    assert run.outcome is not Outcome.REFUSED, run.why
    assert words(run) & program.expected, run
    answer = sandbox.run("script", "print(6 * 7)")
    assert answer.ok
    assert (answer.stdout, answer.stderr) == (b"42\n", b"")
    assert not leftovers(sandbox)


AS_SOMEBODY_ELSE = """
import concurrent.futures, json, os, sys
sys.path.insert(0, sys.argv[1])
import test_sandbox_hostile as hostile
from art_gym.envs.coding.sandbox import Sandbox, SandboxUnavailableError
programs = hostile.PROGRAMS
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
try:
    sandbox = Sandbox(layers="zygote")
except SandboxUnavailableError as error:
    print(json.dumps({"unavailable": str(error)}))
    sys.exit()
bad = []
for program in programs:
    run = program.run_in(sandbox)
    answer = sandbox.run("script", "print(6 * 7)")
    if not hostile.words(run) & program.expected or answer.stdout != b"42\\n":
        bad.append(f"{program.name}: {run} {answer}")
print(json.dumps({"layers": sandbox.layers, "tried": len(programs), "bad": bad}))
"""


@pytest.mark.skipif(
    unused_id(0) is None, reason="nobody else to become; the other tests run as an ordinary user"
)
@pytest.mark.e2e
def test_contained_as_another_user() -> None:
    command = [sys.executable, "-W", "error", "-c", AS_SOMEBODY_ELSE, str(HERE)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    if "unavailable" in found:
        pytest.skip(found["unavailable"])
    assert found["bad"] == []
    assert found["tried"] == len(PROGRAMS)
    assert "seccomp" in found["layers"]
