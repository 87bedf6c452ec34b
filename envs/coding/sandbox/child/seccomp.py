"""The seccomp filter: an allow-list of system calls that the kernel enforces.

Written by hand since libseccomp is not everywhere, and since a list of a hundred lines is easier to review
than what a library makes of it. A filter is a program of the classic BPF machine over one ``seccomp_data``:
the call's number, the architecture, and six arguments of 64 bits (linux/seccomp.h).

What is not listed fails with ``EPERM``, as if the user lacked the right. A few that the C library tries first
fail with ``ENOSYS``, so that it takes the older way. A call in the numbering of another architecture (32-bit
``int 0x80`` on x86-64) kills the process: the numbers mean something else there. Calls of the x32 kind carry
bit 30 in their number, so that no listed number matches them.

It comes in two parts, as installing one takes time by its length (the kernel checks and translates it, and
tries every call that there is on it). The shared part is the whole list, with what it takes to fork a run and
to lock it down besides; a zygote installs it once and every run is born with it. The run's own part takes
those few away, and lets signals go to its own id only. Of two filters the kernel does what the stricter says.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import NamedTuple

from art_gym.envs.coding.sandbox.child.kernel import Call, SystemCallError, prctl, prctl_later

EPERM, EACCES, EAFNOSUPPORT, ENOSYS = 1, 13, 97, 38

_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
# BPF: ld [k]; jeq #k; jgt #k; ja; and #k; ret #k
_LOAD, _EQUAL, _GREATER, _JUMP, _AND, _RETURN = 0x20, 0x15, 0x25, 0x05, 0x54, 0x06
_GROUP = 8
_MODE_FILTER = 22, 2  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in seccomp_data
_OWN_PID = 0x0BADC0DE
"""Stands for the process's own id until it is known."""

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Columns: the call, its number on x86-64, on aarch64 (-1: not there).
_NUMBERS_TEXT = """
read 0 63            write 1 64            readv 19 65           writev 20 66
pread64 17 67        close 3 57            close_range 436 436   lseek 8 62
fstat 5 80           stat 4 -1             lstat 6 -1            newfstatat 262 79
statx 332 291        access 21 -1          faccessat 269 48      faccessat2 439 439
readlink 89 -1       readlinkat 267 78     getcwd 79 17          getdents64 217 61
open 2 -1            openat 257 56         openat2 437 437       umask 95 166
dup 32 23            dup2 33 -1            dup3 292 24           fcntl 72 25
ioctl 16 29          pipe 22 -1            pipe2 293 59          poll 7 -1
ppoll 271 73         select 23 -1          pselect6 270 72       eventfd2 290 19
epoll_create1 291 20 epoll_ctl 233 21      epoll_wait 232 -1     epoll_pwait 281 22
epoll_pwait2 441 441 socketpair 53 199     sendto 44 206         recvfrom 45 207
getsockname 51 204   getsockopt 55 209
mmap 9 222           munmap 11 215         mremap 25 216         mprotect 10 226
brk 12 214           madvise 28 233        membarrier 324 283    mincore 27 232
rt_sigaction 13 134  rt_sigprocmask 14 135 rt_sigreturn 15 139   rt_sigpending 127 136
rt_sigtimedwait 128 137 rt_sigsuspend 130 133 sigaltstack 131 132 pause 34 -1
alarm 37 -1          setitimer 38 103      getitimer 36 102      kill 62 129
tgkill 234 131       clone 56 220          clone3 435 435        futex 202 98
set_robust_list 273 99 rseq 334 293        set_tid_address 218 96 sched_yield 24 124
sched_getaffinity 204 123 getcpu 309 168   exit 60 93            exit_group 231 94
restart_syscall 219 128 clock_gettime 228 113 clock_getres 229 114 clock_nanosleep 230 115
nanosleep 35 101     gettimeofday 96 169   time 201 -1           times 100 153
getrusage 98 165     prlimit64 302 261     getrlimit 97 163      getrandom 318 278
getpid 39 172        gettid 186 178        getppid 110 173       getpgrp 111 -1
getuid 102 174       geteuid 107 175       getgid 104 176        getegid 108 177
getresuid 118 148    getresgid 120 150     getgroups 115 158     uname 63 160
sysinfo 99 179
"""
_MAKING_A_RUN = """
fork 57 -1           wait4 61 260          recvmsg 47 212        pidfd_open 434 434
pidfd_send_signal 424 424 setsid 112 157   prctl 157 167         landlock_restrict_self 446 446
"""
"""What else a zygote does, and a run before it installs its own part of the filter."""

_UNLISTED_FAIL_AS_MISSING = ("clone3", "openat2", "epoll_pwait2")
"""The C library knows older calls that do the same; of these the filter could not see the flags."""

_THREAD = 0x00010F00  # CLONE_VM, _FS, _FILES, _SIGHAND, _THREAD: all of them is a thread; fewer, a process
_THREAD_MAY = 0x007D0F00  # and these besides: _SYSVSEM, _SETTLS, _PARENT_SETTID, _CHILD_CLEARTID, _DETACHED
_FORK_MAY = 0x012000FF  # CLONE_CHILD_SETTID, _CHILD_CLEARTID, and the signal at its end
_WRITING = 0o3 | 0o100 | 0o1000 | 0o20000000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, __O_TMPFILE
_FCNTL = (0, 1, 2, 3, 4, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIO(N)CLEX
_AF_UNIX = 1


class Check(NamedTuple):
    """A condition on one argument of a call: ``argument & mask`` is one of ``values``, each below 2**32.

    The mask is of 32 bits if the kernel itself looks at no more of the argument.
    """

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFF_FFFF_FFFF_FFFF
    otherwise: int = EPERM
    """The error if it does not hold."""


CHECKS: dict[str, tuple[Check, ...]] = {
    # A zygote forks; no process makes a namespace or shares memory with another process.
    "clone": (Check(0, (0,), mask=0xFFFF_FFFF_FFFF_FFFF & ~(_THREAD_MAY | _FORK_MAY)),),
    # Its own limits only: a run sets them.
    "prlimit64": (Check(0, (0,), mask=0xFFFF_FFFF),),
    # Reading only, whatever the path, in case neither Landlock nor the mount namespace were to hold.
    "open": (Check(1, (0,), mask=_WRITING, otherwise=EACCES),),
    "openat": (Check(2, (0,), mask=_WRITING, otherwise=EACCES),),
    # Without F_SETOWN and F_SETSIG, which send any signal to any process; and without F_SETPIPE_SZ.
    "fcntl": (Check(1, _FCNTL, mask=0xFFFF_FFFF),),
    # Without TIOCSTI (typing into the user's terminal), FIOSETOWN, device and mount ioctls.
    "ioctl": (Check(1, _IOCTL, mask=0xFFFF_FFFF, otherwise=25),),
    # asyncio wakes itself by a pair of sockets, which reach no other process; sendto could name an address.
    "socketpair": (Check(0, (_AF_UNIX,), mask=0xFFFF_FFFF, otherwise=EAFNOSUPPORT),),
    "sendto": (Check(4, (0,)),),
}
"""The calls that the shared part allows only with some arguments."""
OWN_CHECKS: dict[str, tuple[Check, ...]] = {
    # Threads, never a process: no fork bomb, nothing outlives the run, and no cgroup is needed to kill it.
    "clone": (Check(0, (_THREAD,), mask=_THREAD), Check(0, (0,), mask=0xFFFF_FFFF & ~_THREAD_MAY)),
    # Signals to itself only (raise, abort, timers); the id is the child's own, filled in per run.
    "kill": (Check(0, (_OWN_PID,), mask=0xFFFF_FFFF),),
    "tgkill": (Check(0, (_OWN_PID,), mask=0xFFFF_FFFF),),
    # Reading limits; setting them only fails with the message that people expect.
    "prlimit64": (Check(2, (0,)),),
}
"""Further conditions in a run's own part."""


def numbers(machine: str) -> dict[str, int]:
    """The listed calls and their numbers on an architecture.

    Raises:
        SystemCallError: The list does not name the architecture.
    """
    return _table(machine, _NUMBERS_TEXT)


def supported(machine: str) -> bool:
    """Whether there is a list for the architecture."""
    return machine in _AUDIT_ARCH


class Filter:
    """The filter for one architecture, made once; the process's id is put in when it is installed.

    Raises:
        SystemCallError: There is no list for the architecture.
    """

    def __init__(self, machine: str) -> None:
        shared = _shared(machine)
        own = _own(machine)
        self._shared, self._own = _Program(shared), _Program(own)
        self._words = memoryview(self._own.code).cast("B").cast("I")
        self._places = [2 * i + 1 for i, (*_, k) in enumerate(own) if k == _OWN_PID]

    def programs(self, pid: int) -> tuple[bytes, bytes]:
        """The shared part and that of the process ``pid``: instructions of eight bytes each."""
        self.set_pid(pid)
        return self._shared.code.raw, self._own.code.raw

    def install_shared(self) -> None:
        """Bind this process and all that it forks to the shared part, for good.

        Raises:
            SystemCallError: The kernel did not take it, or it does not hold.
        """
        prctl("seccomp", *_MODE_FILTER, self._shared.address)
        try:
            os.getsid(0)  # on no list, and allowed by everything else
        except PermissionError:
            return
        raise SystemCallError(EPERM, "the filter of system calls is installed, but does not hold")

    def set_pid(self, pid: int) -> None:
        """Make the next part that is installed that of the process ``pid``."""
        for place in self._places:
            self._words[place] = pid

    def install_later(self) -> Call:
        """The call that binds a process, all that it becomes and all its threads to its own part too."""
        return prctl_later("seccomp", *_MODE_FILTER, self._own.address)


_Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, k


class _Program:
    """A program as the kernel wants it: a length, and the address of the instructions."""

    def __init__(self, instructions: list[_Instruction]) -> None:
        code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
        self.code = ctypes.create_string_buffer(code, len(code))
        header = struct.pack("@HP", len(instructions), ctypes.addressof(self.code))  # struct sock_fprog
        self._header = ctypes.create_string_buffer(header, len(header))
        self.address = ctypes.addressof(self._header)


def _table(machine: str, text: str) -> dict[str, int]:
    if machine not in _AUDIT_ARCH:
        raise SystemCallError(
            ENOSYS, f"seccomp: the filter is written for {', '.join(_AUDIT_ARCH)}, not for {machine}"
        )
    words = text.split()
    column = 1 if machine == "x86_64" else 2
    table = {words[i]: int(words[i + column]) for i in range(0, len(words), 3)}
    return {name: number for name, number in table.items() if number >= 0}


def _shared(machine: str) -> list[_Instruction]:
    known = {**numbers(machine), **_table(machine, _MAKING_A_RUN)}
    program = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    # By number, in small groups of which all but one are jumped over.
    calls = sorted((number, name) for name, number in known.items())
    for start in range(0, len(calls), _GROUP):
        group = calls[start : start + _GROUP]
        body: list[_Instruction] = []
        for number, name in group:
            verdict = _verdict(name, CHECKS)
            # A jump that does not match goes over the verdict, which always returns.
            body += [(_EQUAL, 0, len(verdict), number), *verdict]
        body.append((_RETURN, 0, 0, _ERRNO | EPERM))
        program += [(_GREATER, 0, 1, group[-1][0]), (_JUMP, 0, 0, len(body)), *body]
    return [*program, (_RETURN, 0, 0, _ERRNO | EPERM)]


def _own(machine: str) -> list[_Instruction]:
    # It need not look at the architecture: if that is another, the shared part kills.
    known = numbers(machine)
    program = [(_LOAD, 0, 0, _NUMBER)]
    for name in OWN_CHECKS:
        verdict = _verdict(name, OWN_CHECKS)
        program += [(_EQUAL, 0, len(verdict), known[name]), *verdict]
    refused = sorted(_table(machine, _MAKING_A_RUN).values())
    program += [(_EQUAL, len(refused) - i, 0, number) for i, number in enumerate(refused)]
    return [*program, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | EPERM)]


def _verdict(name: str, checks: dict[str, tuple[Check, ...]]) -> list[_Instruction]:
    """What to do with a call, once it is known to be this one."""
    if name in _UNLISTED_FAIL_AS_MISSING:
        return [(_RETURN, 0, 0, _ERRNO | ENOSYS)]
    program: list[_Instruction] = []
    for check in checks.get(name, ()):
        # The low word comes first: both architectures are little-endian.
        low = _ARGUMENTS + 8 * check.argument
        if check.mask >> 32:
            program += _compare(low + 4, check.mask >> 32, (0,), check.otherwise)
        program += _compare(low, check.mask & 0xFFFF_FFFF, check.values, check.otherwise)
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _compare(offset: int, mask: int, values: tuple[int, ...], otherwise: int) -> list[_Instruction]:
    """Continue after this if the word at ``offset`` under ``mask`` is one of ``values``, else fail."""
    masked = [] if mask == 0xFFFF_FFFF else [(_AND, 0, 0, mask)]
    tests = [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [(_LOAD, 0, 0, offset), *masked, *tests, (_RETURN, 0, 0, _ERRNO | otherwise)]
