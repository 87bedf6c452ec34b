"""The kernel's calls that Python has no function for, through ctypes."""

from __future__ import annotations

import ctypes
import os
import platform
import sys

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


class Failed(OSError):
    """A call to the kernel failed; the message names the call."""


def syscall(name: str, *arguments: int | bytes | None) -> int:
    """Call the kernel. Bytes are passed by their address; the kernel may write to none of them.

    Raises:
        Failed: The kernel refused, or does not know the call.
    """
    if name not in NUMBERS or sys.platform != "linux":
        raise Failed(38, f"{name}: its number is not known for {MACHINE}")
    words = [_word(argument) for argument in arguments]
    return _checked(name, _libc.syscall(NUMBERS[name], *words, *[0] * (6 - len(words))))


def prctl(name: str, option: int, *arguments: int) -> int:
    """Call ``prctl`` with all five arguments, as the kernel wants for some options.

    Raises:
        Failed: The kernel refused.
    """
    return _checked(name, _libc.prctl(option, *arguments, *[0] * (4 - len(arguments))))


def succeeds(option: int) -> bool:
    """Whether ``prctl`` does as asked."""
    return bool(_libc.prctl(option, 0, 0, 0, 0) >= 0)


def libc(name: str, *arguments: int | bytes | None) -> int:
    """Call a function of the C library that returns -1 where it fails.

    Raises:
        Failed: It did.
    """
    words = [ctypes.c_ulong(_word(argument)) for argument in arguments]
    return _checked(name, getattr(_libc, name)(*words))


def _word(argument: int | bytes | None) -> int:
    if isinstance(argument, bytes):
        return ctypes.cast(ctypes.c_char_p(argument), ctypes.c_void_p).value or 0
    return argument or 0


def _checked(name: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise Failed(number, f"{name}: {os.strerror(number)}")
    return result
