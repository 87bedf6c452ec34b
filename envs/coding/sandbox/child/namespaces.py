"""Namespaces: no network, no other process, and no file but the standard library.

Entered once, by the zygote, so that a run costs nothing more for them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping

from art_gym.envs.coding.sandbox.child.kernel import libc, syscall

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x0002_0000,
    0x0400_0000,
    0x0800_0000,
    0x1000_0000,
    0x2000_0000,
    0x4000_0000,
)
_MS_REC, _MS_PRIVATE, _MS_NOSUID, _MS_NODEV = 0x4000, 0x4_0000, 2, 4
_MNT_DETACH = 2
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _MOVE_EMPTY_PATH = 1, 4
_ATTR_READONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_NOEXEC = 1, 2, 4, 8
_STAGE = "/tmp"
"""Where the new root is put together; only this process, in its own mount namespace, sees it there."""

NOBODY = 65534


def enter() -> None:
    """Leave the machine's network, IPC objects, host name, mounts and (for children) processes behind.

    Root needs no user namespace for it; anybody else enters one, in which every id but his own is unmapped.

    Raises:
        OSError: The kernel does not allow it.
    """
    kinds = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        libc("unshare", kinds)
        return
    libc("unshare", kinds | _NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{NOBODY} {uid} 1"),
        ("gid_map", f"{NOBODY} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def enter_new_root(paths: Iterable[str], hidden: Iterable[str], links: Mapping[str, str]) -> None:
    """Make a root directory that holds these files and directories, read-only, and nothing else; enter it.

    No directory above them can be listed. ``/proc``, ``/dev``, ``/tmp`` and home directories are not there.

    Args:
        paths: What to keep, by real paths. What is not there is left out.
        hidden: Directories beneath them that are to be empty.
        links: Symbolic links to make: their paths, and what they lead to.

    Raises:
        OSError: The kernel does not allow it.
    """
    libc("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)
    # Copies first: the stage may cover a path that is wanted.
    trees = {path: (_copy_of(path), os.path.isdir(path)) for path in paths if os.path.exists(path)}
    covered = [path for path in hidden if os.path.isdir(path)]
    _mount_empty(_STAGE)
    mask = os.umask(0o666)  # directories that can be passed through but not listed
    for path, (tree, is_directory) in trees.items():
        target = _STAGE + path
        os.makedirs(target if is_directory else os.path.dirname(target), exist_ok=True)
        if not is_directory:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        syscall("move_mount", tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_EMPTY_PATH)
        os.close(tree)
    for path, target in links.items():
        os.makedirs(os.path.dirname(_STAGE + path), exist_ok=True)
        os.symlink(target, _STAGE + path)
    for path in covered:
        _mount_empty(_STAGE + path)
        _set_attributes(_STAGE + path, _ATTR_READONLY | _ATTR_NOEXEC)
    os.umask(mask)
    os.chdir(_STAGE)
    syscall("pivot_root", b".", b".")
    # The old root now covers the new one at the same place; unmount it.
    libc("umount2", b".", _MNT_DETACH)
    os.chdir("/")
    _set_attributes("/", _ATTR_READONLY | _ATTR_NOEXEC)


def _mount_empty(path: str) -> None:
    libc("mount", b"tmpfs", os.fsencode(path), b"tmpfs", _MS_NOSUID | _MS_NODEV, b"mode=0111,size=1m")


def _copy_of(path: str) -> int:
    """A read-only copy of the mounts at and under a directory, not yet in any place."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    tree = syscall("open_tree", _AT_FDCWD, os.fsencode(path), flags)
    _attributes(tree, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, _ATTR_READONLY | _ATTR_NOSUID | _ATTR_NODEV)
    return tree


def _set_attributes(path: str, attributes: int) -> None:
    _attributes(_AT_FDCWD, os.fsencode(path), 0, attributes)


def _attributes(directory: int, path: bytes, flags: int, attributes: int) -> None:
    # struct mount_attr: attributes to set, to clear, the propagation, a user namespace.
    syscall("mount_setattr", directory, path, flags, struct.pack("=4Q", attributes, 0, 0, 0), 32)
