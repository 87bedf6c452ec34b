"""What a run in the sandbox does, sees, and comes to; and what makes it cheap."""

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_gym.envs.coding.sandbox import Limits, Outcome, Run, Sandbox, zygote_backend
from art_gym.envs.coding.sandbox.process import Ended, Process
from tests.envs.coding.sandboxes import opened

DRIVERS = {
    section.split("\n")[0]: section.partition("\n")[2]
    for section in Path(__file__).with_name("drivers.txt").read_text("utf-8").split("### ")[1:]
}
RUNS = tomllib.loads(Path(__file__).with_name("runs.toml").read_text("utf-8"))["runs"]
REPEATED = settings(max_examples=40)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with opened(drivers=DRIVERS) as sandbox:
        yield sandbox


def run(sandbox: Sandbox, program: str, **arguments: Any) -> Run:
    return sandbox.run("script", program, **arguments)


def within(**limits: float) -> Limits:
    return Limits(**({"wall_seconds": 20.0, "cpu_seconds": 20.0} | limits))  # type: ignore[arg-type]


@pytest.mark.parametrize("case", RUNS, ids=lambda case: case["name"])
def test_how_runs_end(sandbox: Sandbox, case: dict[str, Any]) -> None:
    parts = case.get("stdin", [])
    stdin = "".join(text * times for text, times in zip(parts[::2], parts[1::2], strict=True))
    result = run(sandbox, case["program"], stdin=stdin.encode(), limits=within(**case.get("limits", {})))
    outcome = case.get("outcome", "exited")
    assert result.outcome.value == outcome, result
    assert result.truncated == case.get("truncated", outcome == "output")
    assert 0 < result.cpu_seconds < 20
    least = case["limits"]["wall_seconds"] if outcome == "timeout" else 0
    assert least <= result.wall_seconds < 60
    if outcome == "exited":
        code = case.get("exit_code", 0)
        assert (result.ok, result.exit_code, result.signal, result.why) == (code == 0, code, None, "")
        printed = case.get("stdout", "").encode(), case.get("stderr", "").encode()
        assert (result.stdout, result.stderr, result.frames) == (*printed, ())
    else:
        assert not result.ok
        assert case.get("why", "") in result.why
        assert "stdout" not in case or result.stdout == case["stdout"].encode()


@pytest.mark.parametrize(
    ("number", "cpu_seconds", "outcome"),
    [
        (signal.SIGKILL, 0.98, Outcome.CPU),
        (signal.SIGKILL, 0.5, Outcome.KILLED),
        (signal.SIGXCPU, 0.5, Outcome.CPU),
        (signal.SIGTERM, 0.98, Outcome.KILLED),
    ],
)
def test_a_kill_near_the_limit_of_processor_time_is_the_limits(
    number: int, cpu_seconds: float, outcome: Outcome
) -> None:
    streams: Any = SimpleNamespace(watch=lambda _: None, overflow="")
    handle: Any = SimpleNamespace(fileno=lambda: 0)
    process = Process(handle, streams, Limits(cpu_seconds=1.0))
    process._started = 0.0
    assert process._verdict(Ended(None, number, cpu_seconds))[0] is outcome


def test_errors_show_the_program_and_nothing_else(sandbox: Sandbox) -> None:
    text = run(sandbox, "def f():\n    return 1 / 0\n\nf()\n").stderr.decode()
    assert text.startswith(
        'Traceback (most recent call last):\n  File "main.py", line 4, in <module>\n    f()'
    )
    assert text.endswith("ZeroDivisionError: division by zero\n")
    assert "driver" not in text
    result = run(sandbox, "x = (1,\nprint(")
    assert (result.exit_code, b"SyntaxError" in result.stderr) == (1, True)
    result = run(sandbox, "x = [0] * 10**10")
    assert result.outcome is Outcome.MEMORY
    assert result.stderr.decode().count('File "') == result.stderr.decode().count('File "main.py"') == 1


@REPEATED
@given(st.binary(max_size=2_000), st.text(max_size=200))
def test_any_bytes_come_through_and_any_text_is_a_program(sandbox: Sandbox, data: bytes, text: str) -> None:
    program = f"import sys\nx = {text!r}\nsys.stdout.buffer.write(sys.stdin.buffer.read() + b'%d' % len(x))"
    assert run(sandbox, program, stdin=data).stdout == data + b"%d" % len(text)


@REPEATED
@given(st.lists(st.binary(max_size=300), max_size=20), st.binary(max_size=100_000))
def test_frames_come_back_in_order(sandbox: Sandbox, frames: list[bytes], payload: bytes) -> None:
    with sandbox.start("echo", payload, limits=within()) as process:
        assert process.receive() == payload
        for frame in frames:
            process.send(frame)
        assert [process.receive() for _ in frames] == frames
        process.send(b"end")
        assert process.wait().ok
        assert process.receive() is None


def test_a_conversation_by_its_clock(sandbox: Sandbox) -> None:
    with sandbox.start("echo", b"hello", limits=within()) as process:
        assert process.receive() == b"hello"
        assert process.started
        process.send(b"still there")
        assert process.receive() == b"still there"
        result = process.close()
    assert (result.outcome, result.why) == (Outcome.KILLED, "closed while it was running")
    assert process.close() == result
    process.send(b"nobody reads this")
    assert process.receive() is None


def test_several_conversations_at_one_time_with_large_frames(sandbox: Sandbox) -> None:
    large = os.urandom(3_000_000)
    processes = [sandbox.start("echo", bytes([i]), limits=within()) for i in range(3)]
    assert [process.receive() for process in processes] == [bytes([i]) for i in range(3)]
    for process in reversed(processes):
        process.send(large)
        assert process.receive() == large
        process.send(b"end")
        assert process.wait().ok


def test_the_wall_clock_ends_a_conversation(sandbox: Sandbox) -> None:
    with sandbox.start("forge", b"deaf", limits=within(wall_seconds=0.3)) as process:
        process.send(b"x" * 5_000_000)
        assert process.receive() is None
        assert process.wait().outcome is Outcome.TIMEOUT


def test_garbage_on_the_channel(sandbox: Sandbox) -> None:
    result = sandbox.run("forge", b"garbage")
    assert (result.outcome, result.frames) == (Outcome.OUTPUT, ())
    assert "frames of more than" in result.why
    assert sandbox.run("forge", b"unfinished").frames == (b"whole",)
    flooded = sandbox.run("forge", b"flood", limits=within(frames_bytes=10_000))
    assert flooded.outcome is Outcome.OUTPUT
    assert sum(map(len, flooded.frames)) <= 10_000
    empty = sandbox.run("forge", b"empty", limits=within(frames_bytes=10_000))
    assert (empty.outcome, len(empty.frames)) == (Outcome.OUTPUT, 2_500 - 2)


def test_frames_after_the_verdict_are_seen_to_be_more(sandbox: Sandbox) -> None:
    with sandbox.start("forge", b"late", limits=within(frames_bytes=1_000_000)) as process:
        assert process.receive() == b"verdict"
        result = process.wait()
    assert result.outcome is Outcome.OUTPUT
    assert result.frames[0] == b"forged 0"


def test_a_frame_taken_after_the_end_is_not_one_too_many(sandbox: Sandbox) -> None:
    with sandbox.start("forge", b"unfinished") as process:
        assert process.wait().frames == (b"whole",)
        assert process.receive() == b"whole"
        assert process.wait().frames == ()


@pytest.mark.parametrize(
    "name", ["wall_seconds", "cpu_seconds", "memory_bytes", "output_bytes", "frames_bytes"]
)
def test_limits_that_are_none(name: str) -> None:
    for value in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=name):
            Limits(**{name: value})
    with pytest.raises(ValueError, match="64 MiB"):
        Limits(memory_bytes=1 << 20)


def test_nothing_of_one_run_is_seen_by_the_next(sandbox: Sandbox) -> None:
    first = """
import builtins, gc, json, os, random, signal, sys, threading
builtins.left = sys.left = json.left = 1
json.dumps = builtins.print
os.environ["LEFT"] = "1"
sys.path.insert(0, "/left")
sys.modules["left"] = sys
random.seed(5)
sys.setrecursionlimit(50_000)
gc.disable()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.stack_size(1 << 20)
"""
    look = """
import builtins, gc, json, os, random, signal, sys, threading
print(hasattr(builtins, "left"), hasattr(sys, "left"), hasattr(json, "left"), json.dumps([1]), os.environ,
      sys.path, "left" in sys.modules, random.random(), sys.getrecursionlimit(), gc.isenabled(),
      signal.getsignal(signal.SIGTERM), threading.stack_size(), sorted(sys.modules))
"""
    before = run(sandbox, look)
    assert before.ok
    assert run(sandbox, first).ok
    assert run(sandbox, look).stdout == before.stdout


def test_no_payload_lies_in_the_memory_of_the_next_run(sandbox: Sandbox) -> None:
    secret = "KEY-" + os.urandom(16).hex()
    # The search knows the two halves only, so that it does not find itself.
    search = """
import ctypes, gc
gc.unfreeze()
halves = input().encode(), input().encode()
pages = {id(o) & ~0xFFF for o in gc.get_objects()} | {id(m) & ~0xFFF for o in gc.get_objects()
                                                      for m in gc.get_referents(o)}
found = 0
for page in pages:
    before, half, after = ctypes.string_at(page, 4096).partition(halves[0])
    found += bool(half) and after.startswith(halves[1])
print(len(pages) > 500, found)
"""
    halves = f"{secret[:18]}\n{secret[18:]}\n".encode()
    here = run(sandbox, f"kept = [b'{secret}' + bytes([i]) for i in range(9)]\n{search}", stdin=halves)
    assert here.stdout.split()[1] != b"0", "the search itself does not find what is there"
    for _ in range(3):
        assert run(sandbox, f"kept = '{secret}'", stdin=secret.encode()).ok
    assert run(sandbox, search, stdin=halves).stdout == b"True 0\n"


def test_the_state_of_a_driver_is_not_kept(sandbox: Sandbox) -> None:
    assert [sandbox.run("state", b"").frames for _ in range(3)] == [(b"1",)] * 3


def test_runs_repeat_by_their_seed(sandbox: Sandbox) -> None:
    program = "import random\nprint(random.random(), hash('x'), {'a', 'b', 'c', 'd'})"
    first, again, other = (run(sandbox, program, seed=seed).stdout for seed in (1, 1, 2))
    assert first == again != other
    assert first.split()[1:] == other.split()[1:]
    with Sandbox() as second:
        assert run(second, program, seed=1).stdout == first


def test_wrong_requests_are_refused(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="seed"):
        run(sandbox, "", seed=-1)
    with pytest.raises(ValueError, match="no driver `echos`; did you mean `echo`"):
        sandbox.run("echos", b"")
    with pytest.raises(ValueError, match="may not be called `script`"):
        Sandbox(drivers={"script": "1"})


def descriptors() -> set[str]:
    gc.collect()
    names = os.listdir("/proc/self/fd")
    return {name for name in names if os.path.lexists(f"/proc/self/fd/{name}")}


def test_descriptors_are_given_back(sandbox: Sandbox) -> None:
    sandbox.start("echo", b"").close()  # after another kind of run, so that no child waits
    before = descriptors()
    for program in (
        "",
        "while True: print(1)",
        "import os; os.abort()",
        "x",
        "import os; os.close(0); os.close(1)",
    ):
        for _ in range(2):
            run(sandbox, program, stdin=b"x" * 100_000)
    sandbox.start("echo", b"").close()
    assert descriptors() == before


def test_a_run_that_fails_at_its_start_leaves_nothing_open(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox._standby.dismiss()
    before = descriptors()
    for spare in range(6):
        pipes = [*(os.pipe() for _ in range(spare)), *[OSError(24, "too many files")] * 2]
        with monkeypatch.context() as full:
            full.setattr(os, "pipe", Mock(side_effect=pipes))
            assert run(sandbox, "", stdin=b"x").outcome is Outcome.REFUSED
    monkeypatch.setattr(sandbox._standby, "refill", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(sandbox, "import time; time.sleep(99)")
    assert descriptors() == before


def test_many_threads_share_a_sandbox_and_no_run_has_a_descriptor_of_another(sandbox: Sandbox) -> None:
    look = """
import os
def open_here(number):
    try: os.fstat(number)
    except OSError: return os.path.exists(f"/dev/fd/{number}")
    return True
print(input(), [number for number in range(3, 99) if open_here(number)])
"""
    with ThreadPoolExecutor(6) as threads:
        numbers = [b"%d" % number for number in range(60)]
        results = list(
            threads.map(lambda data: run(sandbox, look, limits=within(), stdin=data).stdout, numbers)
        )
    assert results == [b"%s []\n" % number for number in numbers]


HOARD = """
import threading, time
threading.stack_size(32768)
try:
    while True:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
except RuntimeError:
    print("full", flush=True)
    time.sleep(60)
"""


def test_a_run_with_all_threads_keeps_no_other_from_running(sandbox: Sandbox) -> None:
    with sandbox.start("script", HOARD.encode(), limits=within()) as hoard:
        while not hoard._streams.stdout:
            hoard._turn()
        for _ in range(3):
            assert run(sandbox, "print(1)", limits=within()).ok
    assert run(sandbox, "import threading\nthreading.Thread(target=print).start()", limits=within()).ok


def zygote_of(sandbox: Sandbox) -> int:
    backend: Any = sandbox._backend
    if sandbox.layers[0] != "zygote":
        pytest.skip("there is no zygote here")
    return int(backend._process.pid)


def test_a_dead_zygote_is_replaced() -> None:
    with opened() as sandbox:
        first = zygote_of(sandbox)
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        assert run(sandbox, "print(1)", limits=within()).ok
        assert zygote_of(sandbox) != first
        # In the middle of a run: it is run again, once.
        killing = threading.Timer(0.2, lambda: os.kill(zygote_of(sandbox), signal.SIGKILL))
        killing.start()
        assert run(sandbox, "import time\ntime.sleep(0.5)\nprint(1)", limits=within()).stdout == b"1\n"
        killing.join()
        with sandbox.start("script", "import time; time.sleep(9)", limits=within()) as process:
            os.kill(zygote_of(sandbox), signal.SIGKILL)
            result = process.wait()
    assert result.outcome is Outcome.REFUSED
    assert "zygote" in result.why
    with pytest.raises(RuntimeError, match="closed"):
        run(sandbox, "")
    sandbox.close()


def test_a_fork_of_the_parent_may_not_use_it(sandbox: Sandbox) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            run(sandbox, "")
        except RuntimeError as error:
            os._exit(7 if "fork" in str(error) else 8)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert run(sandbox, "print(1)").ok


ABANDON = """
import os, signal, sys
from art_gym.envs.coding.sandbox import Limits, Sandbox
sandbox = Sandbox()
program = "import time\\nprint('in', flush=True)\\ntime.sleep(60)"
process = sandbox.start("script", program, limits=Limits(wall_seconds=60))
while not process._streams.stdout:
    process._turn()
keeper = sandbox._backend._process.pid
family = [keeper, *map(int, open(f"/proc/{keeper}/task/{keeper}/children").read().split())]
family += [int(p) for pid in family for p in open(f"/proc/{pid}/task/{pid}/children").read().split()]
print(*family, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_outlives_a_killed_parent(sandbox: Sandbox) -> None:
    zygote_of(sandbox)
    said = subprocess.run([sys.executable, "-c", ABANDON], capture_output=True, text=True, check=False)
    family = [int(word) for word in said.stdout.split()]
    assert len(family) >= 2, said.stderr
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in family) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in family if alive(pid)]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


SHORT = Limits(wall_seconds=1.0, cpu_seconds=20.0)


@pytest.fixture
def warm() -> Iterator[Sandbox]:
    """A sandbox in which a child waits for the next run."""
    drivers = {"echo": "channel.write_frame(payload)"}
    with opened(layers="zygote", limits=within(), drivers=drivers) as sandbox:
        for expected in (False, True):
            assert run(sandbox, "print(1)").stdout == b"1\n"
            assert (waiting(sandbox) is not None) == expected
        yield sandbox


def waiting(sandbox: Sandbox) -> Any:
    return sandbox._standby._waiting


@pytest.mark.parametrize(
    "other", [{"stdin": b"a line\n"}, {"limits": Limits(wall_seconds=19.0)}], ids=["stdin", "limits"]
)
def test_another_kind_of_run_gets_a_child_of_its_own(warm: Sandbox, other: dict[str, Any]) -> None:
    program = "import random, sys\nprint(random.random(), sys.stdin.read())"
    with Sandbox(layers="zygote", limits=within()) as fresh:
        expected = run(fresh, program, **other).stdout
    assert run(warm, program, **other).stdout == expected
    assert waiting(warm) is None
    assert warm.run("echo", b"x").frames == (b"x",)


def test_a_child_in_waiting_gets_its_seed_with_the_program(warm: Sandbox) -> None:
    process = waiting(warm)
    with warm.start("script", "import random\nprint(random.random())", seed=7) as taken:
        assert taken is process
        assert taken.wait().stdout.decode().strip() == str(random.Random(7).random())


def test_the_clock_starts_with_the_program_and_not_with_the_wait(warm: Sandbox) -> None:
    for _ in range(2):
        run(warm, "", limits=SHORT)
    time.sleep(0.1)
    began = time.monotonic()
    result = run(warm, "print(6 * 7)", limits=SHORT)
    assert (result.outcome, result.stdout) == (Outcome.EXITED, b"42\n")
    assert result.wall_seconds <= time.monotonic() - began
    assert run(warm, "while True: pass", limits=SHORT).outcome is Outcome.TIMEOUT


@pytest.mark.parametrize("who", ["child", "zygote"])
def test_a_child_in_waiting_that_was_killed_is_replaced(warm: Sandbox, who: str) -> None:
    process = waiting(warm)
    if who == "child":
        process._handle.kill()
    else:
        os.kill(zygote_of(warm), signal.SIGKILL)
        os.waitid(os.P_PID, zygote_of(warm), os.WEXITED | os.WNOWAIT)
    deadline = time.monotonic() + 60
    while not process.gone and time.monotonic() < deadline:
        time.sleep(0.005)
    with warm.start("script", "print(1)") as second:
        assert second.wait().stdout == b"1\n"
    assert second is not process


def test_runs_at_one_time_are_killed_each_by_itself(warm: Sandbox) -> None:
    held = [warm.start("script", f"import time\ntime.sleep(60 + {i})") for i in range(4)]
    for process in held[::2]:
        assert process.close().outcome is Outcome.KILLED
    assert [process.gone for process in held] == [True, False, True, False]
    for process in held[1::2]:
        process.close()


def test_a_zygote_that_takes_no_orders_is_ended(warm: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = warm._backend
    process = warm.start("script", "import time\ntime.sleep(60)")
    unknown_run = SimpleNamespace(pack=lambda _: bytes(8))
    monkeypatch.setattr(zygote_backend, "KILL", unknown_run)
    monkeypatch.setattr("art_gym.envs.coding.sandbox.process._DEATH_SECONDS", 0.3)
    result = process.close()
    assert result.outcome is Outcome.REFUSED
    assert "not gone 0.3 s after it was killed" in result.why
    assert not backend.alive
    assert run(warm, "print(1)").ok


def test_what_was_rehearsed_is_not_seen(warm: Sandbox) -> None:
    look = "import linecache, sys\nprint(sys.argv, sorted(linecache.cache), sys.modules['__main__'].__file__)"
    assert run(warm, look).stdout == b"['main.py'] ['main.py'] main.py\n"
