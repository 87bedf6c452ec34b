"""How many programs a second does the sandbox run, and how long does one take?

The claim: at least four times as many as a fresh interpreter for each (``python -I -S``), with all layers
active, at 1, 2 and 8 workers. All take turns in short blocks, so that a machine busy with other things slows
all of them alike, and the claim is about the middle one of the rounds' ratios.

    python benchmarks/bench_sandbox.py                # 1, 2 and 8 workers, all ways that there are here
    python benchmarks/bench_sandbox.py --check        # only what the claim is about; exits 1 if it fails
    python benchmarks/bench_sandbox.py --imports      # a program that imports what programs import
    python benchmarks/bench_sandbox.py --soak 100000  # memory, descriptors and processes over many runs
    python benchmarks/bench_sandbox.py --quick        # a few runs of each: shows that it works
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np

from art_gym.envs.coding.sandbox import Run, Sandbox, SandboxUnavailableError
from art_gym.envs.coding.sandbox.backends import BackendName
from art_gym.envs.coding.sandbox.interpreter import interpreters

_TIMES_FRESH = 4.0
_LIGHT = "print(6 * 7)"
_IMPORTS = "import collections, dataclasses, heapq, itertools, json, math, random, re, typing\nprint(6 * 7)"
_FRESH = "fresh interpreter"
_BLOCK_SECONDS, _ROUNDS = 1.0, 7
_PART = 80


@dataclass(frozen=True)
class Measure:
    """One way at one number of workers."""

    way: str
    workers: int
    runs: int
    per_second: float
    p50_ms: float
    p99_ms: float
    times_fresh: float
    """How many times the rate of a fresh interpreter: the median over the rounds."""


def fresh(program: str) -> bytes:
    """A fresh interpreter: no sandbox, the shortest way to start one."""
    command = [interpreters()[0].path, "-I", "-S", "-c", program]
    return subprocess.run(command, capture_output=True, timeout=10, check=True).stdout


def guarded(program: str) -> bytes:
    """A forked copy of this process with functions taken away, as HumanEval's runner does; no sandbox."""
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        result = manager.list()
        process = context.Process(target=_guarded_child, args=(program, result))
        process.start()
        process.join(timeout=10)
        if process.is_alive():
            process.kill()
        return result[0].encode()


def _guarded_child(program: str, result: Any) -> None:
    out = io.StringIO()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 5)
    for name in "kill system putenv remove removedirs rmdir fchdir setuid fork chmod".split():
        setattr(os, name, None)
    subprocess.Popen = None  # type: ignore[assignment, misc]
    with contextlib.redirect_stdout(out):
        exec(program, {})
    signal.setitimer(signal.ITIMER_REAL, 0)
    result.append(out.getvalue())


@contextlib.contextmanager
def _pool(workers: int, layers: BackendName = "auto") -> Iterator[Callable[[str], Run]]:
    """A function that runs a program in the next of so many sandboxes that has nothing to do."""
    with contextlib.ExitStack() as stack:
        idle: queue.SimpleQueue[Sandbox] = queue.SimpleQueue()
        for _ in range(workers):
            idle.put(stack.enter_context(Sandbox(layers=layers)))

        def run(program: str) -> Run:
            sandbox = idle.get()
            try:
                return sandbox.run("script", program)
            finally:
                idle.put(sandbox)

        yield run


def block(
    run: Callable[[str], bytes], program: str, workers: int, seconds: float, least: int
) -> tuple[list[float], float]:
    """Run for so long with so many workers; the time of each run, and of all together."""
    start = time.perf_counter()

    def work(_: int) -> list[float]:
        times: list[float] = []
        while time.perf_counter() - start < seconds or len(times) < least:
            began = time.perf_counter()
            if run(program) != b"42\n":
                raise RuntimeError("a run gave the wrong answer")
            times.append(time.perf_counter() - began)
        return times

    with ThreadPoolExecutor(workers) as threads:
        times = [t for part in threads.map(work, range(workers)) for t in part]
    return times, time.perf_counter() - start


def measure(program: str, workers: int, *, quick: bool, sandboxes: Sequence[BackendName]) -> list[Measure]:
    """Fresh interpreters, these sandboxes if they can run here, and others' guard, taking turns."""
    with contextlib.ExitStack() as stack:
        ways: dict[str, Callable[[str], bytes]] = {}
        for layers in sandboxes:
            try:
                pool = stack.enter_context(_pool(workers, layers))
            except SandboxUnavailableError as error:
                print(f"no {layers} here: {error}", file=sys.stderr)
                continue
            ways[layers] = lambda text, pool=pool: pool(text).stdout
        ways[_FRESH] = fresh
        if len(sandboxes) > 1:
            ways["multiprocessing"] = guarded
        rounds: dict[str, list[tuple[list[float], float]]] = {way: [] for way in ways}
        for _ in range(1 if quick else _ROUNDS):
            for way, run in ways.items():
                rounds[way].append(block(run, program, workers, 0.0 if quick else _BLOCK_SECONDS, 5))
    return [_summary(way, workers, rounds[way], rounds[_FRESH]) for way in ways]


def _summary(
    way: str,
    workers: int,
    rounds: Sequence[tuple[list[float], float]],
    others: Sequence[tuple[list[float], float]],
) -> Measure:
    all_times = [seconds for times, _ in rounds for seconds in times]
    p50, p99 = np.percentile(all_times, [50, 99]) * 1000
    rates, fresh_rates = ([len(times) / total for times, total in blocks] for blocks in (rounds, others))
    ratio = float(np.median(np.divide(rates, fresh_rates)))
    per_second = len(all_times) / sum(total for _, total in rounds)
    return Measure(way, workers, len(all_times), per_second, float(p50), float(p99), ratio)


@dataclass(frozen=True)
class State:
    """What a process and those that it started hold."""

    runs: int
    resident_mb: float
    descriptors: int
    processes: int


def soak(runs: int, workers: int) -> list[State]:
    """Run many programs of different kinds and look every tenth at what is held."""
    programs = [
        _LIGHT, _IMPORTS, "x", "import os; os._exit(3)", "print('A' * 100_000)", "import os; os.abort()",
        "bytearray(1 << 40)", "import threading; threading.Thread(target=print).start()",
    ]  # fmt: skip
    states = []
    with _pool(workers) as pool, ThreadPoolExecutor(workers) as threads:
        for part in range(11):
            # In small parts: the results of many runs would be what grows.
            for _ in range(max(1, runs // 10 // _PART)):
                list(threads.map(pool, (programs[i % len(programs)] for i in range(_PART))))
            states.append(_state(part * runs // 10))
            print(states[-1], file=sys.stderr)
    return states


def _state(runs: int) -> State:
    family = [os.getpid()]
    for pid in family:
        for task in Path(f"/proc/{pid}/task").iterdir():
            family += map(int, (task / "children").read_text().split())
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in family]
    resident = sum(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return State(runs, resident, len(os.listdir("/proc/self/fd")), len(family))


def steady(states: Sequence[State]) -> bool:
    """Whether what is held did not grow from the first look (after a warm-up) to the last."""
    first, last = states[0], states[-1]
    grown = last.resident_mb > 1.05 * first.resident_mb + 5
    return not grown and last.descriptors <= first.descriptors and last.processes <= first.processes


def check(measures: Sequence[Measure]) -> list[str]:
    """The claims that do not hold."""
    return [
        f"{m.workers} workers: {m.times_fresh:.1f} times a fresh interpreter, not {_TIMES_FRESH:g}"
        for m in measures
        if m.way == "zygote" and m.times_fresh < _TIMES_FRESH
    ]


def main() -> int:
    parser = harness.parser(__doc__, quick="a few runs of each way")
    parser.add_argument("--imports", action="store_true", help="run a program with imports")
    parser.add_argument("--soak", type=int, metavar="N", help="look for leaks over so many runs instead")
    arguments = parser.parse_args()
    if arguments.soak:
        states = soak(arguments.soak, 2)
        failures = [] if steady(states) else ["memory, descriptors or processes have grown"]
        return harness.finish(arguments, {"soak": [asdict(state) for state in states]}, failures)
    program = _IMPORTS if arguments.imports else _LIGHT
    measures = []
    sandboxes: tuple[BackendName, ...] = ("zygote",) if arguments.check else ("zygote", "bubblewrap")
    print(f"{'way':20} {'workers':>7} {'runs/s':>8} {'p50 ms':>8} {'p99 ms':>8} {'x fresh':>8}")
    for workers in (1, 2, 8):
        for m in measure(program, workers, quick=arguments.quick, sandboxes=sandboxes):
            times = f"{m.p50_ms:8.2f} {m.p99_ms:8.2f} {m.times_fresh:8.2f}"
            print(f"{m.way:20} {m.workers:7} {m.per_second:8.0f} {times}")
            measures.append(m)
    return harness.finish(arguments, {"ways": [asdict(m) for m in measures]}, check(measures))


if __name__ == "__main__":
    sys.exit(main())
