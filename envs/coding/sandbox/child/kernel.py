"""System calls that Python has no function for, through ctypes."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Sequence
from typing import Any

MACHINE = platform.machine()
"""The architecture's name as the kernel gives it."""

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
NUMBERS = {
    # Calls added since Linux 5.0 have one number on all architectures.
    "open_tree": 428,
    "move_mount": 429,
    "close_range": 436,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
    **({"pivot_root": _PIVOT_ROOT[MACHINE]} if MACHINE in _PIVOT_ROOT else {}),
}
"""System calls that the C library may not have under their names yet."""

_libc = ctypes.CDLL(None, use_errno=True)
if sys.platform == "linux":
    # Whole registers: an int passed as 32 bits would leave the upper half to chance.
    _libc.syscall.argtypes = [ctypes.c_long] * 7
    _libc.syscall.restype = ctypes.c_long
    _libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    _libc.prlimit.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]


class SystemCallError(OSError):
    """A call to the kernel failed; the message names the call."""


def syscall(name: str, *arguments: int | bytes | None) -> int:
    """Call the kernel. Bytes are passed by their address; the kernel may write to none of them.

    Raises:
        SystemCallError: The kernel refused, or does not know the call.
    """
    return make([syscall_later(name, *arguments)])


def prctl(name: str, option: int, *arguments: int) -> int:
    """Call ``prctl`` with all five arguments, as the kernel wants for some options.

    Raises:
        SystemCallError: The kernel refused.
    """
    return make([prctl_later(name, option, *arguments)])


_LARGE = 100_000  # for this the C library sorts what is free; more, and it would ask the kernel
Call = tuple[str, Callable[..., int], tuple[Any, ...]]
"""A call with all its arguments: its name, the C library's function, and what that gets."""


def syscall_later(name: str, *arguments: int | bytes | None) -> Call:
    """A system call for ``make``; bytes must be kept by the caller until then.

    Raises:
        SystemCallError: Its number is not known.
    """
    if name not in NUMBERS or sys.platform != "linux":
        raise SystemCallError(38, f"{name}: its number is not known for {MACHINE}")
    words = [_word(argument) for argument in arguments]
    return name, _libc.syscall, (NUMBERS[name], *words, *[0] * (6 - len(words)))


def prctl_later(name: str, option: int, *arguments: int) -> Call:
    """A call of ``prctl`` for ``make``."""
    return name, _libc.prctl, (option, *arguments, *[0] * (4 - len(arguments)))


def prlimit_later(
    kind: int, new: ctypes.Array[ctypes.c_char] | None, old: ctypes.Array[ctypes.c_char] | None
) -> Call:
    """A call of ``prlimit`` for ``make``: sets a limit of this process, puts the one before into ``old``."""
    return f"limit {kind}", _libc.prlimit, (0, kind, new, old)


def make(calls: Sequence[Call]) -> int:
    """Make these calls, one after the other; return what the last one did.

    Raises:
        SystemCallError: The kernel refused one; those after it were not made.
    """
    result = 0
    for name, function, arguments in calls:
        result = function(*arguments)
        if result < 0:
            return _checked(name, result)
    return result


def libc(name: str, *arguments: int | bytes | None) -> int:
    """Call a function of the C library that returns -1 if it fails.

    Raises:
        SystemCallError: It did.
    """
    words = [ctypes.c_ulong(_word(argument)) for argument in arguments]
    return _checked(name, getattr(_libc, name)(*words))


def trim_heap() -> None:
    """Give memory of the C library that is free back to the kernel, and put the rest of it in order.

    Else each child would do so with its own copy, by the first piece that it asks for.
    """
    if hasattr(_libc, "malloc_trim"):  # the GNU C library's
        _libc.malloc_trim(0)
    bytes(_LARGE)


def _word(argument: int | bytes | None) -> int:
    if isinstance(argument, bytes):
        return ctypes.cast(ctypes.c_char_p(argument), ctypes.c_void_p).value or 0
    return argument or 0


def _checked(name: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise SystemCallError(number, f"{name}: {os.strerror(number)}")
    return result
