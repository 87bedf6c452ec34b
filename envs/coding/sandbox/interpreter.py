"""Find the interpreter that runs the programs, and the directories that it needs to read."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OLDEST = (3, 11)
ENVIRONMENT = {
    # All that the zygote's environment holds: constants, nothing of the user's.
    "PYTHONHASHSEED": "0",  # sets of strings have one order: a run can be repeated
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "MALLOC_ARENA_MAX": "1",  # else every thread reserves address space that the limit counts
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "LD_BIND_NOW": "1",  # what a library calls is looked up once, not again in every run
}
FLAGS = ("-s", "-S", "-P", "-B")
"""Isolated as by ``-I``, but that would ignore the hash seed; there are no other variables to ignore."""

_ASK = """
import ctypes, importlib, json, sys, sysconfig
for name in sys.argv[1].split():
    try: importlib.import_module(name)
    except ImportError: pass
for name in sys.argv[2].split():
    try: ctypes.CDLL(name)
    except OSError: pass
with open("/proc/self/maps") as maps:
    mapped = {line.split(None, 5)[-1].strip() for line in maps if ".so" in line}
paths = sysconfig.get_paths()
print(json.dumps([list(sys.version_info[:2]), paths["stdlib"], paths["platstdlib"], paths["purelib"],
                  paths["platlib"], sorted(path for path in mapped if path.startswith("/"))]))
"""
"""Asks an interpreter for its version, directories, and the shared libraries that it may load."""
_MODULES = "_bz2 _ctypes _curses _dbm _decimal _gdbm _hashlib _lzma _sqlite3 _ssl _uuid pyexpat readline zlib"
"""Of the standard library, what needs shared libraries of the system."""
_LIBRARIES = "libgcc_s.so.1 libstdc++.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 libutil.so.1"
"""What compiled packages need, and threads that end early."""
_OFFERED = ("numpy",)  # what programs may import besides the standard library
_SYSTEM = ("/usr/bin/python3", "/usr/local/bin/python3")


@dataclass(frozen=True)
class Interpreter:
    """A Python and where it keeps its standard library."""

    path: str
    version: tuple[int, int]
    library: tuple[str, ...]
    """Directories of the standard library, by their real paths."""
    hidden: tuple[str, ...]
    """Directories in those that hold installed packages, which programs must not see."""
    shared: tuple[str, ...]
    """Shared libraries outside of those directories that the standard library's modules load, real paths."""

    def readable(self) -> list[str]:
        """The library's files and directories, without the installed packages."""
        return [path for directory in self.library for path in _without(directory, self.hidden)]

    def links(self) -> dict[str, str]:
        """Symbolic links by which the loader finds the shared libraries: path → what it leads to."""
        found = {path: os.readlink(path) for path in ("/lib", "/lib64") if os.path.islink(path)}
        # The program names its loader by a path under /lib64 or /lib, whatever that leads to.
        directories = {os.path.dirname(file) for file in self.shared} | {
            os.path.realpath(path) for path in found
        }
        for directory in directories:
            with os.scandir(directory) as entries:
                links = [entry.path for entry in entries if entry.is_symlink()]
            found |= {link: file for link in links if (file := os.path.realpath(link)) in self.shared}
        return found

    @property
    def public(self) -> bool:
        """Whether any user may reach the standard library; a private home does not let others through."""
        places = {place for path in self.library for place in (Path(path), *Path(path).parents)}
        return all(place.stat().st_mode & 0o001 for place in places)


def interpreters() -> list[Interpreter]:
    """The interpreters to try, best first.

    These are the one that runs us, so that programs meet the same Python, then the system's.
    """
    own = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    found = [ask(path) for path in dict.fromkeys([own, *map(os.path.realpath, _SYSTEM)])]
    return [interpreter for interpreter in found if interpreter and interpreter.version >= OLDEST]


@functools.cache
def ask(path: str) -> Interpreter | None:
    """What there is to know about the Python at a path; ``None`` if it does not run."""
    try:
        command = [path, *FLAGS, "-c", _ASK, _MODULES, _LIBRARIES]
        answer = subprocess.run(
            command, env=ENVIRONMENT, capture_output=True, timeout=30, check=True, cwd="/"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version, *directories, mapped = json.loads(answer.stdout)
    library = dict.fromkeys(os.path.realpath(directory) for directory in directories[:2])
    packages = [os.path.join(d, name) for d in library for name in ("site-packages", "dist-packages")]
    hidden = dict.fromkeys([*map(os.path.realpath, directories[2:]), *packages])
    inside = [d for d in hidden if os.path.isdir(d) and any(d.startswith(f"{outer}/") for outer in library)]
    shared = [file for file in mapped if not any(file.startswith(f"{outer}/") for outer in library)]
    return Interpreter(path, tuple(version), tuple(library), tuple(inside), tuple(shared))


def places(interpreter: Interpreter) -> dict[str, tuple[str, ...]]:
    """Directories of those of the offered packages that are installed here for the same version of Python."""
    if interpreter.version != sys.version_info[:2]:
        return {}
    found = {}
    for name in _OFFERED:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin and spec.submodule_search_locations:
            directory = os.path.dirname(os.path.realpath(spec.origin))
            # Wheels keep the shared libraries of `numpy` in `numpy.libs` beside it.
            found[name] = tuple(d for d in (directory, f"{directory}.libs") if os.path.isdir(d))
    return found


def _without(directory: str, hidden: Sequence[str]) -> list[str]:
    """Paths that together hold all of a directory but these."""
    if directory in hidden:
        return []
    if not any(path.startswith(f"{directory}/") for path in hidden):
        return [directory]
    children = [os.path.join(directory, name) for name in sorted(os.listdir(directory))]
    return [path for child in children for path in _without(child, hidden)]
