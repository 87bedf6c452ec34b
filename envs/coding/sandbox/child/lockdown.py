"""What every run does to itself before anybody else's code runs in it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from art_gym.envs.coding.sandbox.child import landlock
from art_gym.envs.coding.sandbox.child.kernel import make, prctl_later, prlimit_later, syscall_later
from art_gym.envs.coding.sandbox.child.rights import (
    AS,
    CPU,
    LIMIT,
    NOFILE,
    NPROC,
    Refused,
    hard_limit,
    limit,
)
from art_gym.envs.coding.sandbox.child.seccomp import Filter

_PR_SET_PDEATHSIG, _PR_GET_SECCOMP = 1, 21
_FILES, _KEPT = 32, 5
_THREADS = 128
"""The kernel counts threads per user, so runs at one time share this limit; a zygote has a higher one, or a
run with many threads would keep it from forking others."""


class Lockdown:
    """What every run does to itself, prepared in the zygote so that a child has little to do.

    (Every page of memory that a child writes to costs it a copy, and Python writes to whatever it touches. So
    it makes a list of calls that are ready, in one function.)

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

        It raises ``OSError`` where a step failed, and ``Refused`` where the filter does not hold or the
        zygote has ended; nothing may be run then.
        """
        syscalls, calls, parent = self._syscalls, self._calls, self._parent
        _, get_seccomp, arguments = prctl_later("get seccomp", _PR_GET_SECCOMP)

        def apply() -> None:
            if syscalls is not None:
                syscalls.belong_to(os.getpid())
            make(calls)
            if os.getppid() != parent:
                raise Refused("the process that forked this one has ended")
            # Proof that the filter holds: this call is allowed by everything else.
            if syscalls is not None and get_seccomp(*arguments) >= 0:
                raise Refused("the filter of system calls is installed, but does not hold")

        return apply
