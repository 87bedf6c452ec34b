"""What a process gives up before anybody else's code runs in it, and its children are born without."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys

from art_gym.envs.coding.sandbox.child.kernel import libc, make, prctl, prlimit_later, syscall

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CAPABILITY_VERSION = 0x2008_0522
_F_DUPFD = 0
# By number, not from the module `resource`: every library that is loaded makes every fork a little dearer.
CPU, FSIZE, CORE, NPROC, NOFILE, MEMLOCK, AS, SIGPENDING, MSGQUEUE = 0, 1, 4, 6, 7, 8, 9, 11, 12
"""The kinds of limits (asm-generic/resource.h)."""
LIMIT = struct.Struct("=QQ")
"""A limit as the kernel reads it (struct rlimit64): soft, hard."""
_PROCESSES = 4096
"""What a zygote with all its runs may have."""


class Refused(Exception):
    """The process could not be locked down, so it must not run anything."""


def unused_id(salt: int) -> int | None:
    """A user id that nobody has: a high one that this user namespace maps, another one for another salt.

    ``None`` where we are not root, or root in a namespace that has no other user: there is none to become.
    """
    with open("/proc/self/uid_map") as file:
        extents = [tuple(map(int, line.split())) for line in file]
    first, _, count = max(extents, key=lambda extent: extent[2])
    if os.geteuid() != 0 or sum(extent[2] for extent in extents) == 1:
        return None
    last = min(first + count, 2_000_000_000)
    return last - 1 - salt % max(1, min(count // 2, 1_000_000_000))


def give_up_rights(user: int | None, *, counted: bool) -> None:
    """Become nobody in particular: no privilege, no core files, nothing to gain from set-user-id programs.

    Args:
        user: The user and group to become; ``None`` to stay who we are.
        counted: As for ``Lockdown``.

    Raises:
        OSError: The kernel did not do it.
        Refused: It did not do all of it.
    """
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        if os.getresuid() != (user,) * 3 or os.getresgid() != (user,) * 3 or os.getgroups():
            raise Refused(f"still {os.getresuid()}, {os.getresgid()} after becoming {user}")
    _drop_capabilities()
    # No core file, and nobody but root may look into the process through /proc or ptrace.
    prctl("set dumpable", _PR_SET_DUMPABLE, 0)
    prctl("no new privileges", _PR_SET_NO_NEW_PRIVS, 1)
    most = {FSIZE: 0, CORE: 0, MEMLOCK: 0, MSGQUEUE: 0, SIGPENDING: 64}
    for kind, wanted in {**most, **({NPROC: _PROCESSES} if counted else {})}.items():
        least = min(wanted, hard_limit(kind))
        make([prlimit_later(kind, limit(least, least), None)])


def settle(descriptors: list[int]) -> None:
    """Put these descriptors to the places from 0 on, in this order, and close all others."""
    # First out of the way: a place may be taken by a descriptor whose turn has not come.
    high = [libc("fcntl", descriptor, _F_DUPFD, 64) for descriptor in descriptors]
    for place, descriptor in enumerate(high):
        os.dup2(descriptor, place)
    syscall("close_range", len(high), 0x7FFF_FFFF, 0)


def die_with_parent(parent: int) -> None:
    """Ask the kernel for a SIGKILL when the process that forked this one ends.

    Args:
        parent: The id of that process.

    Raises:
        Refused: It has ended already.
        OSError: The kernel did not do it.
    """
    prctl("set death signal", _PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise Refused("the process that forked this one has ended")


def limit(soft: int, hard: int) -> ctypes.Array[ctypes.c_char]:
    """A limit as the kernel reads it."""
    return ctypes.create_string_buffer(LIMIT.pack(soft, hard), LIMIT.size)


def hard_limit(kind: int) -> int:
    """The hard limit that somebody has set for us."""
    found = limit(0, 0)
    make([prlimit_later(kind, None, found)])
    return int(min(LIMIT.unpack(found)[1], sys.maxsize))


def _drop_capabilities() -> None:
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    libc("capset", header, bytes(24))
    sets = ctypes.create_string_buffer(24)
    libc("capget", header, ctypes.addressof(sets))
    if any(sets.raw):
        raise Refused("capabilities are left after dropping all")
