"""What makes a run cheap: joined mappings, a child in waiting; and that it changes nothing else."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from art_gym.envs.coding.sandbox import Limits, Outcome, Sandbox, SandboxUnavailable, warm
from art_gym.envs.coding.sandbox.child import mappings

LIMITS = Limits(wall_seconds=20.0, cpu_seconds=20.0)
SHORT = Limits(wall_seconds=1.0, cpu_seconds=20.0)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    try:
        sandbox = Sandbox(layers="zygote", limits=LIMITS, drivers={"echo": "channel.write_frame(payload)"})
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with sandbox:
        yield sandbox


def waiting(sandbox: Sandbox) -> Any:
    return sandbox._standby._waiting


def zygote_of(sandbox: Sandbox) -> int:
    """The zygote itself: the keeper's child where there is a process namespace, else what was started."""
    backend: Any = sandbox._backend
    pid = int(backend._process.pid)
    if "namespaces" in sandbox.layers:
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
    return pid


def test_libraries_have_two_mappings_each(sandbox: Sandbox) -> None:
    maps = [line.split() for line in Path(f"/proc/{zygote_of(sandbox)}/maps").read_text().splitlines()]
    files = [(line[1], line[5]) for line in maps if len(line) > 5 and ".so" in line[5]]
    libraries = {path for rights, path in files if rights == "r-xp"}
    assert len(libraries) > 3
    # Where variables of a library begin as empty memory, the kernel may not be able to join them all.
    assert sum(path in libraries for _, path in files) <= 2.5 * len(libraries)


def test_nothing_else_is_joined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = """
1000-2000 r--p 00000000 fe:00 7 /lib/a.so
2000-5000 r-xp 00001000 fe:00 7 /lib/a.so
5000-7000 r--p 00004000 fe:00 7 /lib/a.so
7000-8000 r--p 00006000 fe:00 7 /lib/a.so
8000-9000 rw-p 00007000 fe:00 7 /lib/a.so
a000-b000 r--p 00000000 fe:00 8 /usr/lib/locale/LC_CTYPE
b000-c000 rw-p 00000000 00:00 0 [heap]
c000-d000 r-xp 00000000 00:00 0 [vdso]
d000-e000 rw-s 00000000 fe:00 9 /lib/shared.so
"""
    (tmp_path / "maps").write_text(text.lstrip())
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(mappings, "_MAPS", str(tmp_path / "maps"))
    monkeypatch.setattr(mappings, "libc", lambda name, *arguments: asked.append(arguments))
    mappings.join()
    assert asked == [(0x1000, 0x1000, 5), (0x5000, 0x2000, 5), (0x7000, 0x1000, 3)]


def test_a_child_waits_for_a_third_run_like_the_two_before(sandbox: Sandbox) -> None:
    for expected in (False, True, True):
        assert sandbox.run("script", "print(1)").stdout == b"1\n"
        assert (waiting(sandbox) is not None) == expected
    sandbox.run("echo", b"x")
    assert waiting(sandbox) is None


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"stdin": b"a line\n"}, {"limits": Limits(wall_seconds=19.0)}],
    ids=["seed", "stdin", "limits"],
)
def test_another_kind_of_run_gets_a_child_of_its_own(sandbox: Sandbox, other: dict[str, Any]) -> None:
    program = "import random, sys\nprint(random.random(), sys.stdin.read())"
    with Sandbox(layers="zygote", limits=LIMITS) as fresh:
        expected = fresh.run("script", program, **other).stdout
    for _ in range(3):
        sandbox.run("script", program)
    assert sandbox.run("script", program, **other).stdout == expected
    assert waiting(sandbox) is None


def test_the_clock_starts_with_the_program_and_not_with_the_wait(sandbox: Sandbox) -> None:
    for _ in range(2):
        sandbox.run("script", "", limits=SHORT)
    assert waiting(sandbox) is not None
    time.sleep(0.1)
    began = time.monotonic()
    result = sandbox.run("script", "print(6 * 7)", limits=SHORT)
    assert (result.outcome, result.stdout) == (Outcome.EXITED, b"42\n")
    assert result.wall_seconds <= time.monotonic() - began
    assert sandbox.run("script", "while True: pass", limits=SHORT).outcome is Outcome.TIMEOUT


def test_a_child_in_waiting_that_was_killed_is_replaced(sandbox: Sandbox) -> None:
    for _ in range(2):
        sandbox.run("script", "")
    process = waiting(sandbox)
    process._handle.kill()
    deadline = time.monotonic() + 60
    while not process.gone and time.monotonic() < deadline:
        time.sleep(0.005)
    with sandbox.start("script", "print(1)") as second:
        assert second.wait().stdout == b"1\n"
    assert second is not process


def test_a_dead_zygote_takes_the_child_in_waiting_with_it(sandbox: Sandbox) -> None:
    for _ in range(2):
        sandbox.run("script", "")
    backend: Any = sandbox._backend
    os.kill(backend._process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, backend._process.pid, os.WEXITED | os.WNOWAIT)
    with sandbox.start("script", "print(1)") as process:
        assert process.wait().stdout == b"1\n"


def test_runs_at_one_time_are_killed_each_by_itself(sandbox: Sandbox) -> None:
    processes = [sandbox.start("script", "print(input())", stdin=b"") for _ in range(2)]
    held = [sandbox.start("script", f"import time\ntime.sleep(60 + {i})") for i in range(4)]
    for process in held[::2]:
        assert process.close().outcome is Outcome.KILLED
    assert [process.gone for process in held] == [True, False, True, False]
    assert all(process.wait().exit_code == 1 for process in processes)
    for process in held[1::2]:
        process.close()


def test_a_zygote_that_takes_no_orders_is_ended(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = sandbox._backend
    process = sandbox.start("script", "import time\ntime.sleep(60)")
    monkeypatch.setattr(warm, "KILL", SimpleNamespace(pack=lambda _: bytes(8)))  # a run that there is not
    monkeypatch.setattr("art_gym.envs.coding.sandbox.process._DEATH_SECONDS", 0.3)
    result = process.close()
    assert result.outcome is Outcome.REFUSED
    assert "not gone 0.3 s after it was killed" in result.why
    assert not backend.alive
    assert sandbox.run("script", "print(1)").ok


def test_an_end_of_stdin_needs_no_pipe(sandbox: Sandbox) -> None:
    program = "import os, stat\nprint(stat.S_ISFIFO(os.fstat(0).st_mode), os.read(0, 9))"
    assert sandbox.run("script", program).stdout == b"False b''\n"
    assert sandbox.run("script", program, stdin=b"x").stdout == b"True b'x'\n"


def test_what_was_rehearsed_is_not_seen(sandbox: Sandbox) -> None:
    program = (
        "import linecache, sys\nprint(sys.argv, sorted(linecache.cache), sys.modules['__main__'].__file__)"
    )
    assert sandbox.run("script", program).stdout == b"['main.py'] ['main.py'] main.py\n"


def test_the_name_of_the_driver_that_is_always_there() -> None:
    with pytest.raises(ValueError, match="may not be called `script`"):
        Sandbox(drivers={"script": "1"})
