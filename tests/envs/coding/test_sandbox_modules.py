"""What of Python works inside: the standard library, threads, numpy; and what does not, and why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from art_gym.envs.coding.sandbox import Limits, Outcome, Sandbox, SandboxUnavailable

PATIENT = Limits(wall_seconds=30.0, cpu_seconds=30.0)
MODULES = """
abc argparse array ast asyncio base64 binascii bisect bz2 calendar cmath collections concurrent.futures
configparser contextlib copy csv ctypes dataclasses datetime decimal difflib email enum fnmatch fractions
functools glob graphlib gzip hashlib heapq hmac html http.client inspect io ipaddress itertools json keyword
logging lzma math numbers operator os pathlib pickle platform pprint queue random re sched secrets selectors
shlex shutil signal socket sqlite3 ssl statistics string struct subprocess sys tempfile textwrap threading
time timeit tokenize tomllib traceback types typing unicodedata unittest unittest.mock urllib.parse uuid
warnings weakref xml.etree.ElementTree zipfile zlib zoneinfo
""".split()
PROGRAMS = {
    "threads": ("""
import threading
out = []
threads = [threading.Thread(target=out.append, args=(i,)) for i in range(20)]
[t.start() for t in threads]
[t.join() for t in threads]
print(sum(out))
""", "190"),
    "thread pool": ("""
from concurrent.futures import ThreadPoolExecutor
print(sum(ThreadPoolExecutor(8).map(abs, range(-9, 9))))
""", "81"),
    "asyncio": ("""
import asyncio
async def f():
    return await asyncio.to_thread(lambda: 5)
async def g():
    return sum(await asyncio.gather(f(), f(), asyncio.sleep(0.01, 2)))
print(asyncio.run(g()))
""", "12"),
    "sqlite": ("""
import sqlite3
print(sqlite3.connect(":memory:").execute("select 6 * 7").fetchone()[0])
""", "42"),
    "time zones": ("""
import datetime, zoneinfo
zone = zoneinfo.ZoneInfo("Europe/Berlin")
print(datetime.datetime(2024, 7, 1, 12, tzinfo=zone).utcoffset())
""", "2:00:00"),
    "local time": ("""
import time
print(time.tzname[0], time.localtime(0).tm_hour)
""", "UTC 0"),
    "hashes": ("""
import hashlib
print(hashlib.new("md5", b"x").hexdigest()[:6])
""", "9dd4e4"),
    "ctypes": ("""
import ctypes
F = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
print(F(lambda x: x + 1)(4))
""", "5"),
    "alarm": ("""
import signal
def ring(*_):
    raise TimeoutError
signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    while True:
        x = 1
except TimeoutError:
    print("rang")
""", "rang"),
    "deep recursion": ("""
import sys, threading
sys.setrecursionlimit(10**6)
threading.stack_size(128 << 20)
def f(n):
    return n and 1 + f(n - 1)
t = threading.Thread(target=lambda: print(f(50_000)))
t.start()
t.join()
""", "50000"),
    "unittest": ("""
import unittest
class T(unittest.TestCase):
    def test(self):
        self.assertEqual(1, 1)
print(unittest.main(exit=False, argv=["x"]).result.wasSuccessful())
""", "True"),
    "compression": ("""
import bz2, lzma, zlib
print(all(m.decompress(m.compress(b"x" * 99)) == b"x" * 99 for m in (bz2, lzma, zlib)))
""", "True"),
    "randomness": ("""
import os, secrets, uuid
print(len(os.urandom(5) + secrets.token_bytes(5)), uuid.uuid4().version)
""", "10 4"),
    "help and exit": ("""
print(callable(help))
exit()
print("no")
""", "True"),
}  # fmt: skip
MISSING = {
    # What does not work, and why: no process but this, no writing, no network, nothing shared with others.
    "a process": ("import subprocess\nsubprocess.run(['true'])", "PermissionError"),
    "multiprocessing": ("import multiprocessing as m\nm.Process(target=print).start()", "PermissionError"),
    "a process's lock": ("import multiprocessing as m\nm.Lock()", "PermissionError"),
    "a file to write": ("open('out.txt', 'w')", "PermissionError"),
    "a temporary file": ("import tempfile\ntempfile.TemporaryFile()", "No usable temporary directory"),
    "the network": ("import socket\nsocket.create_connection(('127.0.0.1', 22))", "PermissionError"),
    "a larger stack by limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_STACK, (1 << 30, 1 << 30))",
        "PermissionError|not allowed",
    ),
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    try:
        sandbox = Sandbox(limits=PATIENT)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with sandbox:
        yield sandbox


@pytest.mark.parametrize("name", MODULES)
def test_modules(sandbox: Sandbox, name: str) -> None:
    result = sandbox.run("script", f"import {name}\nprint('in')")
    if b"ModuleNotFoundError" in result.stderr and not importable(name):
        pytest.skip(f"this Python was built without {name}")
    assert (result.stdout, result.stderr) == (b"in\n", b"")


def importable(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(sandbox: Sandbox, name: str) -> None:
    program, expected = PROGRAMS[name]
    result = sandbox.run("script", program)
    assert result.stdout.decode().strip() == expected, result


@pytest.mark.parametrize("name", MISSING)
def test_what_does_not_work_says_why(sandbox: Sandbox, name: str) -> None:
    program, word = MISSING[name]
    result = sandbox.run("script", program)
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 1)
    assert any(part in result.stderr.decode() for part in word.split("|")), result.stderr


NUMPY = """
import numpy as np
a = np.arange(10_000.0).reshape(100, 100)
print((a @ a).shape, float(np.linalg.inv(np.eye(3) * 2)[0, 0]), np.random.default_rng(0).integers(9))
"""


def test_numpy(sandbox: Sandbox) -> None:
    backend: Any = sandbox._backend
    version = ".".join(map(str, sys.version_info[:2]))
    if not getattr(backend, "facts", {"python": version})["python"].startswith(version):
        pytest.skip("the sandbox runs another Python than the one that numpy is installed for")
    result = sandbox.run("script", NUMPY)
    assert result.stdout.startswith(b"(100, 100) 0.5 "), result.stderr


def test_other_packages_are_not_there() -> None:
    try:
        sandbox = Sandbox(packages=())
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with sandbox:
        for name in ("numpy", "gymnasium", "art_gym", "pytest", "site_packages"):
            result = sandbox.run("script", f"import {name}")
            assert b"ModuleNotFoundError" in result.stderr
