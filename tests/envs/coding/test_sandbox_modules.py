"""What of Python works inside: the standard library, threads, numpy; and what does not, and why."""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from art_gym.envs.coding.sandbox import Limits, Outcome, Sandbox
from tests.envs.coding.sandboxes import opened

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
PROGRAMS = tomllib.loads(Path(__file__).with_name("programs.toml").read_text("utf-8"))


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with opened(limits=PATIENT) as sandbox:
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


@pytest.mark.parametrize("name", PROGRAMS["works"])
def test_what_works(sandbox: Sandbox, name: str) -> None:
    program = PROGRAMS["works"][name]
    result = sandbox.run("script", program["program"])
    assert (result.stdout.decode().strip(), result.ok) == (program["prints"], True), result


@pytest.mark.parametrize("name", PROGRAMS["fails"])
def test_what_does_not_work_says_why(sandbox: Sandbox, name: str) -> None:
    program = PROGRAMS["fails"][name]
    result = sandbox.run("script", program["program"])
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 1)
    assert any(part in result.stderr.decode() for part in program["says"].split("|")), result.stderr


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


def test_other_packages_are_not_there(sandbox: Sandbox) -> None:
    for name in ("gymnasium", "art_gym", "pytest", "site_packages"):
        result = sandbox.run("script", f"import {name}")
        assert b"ModuleNotFoundError" in result.stderr
