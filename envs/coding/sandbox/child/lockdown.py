"""Lock a process down for good: drop privileges, set limits, enter Landlock and the system call filter."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
from collections.abc import Callable

from art_gym.envs.coding.sandbox.child import landlock
from art_gym.envs.coding.sandbox.child.kernel import (
    libc,
    make,
    prctl,
    prctl_later,
    prlimit_later,
    syscall,
    syscall_later,
)
from art_gym.envs.coding.sandbox.child.seccomp import Filter

_FILES, _KEPT = 32, 5
_THREADS = 128
"""The kernel counts threads per user, so runs at one time share this limit; a zygote has a higher one, or a
run with many threads would keep it from forking others."""
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_GET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 21, 38
_CAPABILITY_VERSION = 0x2008_0522
_F_DUPFD = 0
# By number, not from the module `resource`: every library that is loaded makes every fork a little dearer.
CPU, FSIZE, CORE, NPROC, NOFILE, MEMLOCK, AS, SIGPENDING, MSGQUEUE = 0, 1, 4, 6, 7, 8, 9, 11, 12
"""The kinds of limits (asm-generic/resource.h)."""
LIMIT = struct.Struct("=QQ")
"""A limit as the kernel reads it (struct rlimit64): soft, hard."""
_PROCESSES = 4096
"""What a zygote with all its runs may have."""


class PrivilegeError(Exception):
    """The process could not be locked down, so it must not run anything."""


def unused_id(salt: int) -> int | None:
    """A user id that nobody has: a high one that this user namespace maps, another one for another salt.

    ``None`` if we are not root, or root in a namespace that has no other user: there is none to become.
    """
    if os.geteuid() != 0:
        return None
    with open("/proc/self/uid_map") as file:
        extents = [tuple(map(int, line.split())) for line in file]
    first, _, count = max(extents, key=lambda extent: extent[2])
    if sum(extent[2] for extent in extents) == 1:
        return None
    last = min(first + count, 2_000_000_000)
    return last - 1 - salt % max(1, min(count // 2, 1_000_000_000))


def drop_privileges(user: int | None, *, counted: bool) -> None:
    """Drop all privileges: no capability, no core files, nothing to gain from set-user-id programs.

    Args:
        user: The user and group to become; ``None`` to stay who we are.
        counted: As for ``Lockdown``.

    Raises:
        OSError: The kernel did not do it.
        PrivilegeError: It did not do all of it.
    """
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        if os.getresuid() != (user,) * 3 or os.getresgid() != (user,) * 3 or os.getgroups():
            raise PrivilegeError(f"still {os.getresuid()}, {os.getresgid()} after becoming {user}")
    _drop_capabilities()
    # No core file, and only root may look into the process through /proc or ptrace.
    prctl("set dumpable", _PR_SET_DUMPABLE, 0)
    prctl("no new privileges", _PR_SET_NO_NEW_PRIVS, 1)
    most = {FSIZE: 0, CORE: 0, MEMLOCK: 0, MSGQUEUE: 0, SIGPENDING: 64}
    for kind, wanted in {**most, **({NPROC: _PROCESSES} if counted else {})}.items():
        least = min(wanted, hard_limit(kind))
        make([prlimit_later(kind, limit(least, least), None)])


def place_descriptors(descriptors: list[int]) -> None:
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
        PrivilegeError: It has ended already.
        OSError: The kernel did not do it.
    """
    prctl("set death signal", _PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise PrivilegeError("the process that forked this one has ended")


def limit(soft: int, hard: int) -> ctypes.Array[ctypes.c_char]:
    """A limit as the kernel reads it."""
    return ctypes.create_string_buffer(LIMIT.pack(soft, hard), LIMIT.size)


def hard_limit(kind: int) -> int:
    """The hard limit of this process."""
    found = limit(0, 0)
    make([prlimit_later(kind, None, found)])
    return int(min(LIMIT.unpack(found)[1], sys.maxsize))


def _drop_capabilities() -> None:
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    libc("capset", header, bytes(24))
    sets = ctypes.create_string_buffer(24)
    libc("capget", header, ctypes.addressof(sets))
    if any(sets.raw):
        raise PrivilegeError("capabilities are left after dropping all")


class Lockdown:
    """What every run does to itself, prepared in the zygote so that a child has little to do.

    (Every page of memory that a child writes to costs it a copy, and Python writes to whatever it touches. So
    it makes a list of calls that are ready, in one function.)

    Args:
        syscalls: The filter of system calls; ``None`` only if a container isolates the process.
        scoped: Whether each run gets a Landlock domain of its own.
        parent: The process that forks the runs.
        counted: Whether the kernel counts our threads apart from others, so that it can limit them. It counts
            by user and user namespace; the limit would else be one on all threads of our user.

    Raises:
        OSError: The kernel does not have what it takes.
    """

    def __init__(self, syscalls: Filter | None, *, scoped: bool, parent: int, counted: bool) -> None:
        self._syscalls, self._parent = syscalls, parent
        self._most_memory, self._most_cpu = hard_limit(AS), hard_limit(CPU)
        self._memory, self._cpu = limit(0, 0), limit(0, 0)
        scope = landlock.scope() if scoped else None
        self._calls = [
            prctl_later("set death signal", _PR_SET_PDEATHSIG, signal.SIGKILL),
            *([] if scope is None else [landlock.restrict_later(scope)]),
            prlimit_later(AS, self._memory, None),
            prlimit_later(CPU, self._cpu, None),
            prlimit_later(NOFILE, limit(_FILES, _FILES), None),
            *([prlimit_later(NPROC, limit(_THREADS, _THREADS), None)] if counted else []),
            # What belongs to the zygote or to another run; the standard streams and the channel are left.
            syscall_later("close_range", _KEPT, 0x7FFF_FFFF, 0),
            *([] if syscalls is None else [syscalls.install_later()]),
        ]

    def prepare(self, cpu_seconds: int, memory_bytes: int) -> None:
        """Set what the next child limits itself to; for its parent to do, before the fork.

        Args:
            cpu_seconds: Whole seconds, as the kernel counts; rounded up by the parent.
            memory_bytes: Of address space.
        """
        memory = min(memory_bytes, self._most_memory)
        LIMIT.pack_into(self._memory, 0, memory, memory)
        # SIGXCPU at the limit can be ignored; SIGKILL a second later cannot.
        cpu = min(cpu_seconds, self._most_cpu)
        LIMIT.pack_into(self._cpu, 0, cpu, min(cpu + 1, self._most_cpu))

    def ready(self) -> Callable[[], None]:
        """The function that gives up everything that a program has no need of, for good.

        It raises ``OSError`` if a step failed, and ``PrivilegeError`` if the filter does not hold or the
        zygote has ended; nothing may be run then.
        """
        syscalls, calls, parent = self._syscalls, self._calls, self._parent
        _, get_seccomp, arguments = prctl_later("get seccomp", _PR_GET_SECCOMP)

        def apply() -> None:
            if syscalls is not None:
                syscalls.set_pid(os.getpid())
            make(calls)
            if os.getppid() != parent:
                raise PrivilegeError("the process that forked this one has ended")
            # Proof that the filter holds: this call is allowed by everything else.
            if syscalls is not None and get_seccomp(*arguments) >= 0:
                raise PrivilegeError("the filter of system calls is installed, but does not hold")

        return apply
