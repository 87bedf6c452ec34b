"""How many programs a second does the sandbox run, and how long does one take?

The claims: at least three times as many as a fresh interpreter for each (``python -I -S``), with all layers
active, at 1 and 2 workers; and the references of the built-in functions are judged twice, as by default, at
least 1.8 times as fast as fresh interpreters run them once. All take turns in short blocks, so that a machine
busy with other things slows all of them alike, and the claims are about the middle one of the rounds' ratios.

    python benchmarks/bench_sandbox.py                # 1, 2 and 8 workers, and judging
    python benchmarks/bench_sandbox.py --check        # only what the claim is about; exits 1 if it fails
    python benchmarks/bench_sandbox.py --imports      # a program that imports what programs import
    python benchmarks/bench_sandbox.py --soak 100000  # memory, descriptors and processes over many runs
    python benchmarks/bench_sandbox.py --quick        # a few runs of each: shows that it works
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import harness
import numpy as np
import psutil

from art_gym.envs.coding.drivers import drivers
from art_gym.envs.coding.judge import grade
from art_gym.envs.coding.problem import Problem
from art_gym.envs.coding.problems.builtin import load
from art_gym.envs.coding.sandbox import Run, Sandbox
from art_gym.envs.coding.sandbox.interpreter import interpreters
from art_gym.envs.coding.sharing import LIMITS
from art_gym.envs.coding.values import write_literal

_TIMES_FRESH, _JUDGED_TIMES_FRESH = 3.0, 1.8
_CLAIMED = (1, 2)  # workers
_LIGHT = "print(6 * 7)"
_IMPORTS = "import collections, dataclasses, heapq, itertools, json, math, random, re, typing\nprint(6 * 7)"
_SANDBOX, _FRESH = "sandbox", "fresh interpreter"
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


def judging(tasks: Sequence[Problem]) -> tuple[float, float]:
    """How many times as fast as by a fresh interpreter references are judged: once, and twice as by default.

    The fresh interpreter runs the reference with an assertion for each case. The three take turns, ten tasks
    at a time; the ratios are the middle ones.
    """
    rng = np.random.default_rng(0)
    with Sandbox(drivers=drivers(), limits=LIMITS) as sandbox:
        ways: list[Callable[[Problem], object]] = [
            lambda task: fresh(_asserted(task)),
            lambda task: grade(task, task.reference, sandbox, rng=rng),
            lambda task: grade(task, task.reference, sandbox, rng=rng, twice=True),
        ]
        seconds = []
        for first in range(0, len(tasks), 10):
            marks = [time.perf_counter()]
            for way in ways:
                for task in tasks[first : first + 10]:
                    way(task)
                marks.append(time.perf_counter())
            seconds.append(np.diff(marks))
    interpreter, once, twice = np.transpose(seconds)
    return float(np.median(interpreter / once)), float(np.median(interpreter / twice))


def _asserted(task: Problem) -> str:
    calls = [
        f"{task.entry_point}(*{write_literal(case.args)}, **{write_literal(dict(case.kwargs))})"
        f" == {write_literal(case.expected)}"
        for case in task.hidden
    ]
    return "\n".join([task.reference, *(f"assert {call}" for call in calls)])


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[Callable[[str], Run]]:
    """A function that runs a program in the next of so many sandboxes that has nothing to do."""
    with contextlib.ExitStack() as stack:
        idle: queue.SimpleQueue[Sandbox] = queue.SimpleQueue()
        for _ in range(workers):
            idle.put(stack.enter_context(Sandbox()))

        def run(program: str) -> Run:
            sandbox = idle.get()
            try:
                return sandbox.run("script", program)
            finally:
                idle.put(sandbox)

        yield run


_Block = tuple[list[float], float]
"""The time of each run, and of all together."""


def block(run: Callable[[str], bytes], program: str, workers: int, seconds: float, least: int) -> _Block:
    """Run for so long with so many workers."""
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


def measure(program: str, workers: int, *, quick: bool) -> list[Measure]:
    """Sandboxes and fresh interpreters, taking turns."""
    with _pool(workers) as pool:
        ways: dict[str, Callable[[str], bytes]] = {_SANDBOX: lambda text: pool(text).stdout, _FRESH: fresh}
        rounds: dict[str, list[_Block]] = {way: [] for way in ways}
        for _ in range(1 if quick else _ROUNDS):
            for way, run in ways.items():
                rounds[way].append(block(run, program, workers, 0.0 if quick else _BLOCK_SECONDS, 5))
    return [_summary(way, workers, rounds[way], rounds[_FRESH]) for way in ways]


def _summary(way: str, workers: int, rounds: Sequence[_Block], others: Sequence[_Block]) -> Measure:
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
    own = psutil.Process()
    family = [own, *own.children(recursive=True)]
    resident = sum(process.memory_info().rss for process in family) / 1e6
    return State(runs, resident, own.num_fds(), len(family))


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
        if m.way == _SANDBOX and m.workers in _CLAIMED and m.times_fresh < _TIMES_FRESH
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
    counts = _CLAIMED if arguments.check else (*_CLAIMED, 8)
    measures = [m for count in counts for m in measure(program, count, quick=arguments.quick)]
    rows = [
        [m.way, str(m.workers), *(f"{x:.2f}" for x in (m.per_second, m.p50_ms, m.p99_ms, m.times_fresh))]
        for m in measures
    ]
    harness.show("Programs", ("way", "workers", "runs/s", "p50 ms", "p99 ms", "x fresh"), rows)
    tasks = [task for task in load() if task.kind == "function"]
    once, twice = judging(tasks[:10] if arguments.quick else tasks)
    print(f"judging: once {once:.2f}, twice {twice:.2f} times as fast as a fresh interpreter")
    failures = check(measures)
    if twice < _JUDGED_TIMES_FRESH:
        failures.append(f"judging twice is {twice:.2f} times as fast, not {_JUDGED_TIMES_FRESH:g}")
    figures = {"ways": [asdict(m) for m in measures], "judging": {"once": once, "twice": twice}}
    return harness.finish(arguments, figures, failures)


if __name__ == "__main__":
    sys.exit(main())
