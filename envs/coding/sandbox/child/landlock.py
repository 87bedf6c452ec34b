"""Landlock: restrict what this process and its children may read, and forbid every other use of files.

A domain, once entered, is never left, and needs no privilege to enter (Documentation/userspace-api/landlock).
The zygote enters one that grants reading of the standard library, so that every run is born into it; and each
run enters one more of its own, which no other process is in, so that it can signal no other process.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from art_gym.envs.coding.sandbox.child.kernel import Call, SystemCallError, make, syscall, syscall_later

_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_PATH_BENEATH = 1


def abi() -> int:
    """The version of Landlock that the kernel speaks; 0 if it has none."""
    try:
        return syscall("landlock_create_ruleset", None, 0, 1)  # LANDLOCK_CREATE_RULESET_VERSION
    except SystemCallError:
        return 0


def enter(readable: Iterable[str], listable: Iterable[str]) -> None:
    """Allow reading beneath these paths and no other use of the file system, of TCP or of abstract sockets.

    Args:
        readable: Files, and directories of which all files may be read. What is not there is left out.
        listable: Directories of which the names in them and beneath may be read, as the import system does.

    Raises:
        SystemCallError: The kernel did not do it.
    """
    version = abi()
    actions = (1 << 13) - 1  # ABI 1: everything from executing to making symbolic links
    actions |= (1 << 13) * (version >= 2)  # moving between directories
    actions |= (1 << 14) * (version >= 3)  # truncating
    actions |= (1 << 15) * (version >= 5)  # ioctl on devices
    ruleset = _ruleset(version, actions, network=0b11)
    for path in readable:
        _grant(ruleset, path, _READ_FILE)
    for path in listable:
        if os.path.isdir(path):  # the right is one that only directories have
            _grant(ruleset, path, _READ_DIR)
    make([restrict_later(ruleset)])
    os.close(ruleset)


def scope() -> int | None:
    """A ruleset for a domain of one process: signals and abstract sockets reach nothing outside it.

    Made once, entered by each child. ``None`` on kernels that have no scopes, with an ABI below 6.

    Raises:
        SystemCallError: The kernel did not make it.
    """
    version = abi()
    return _ruleset(version, 0, network=0) if version >= 6 else None


def restrict_later(ruleset: int) -> Call:
    """The call that enters the domain of a ruleset for good, for ``make``."""
    return syscall_later("landlock_restrict_self", ruleset, 0)


def _ruleset(version: int, actions: int, *, network: int) -> int:
    scoped = 0b11  # abstract sockets and signals
    words = [actions] + [network] * (version >= 4) + [scoped] * (version >= 6)
    attributes = struct.pack(f"={len(words)}Q", *words)
    return syscall("landlock_create_ruleset", attributes, len(attributes), 0)


def _grant(ruleset: int, path: str, rights: int) -> None:
    try:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        syscall("landlock_add_rule", ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, target), 0)
    finally:
        os.close(target)
