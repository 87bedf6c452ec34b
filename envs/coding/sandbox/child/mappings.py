"""Fewer mappings of memory, so that a fork takes less time: the kernel copies each one, and later ends it.

The loader makes five mappings of every shared library: headers, code, constants, what is constant once it is
linked, and variables. The kernel joins neighbours of one file that have the same rights; so headers and
constants get the code's, and what is linked gets that of the variables, and two are left. No wall is lower
for it: these rights are about a process and its own memory, and a program may change them as it likes.
"""

from __future__ import annotations

import contextlib
import re
from typing import NamedTuple

from art_gym.envs.coding.sandbox.child.kernel import Failed, libc

_MAPS = "/proc/self/maps"
_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) \S+ \d+ +(/.*)")
_READ, _WRITE, _EXECUTE = 1, 2, 4


class _Mapping(NamedTuple):
    start: int
    end: int
    rights: str
    file: str


def join() -> None:
    """Join the mappings of each file that is mapped with code in it; those that cannot be are left alone."""
    for group in _libraries():
        for mapping, following in zip(group, [*group[1:], None], strict=True):
            if mapping.rights != "r--p":
                continue
            # Between constants and variables lies what the loader has written to and then closed.
            linked = following is not None and following.rights == "rw-p" and following.start == mapping.end
            _allow(mapping, _READ | (_WRITE if linked else _EXECUTE))


def _libraries() -> list[list[_Mapping]]:
    """By file that has code, its mappings in the order of their addresses."""
    found: dict[str, list[_Mapping]] = {}
    with open(_MAPS) as file:
        for match in filter(None, map(_LINE.match, file)):
            start, end, rights, _, path = match.groups()
            found.setdefault(path, []).append(_Mapping(int(start, 16), int(end, 16), rights, path))
    return [group for group in found.values() if any(mapping.rights == "r-xp" for mapping in group)]


def _allow(mapping: _Mapping, rights: int) -> None:
    # Where a kernel's own rules forbid it, a fork just takes its time.
    with contextlib.suppress(Failed):
        libc("mprotect", mapping.start, mapping.end - mapping.start, rights)
