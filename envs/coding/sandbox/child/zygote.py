"""The zygote: a warm interpreter that does nothing but fork children, and tell how they ended.

It never sees a program, an input or an answer: a child reads those from its own channel, after its lockdown.
So there is nothing of one run that could lie in the memory of another.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import socket
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from art_gym.envs.coding.sandbox.child import landlock, namespaces, preload
from art_gym.envs.coding.sandbox.child.channel import Channel
from art_gym.envs.coding.sandbox.child.driver import Driver
from art_gym.envs.coding.sandbox.child.kernel import MACHINE, syscall
from art_gym.envs.coding.sandbox.child.lockdown import (
    Lockdown,
    Refused,
    die_with_parent,
    give_up_rights,
    settle,
    unused_id,
)
from art_gym.envs.coding.sandbox.child.messages import BORN, ENDED, REQUEST, receive, send
from art_gym.envs.coding.sandbox.child.runner import (
    REFUSED,
    forget_ourselves,
    prepare,
    run_driver,
)
from art_gym.envs.coding.sandbox.child.seccomp import Filter

_CONTROL, _PARENT = 3, 4
"""The descriptors of the socket to the parent and of the parent's pidfd."""


class Zygote:
    """The loop over requests and ended children.

    Args:
        config: What the parent sent at the start.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._drivers = [Driver(name, source) for name, source in config["drivers"].items()]
        self._lockdown = Lockdown(
            Filter(MACHINE),
            scoped="landlock" in config["plan"],
            parent=os.getpid(),
            counted=config["counted"],
        )
        self._control = socket.socket(fileno=_CONTROL)
        self._poll = select.poll()
        self._children: dict[int, tuple[int, socket.socket]] = {}
        """By pidfd, the runs that have not ended: process id, and the socket to tell its end on."""

    def serve(self) -> tuple[Driver, Channel, int] | None:
        """Fork a child for every request, until the parent is gone.

        Returns:
            In a child: its driver, channel and seed, for the caller to go on with, so that no frame of this
            loop lies under it. In the zygote: ``None``, at the end.
        """
        self._poll.register(_CONTROL, select.POLLIN)
        # A copy of the control socket may outlive the parent in a fork of it; its pidfd does not.
        self._poll.register(_PARENT, select.POLLIN)
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == _CONTROL:
                    message, descriptors = receive(self._control, REQUEST.size)
                    if not message:
                        return None
                    child = self._fork(message, descriptors)
                    if child is not None:
                        return child
                elif descriptor == _PARENT:
                    return None
                else:
                    self._bury(descriptor)

    def _fork(self, message: bytes, descriptors: list[int]) -> tuple[Driver, Channel, int] | None:
        """``None`` in the zygote."""
        driver, cpu_seconds, memory_bytes, seed = REQUEST.unpack(message)
        try:
            pid = os.fork()
        except OSError as error:
            # One run is refused; the others go on.
            Channel(-1, descriptors[4]).write_frame(REFUSED + f"fork: {error}".encode())
            pid = -1
        if pid == 0:
            return self._drivers[driver], self._lock_down(descriptors, cpu_seconds, memory_bytes), seed
        *theirs, ours = descriptors
        for descriptor in theirs:
            os.close(descriptor)
        status = socket.socket(fileno=ours)
        if pid < 0:
            with contextlib.suppress(OSError):
                status.send(ENDED.pack(1 << 8, 0.0))
            status.close()
            return None
        handle = os.pidfd_open(pid)
        self._children[handle] = pid, status
        self._poll.register(handle, select.POLLIN)
        with contextlib.suppress(OSError):  # the parent may have gone away
            send(status, BORN.pack(pid), [handle])
        return None

    def _lock_down(self, descriptors: list[int], cpu_seconds: int, memory_bytes: int) -> Channel:
        """In the child: put its descriptors to their places, and give up what is left of its rights."""
        try:
            # The numbers behind these objects will mean other things here.
            self._control.detach()
            for _, status in self._children.values():
                status.detach()
            os.setsid()
            # Received descriptors lie above the zygote's own, so none is overwritten before it is copied.
            for place in range(5):
                os.dup2(descriptors[place], place)
            self._lockdown.apply(cpu_seconds, memory_bytes)
            return Channel(3, 4)
        except BaseException as error:  # nothing may lead a child that is not locked down any further
            try:
                Channel(3, 4).write_frame(REFUSED + str(error).encode())
            finally:
                os._exit(1)

    def _bury(self, handle: int) -> None:
        """Collect an ended child and tell its parent how it ended."""
        self._poll.unregister(handle)
        pid, status = self._children.pop(handle)
        _, code, usage = os.wait4(pid, 0)
        with contextlib.suppress(OSError):
            status.send(ENDED.pack(code, usage.ru_utime + usage.ru_stime))
        status.close()
        os.close(handle)


def main(config: Mapping[str, Any]) -> NoReturn:
    """Put up the walls that are shared by all runs, then serve; children never come back from here."""
    settle([os.open(os.devnull, os.O_RDONLY), 1, 2, config["control"], config["parent"]])
    preload.modules(config["preload"])
    preload.offer_packages(config["packages"])
    _prefer_as_victim()
    plan = config["plan"]
    user = unused_id(os.getpid())
    counted = user is not None or ("namespaces" in plan and os.geteuid() != 0)
    if "namespaces" in plan:
        _step("namespaces", namespaces.enter)
        _go_on_as_first_process()
    if "mounts" in plan:
        _step("mounts", lambda: namespaces.keep_only(config["roots"], config["hidden"], config["links"]))
    _step("user", lambda: give_up_rights(user, counted=counted))
    if "namespaces" in plan:
        # Not before: a change of user clears it. The keeper, outside of our namespace, has the id 0 for us.
        _step("namespaces", lambda: die_with_parent(0))
    if "landlock" in plan:
        _step("landlock", lambda: landlock.enter(config["readable"], config["listable"]))
    zygote = _step("seccomp", lambda: Zygote({**config, "counted": counted}))
    prepare()
    _say({"python": sys.version.split()[0], "landlock": landlock.abi(), "user": user is not None})
    forget_ourselves()
    gc.collect()
    gc.freeze()  # objects of the zygote are not touched by a child's collections, so their pages stay shared
    born = zygote.serve()
    if born is None:
        os._exit(0)
    run_driver(*born)


def _step(name: str, build: Any) -> Any:
    """Put up one wall; on failure tell the parent which, and end."""
    try:
        return build()
    except (OSError, ValueError, Refused) as error:
        _say({"failed": name, "why": str(error)})
        os._exit(1)


def _go_on_as_first_process() -> None:
    """Fork into the new process namespace, whose first process is the zygote: with it all others end."""
    pid = os.fork()
    if pid == 0:
        return
    syscall("close_range", _CONTROL, 0x7FFF_FFFF, 0)
    os.waitpid(pid, 0)
    os._exit(0)


def _prefer_as_victim() -> None:
    """Where the machine runs out of memory, let the kernel take us before the user's training run."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass


def _say(message: Mapping[str, Any]) -> None:
    control = socket.socket(fileno=os.dup(_CONTROL))
    control.send(json.dumps(message).encode())
    control.close()
