"""What a process gives up before anybody else's code runs in it.

In two parts, since a run pays for the second only. ``give_up_rights`` is for the zygote, whose children are
born without them. ``lock_down`` is for each child: its own limits, its own scope, and last the filter of
system calls, which forbids all that went before.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import struct
import sys

from art_gym.envs.coding.sandbox.child import landlock
from art_gym.envs.coding.sandbox.child.kernel import libc, prctl, succeeds, syscall
from art_gym.envs.coding.sandbox.child.seccomp import Filter

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_GET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 21, 38
_CAPABILITY_VERSION = 0x2008_0522
_FILES, _KEPT = 32, 5
_THREADS, _PROCESSES = 128, 4096
"""What a run may have, and what a zygote with all its runs.

The kernel counts both per user, so runs at one time share the first; a zygote needs more, or a run with many
threads would keep it from forking others.
"""


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
    for kind, most in {
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 64,
        **({resource.RLIMIT_NPROC: _PROCESSES} if counted else {}),
    }.items():
        limit = min(most, _most(kind))
        resource.setrlimit(kind, (limit, limit))


def settle(descriptors: list[int]) -> None:
    """Put these descriptors to the places from 0 on, in this order, and close all others."""
    # First out of the way: a place may be taken by a descriptor whose turn has not come.
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in descriptors]
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


class Lockdown:
    """What every run does to itself, prepared in the zygote so that a child has little to do.

    (Every page of memory that a child writes to costs it a copy, and Python writes to whatever it touches.)

    Args:
        syscalls: The filter of system calls; ``None`` only where a fresh process has other walls around it.
        scoped: Whether each run gets a Landlock domain of its own.
        parent: The process that forks the runs.
        counted: Whether the kernel counts our threads apart from others, so that it can limit them. It counts
            by user and user namespace; the limit would else be one on all threads of our user.

    Raises:
        OSError: The kernel does not have what it takes.
    """

    def __init__(self, syscalls: Filter | None, *, scoped: bool, parent: int, counted: bool) -> None:
        self._syscalls, self._parent, self._counted = syscalls, parent, counted
        self._scope = landlock.scope() if scoped else None
        self._most_memory = _most(resource.RLIMIT_AS)
        self._most_cpu = _most(resource.RLIMIT_CPU)

    def apply(self, cpu_seconds: int, memory_bytes: int) -> None:
        """Give up everything that a program has no need of, for good.

        Args:
            cpu_seconds: Whole seconds, as the kernel counts; rounded up by the parent.
            memory_bytes: Of address space.

        Raises:
            OSError: A step failed; nothing may be run.
            Refused: The filter does not hold.
        """
        die_with_parent(self._parent)
        if self._scope is not None:
            landlock.restrict(self._scope)
        memory = min(memory_bytes, self._most_memory)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        # SIGXCPU at the limit can be ignored; SIGKILL a second later cannot.
        cpu = min(cpu_seconds, self._most_cpu)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, min(cpu + 1, self._most_cpu)))
        resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
        if self._counted:
            resource.setrlimit(resource.RLIMIT_NPROC, (_THREADS, _THREADS))
        # What belongs to the zygote or to another run; the standard streams and the channel are left.
        syscall("close_range", _KEPT, 0x7FFF_FFFF, 0)
        if self._syscalls is not None:
            self._syscalls.install(os.getpid())
            # Proof that it holds: this call is allowed by everything but the filter.
            if succeeds(_PR_GET_SECCOMP):
                raise Refused("the filter of system calls is installed, but does not hold")


def _most(kind: int) -> int:
    """The hard limit that somebody has set for us."""
    _, hard = resource.getrlimit(kind)
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _drop_capabilities() -> None:
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    libc("capset", header, bytes(24))
    sets = ctypes.create_string_buffer(24)
    libc("capget", header, ctypes.addressof(sets))
    if any(sets.raw):
        raise Refused("capabilities are left after dropping all")
