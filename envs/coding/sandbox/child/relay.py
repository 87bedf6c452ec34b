"""One run in a container, with all its pipes multiplexed over the container's stdin and stdout.

A message is a byte for the pipe, four bytes of length and the data; no data means that the pipe is closed.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Mapping
from typing import Any, BinaryIO, NoReturn

from art_gym.envs.coding.sandbox.child import preload
from art_gym.envs.coding.sandbox.child.channel import ENDED, Channel, write_all
from art_gym.envs.coding.sandbox.child.kernel import MACHINE
from art_gym.envs.coding.sandbox.child.lockdown import (
    Lockdown,
    PrivilegeError,
    drop_privileges,
    place_descriptors,
)
from art_gym.envs.coding.sandbox.child.runner import REFUSED, Driver, hide_setup, prepare, run_driver
from art_gym.envs.coding.sandbox.child.seccomp import Filter

HEAD = struct.Struct(">BI")
STDIN, STDOUT, STDERR, CHANNEL_IN, CHANNEL_OUT, END = range(6)
"""The pipes, in the order of ``Pipes``, and the message about the end of the process."""
TO_CHILD, FROM_CHILD = (STDIN, CHANNEL_IN), (STDOUT, STDERR, CHANNEL_OUT)


def main(config: Mapping[str, Any]) -> NoReturn:
    """Fork the run and carry its pipes to and fro until it ends.

    Args:
        config: ``plan``, ``driver`` (its source), ``request``, and ``packages`` as for a zygote.
    """
    pairs = [os.pipe() for _ in range(5)]
    inner = [pair[0 if i in TO_CHILD else 1] for i, pair in enumerate(pairs)]
    outer = [pair[1 if i in TO_CHILD else 0] for i, pair in enumerate(pairs)]
    pid = os.fork()
    if pid == 0:
        _run(config, inner)
    for descriptor in inner:
        os.close(descriptor)
    lock = threading.Lock()
    threading.Thread(target=_carry_in, args=(sys.stdin.buffer, outer), daemon=True).start()
    down = [threading.Thread(target=_carry_out, args=(i, outer[i], lock)) for i in FROM_CHILD]
    for thread in down:
        thread.start()
    _, status, usage = os.wait4(pid, 0)
    for thread in down:
        thread.join()
    _put(END, ENDED.pack(status, usage.ru_utime + usage.ru_stime), lock)
    os._exit(0)


def _run(config: Mapping[str, Any], descriptors: list[int]) -> NoReturn:
    """Lock this process down and run the driver in it, on these pipes."""
    place_descriptors(descriptors)
    request = config["request"]
    try:
        preload.add_packages(config["packages"])
        prepare()
        driver = Driver(request["driver"], config["driver"])
        drop_privileges(None, counted=True)
        syscalls = Filter(MACHINE) if "seccomp" in config["plan"] else None
        lockdown = Lockdown(syscalls, scoped=False, parent=os.getppid(), counted=True)
        if syscalls is not None:
            syscalls.install_shared()
        lockdown.prepare(request["cpu_seconds"], request["memory_bytes"])
        lockdown.ready()()
    except (OSError, ValueError, PrivilegeError) as error:
        Channel(3, 4).write_frame(REFUSED + str(error).encode())
        os._exit(1)
    hide_setup()
    run_driver(driver, Channel(3, 4))


def _carry_in(source: BinaryIO, targets: list[int]) -> None:
    while head := source.read(HEAD.size):
        pipe, length = HEAD.unpack(head)
        try:
            if length:
                write_all(targets[pipe], source.read(length))
            else:
                os.close(targets[pipe])
        except OSError:
            continue  # that pipe is no longer read


def _carry_out(pipe: int, source: int, lock: threading.Lock) -> None:
    while data := os.read(source, 1 << 16):
        _put(pipe, data, lock)


def _put(pipe: int, data: bytes, lock: threading.Lock) -> None:
    with lock:
        write_all(1, HEAD.pack(pipe, len(data)) + data)
