"""The zygote: a warm interpreter that forks a child for each run and reports how it ended.

It never sees a program, an input or an answer: a child reads those from its own channel, after its lockdown.
So no data of one run can be in the memory of another.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from art_gym.envs.coding.sandbox.child import landlock, namespaces, preload
from art_gym.envs.coding.sandbox.child.channel import DESCRIPTORS, ENDED, KILL, REQUEST, Channel
from art_gym.envs.coding.sandbox.child.kernel import MACHINE, syscall, trim_heap
from art_gym.envs.coding.sandbox.child.lockdown import (
    Lockdown,
    PrivilegeError,
    die_with_parent,
    drop_privileges,
    place_descriptors,
    unused_id,
)
from art_gym.envs.coding.sandbox.child.runner import REFUSED, Driver, hide_setup, prepare, run_driver, warm_up
from art_gym.envs.coding.sandbox.child.seccomp import Filter

_CONTROL, _PARENT = 3, 4
"""The descriptors of the socket to the parent and of the parent's pidfd, at the start."""
_CONTROL_ASIDE, _PARENT_ASIDE = 62, 63
"""And later. Received descriptors get the lowest free numbers, as a run's pipes need."""
_PLACES = 0, 1, 2, 3, 4
_SPACE = socket.CMSG_SPACE(DESCRIPTORS.size)


class Zygote:
    """The loop over requests and ended children.

    A page of memory that is written to while a child lives is copied, so this touches little: a child has
    nothing to do but to make calls that are ready, and there is one descriptor to keep for a run.

    Args:
        drivers: In the order in which requests name them by their places.
        lockdown: What a child does to itself.
    """

    def __init__(self, drivers: Sequence[Driver], lockdown: Lockdown) -> None:
        self._drivers, self._lockdown, self._lock_down = drivers, lockdown, lockdown.ready()
        self._channel = Channel(3, 4)
        os.dup2(_CONTROL, _CONTROL_ASIDE)
        os.dup2(_PARENT, _PARENT_ASIDE)
        os.closerange(0, len(_PLACES))
        self._control = socket.socket(fileno=_CONTROL_ASIDE)
        self._poll = select.poll()
        self._children: dict[int, tuple[int, int, int]] = {}
        """By pidfd, the runs that have not ended: number, process id, descriptor to report its end on."""

    def serve(self) -> tuple[Driver, Channel] | None:
        """Fork a child for every request, until the parent is gone.

        Returns:
            In a child: its driver and channel, for the caller to continue with, outside of the
            frames of this loop. In the zygote: ``None``, at the end.
        """
        self._poll.register(_CONTROL_ASIDE, select.POLLIN)
        # A copy of the control socket may outlive the parent in a fork of it; its pidfd does not.
        self._poll.register(_PARENT_ASIDE, select.POLLIN)
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == _CONTROL_ASIDE:
                    message, attached, _, _ = self._control.recvmsg(REQUEST.size, _SPACE)
                    if len(message) == REQUEST.size:
                        child = self._fork(message, attached[0][2])
                        if child is not None:
                            return child
                    elif message:
                        self._kill(*KILL.unpack(message))
                    else:
                        return None
                elif descriptor == _PARENT_ASIDE:
                    return None
                else:
                    self._reap(descriptor)

    def _fork(self, message: bytes, attached: bytes) -> tuple[Driver, Channel] | None:
        """``None`` in the zygote."""
        number, driver, cpu_seconds, memory_bytes = REQUEST.unpack(message)
        *places, status = DESCRIPTORS.unpack(attached)
        if (*places,) != _PLACES:
            os._exit(1)  # too many descriptors are open here; a new zygote begins with none
        self._lockdown.prepare(cpu_seconds, memory_bytes)
        lock_down, channel, run = self._lock_down, self._channel, self._drivers[driver]
        try:
            pid = os.fork()
        except OSError as error:
            # One run is refused; the others continue.
            self._channel.write_frame(REFUSED + f"fork: {error}".encode())
            self._report(status, 1 << 8, 0.0)
            os.closerange(0, len(_PLACES))
            return None
        if pid == 0:
            try:
                os.setsid()
                lock_down()
            except BaseException as error:  # a child that is not locked down must stop here
                try:
                    channel.write_frame(REFUSED + str(error).encode())
                finally:
                    os._exit(1)
            return run, channel
        handle = os.pidfd_open(pid)
        os.closerange(0, len(_PLACES))
        self._children[handle] = number, pid, status
        self._poll.register(handle, select.POLLIN)
        return None

    def _kill(self, number: int) -> None:
        """Kill a run, unless it has ended already."""
        for handle, (this, _, _) in self._children.items():
            if this == number:
                # A pidfd means this process and no later one that happens to get its number.
                signal.pidfd_send_signal(handle, signal.SIGKILL)

    def _reap(self, handle: int) -> None:
        """Collect an ended child and report how it ended."""
        self._poll.unregister(handle)
        _, pid, status = self._children.pop(handle)
        _, code, usage = os.wait4(pid, 0)
        os.close(handle)
        self._report(status, code, usage.ru_utime + usage.ru_stime)

    def _report(self, status: int, code: int, cpu_seconds: float) -> None:
        try:  # noqa: SIM105  # `suppress` would be one more object in every run
            os.write(status, ENDED.pack(code, cpu_seconds))
        except OSError:
            pass  # the parent may have gone away
        os.close(status)


def main(config: Mapping[str, Any]) -> NoReturn:
    """Set up the layers that are shared by all runs, then serve; children never come back from here."""
    nothing, nowhere = os.pipe()  # a stream keeps what it saw when it was made: that it cannot be sought
    place_descriptors([nothing, nowhere, 2, config["control"], config["parent"]])
    preload.add_packages(config["packages"])
    drivers = [Driver(name, source) for name, source in config["drivers"].items()]
    _prefer_as_victim()
    plan = config["plan"]
    user = unused_id(os.getpid())
    counted = user is not None or ("namespaces" in plan and os.geteuid() != 0)
    if "namespaces" in plan:
        _step("namespaces", namespaces.enter)
        _continue_as_first_process()
    if "mounts" in plan:
        _step("mounts", lambda: namespaces.enter_new_root(config["roots"], config["hidden"], config["links"]))
    _step("user", lambda: drop_privileges(user, counted=counted))
    if "namespaces" in plan:
        # Not before: a change of user clears it. The keeper, outside of our namespace, has the id 0 for us.
        _step("namespaces", lambda: die_with_parent(0))
    if "landlock" in plan:
        _step("landlock", lambda: landlock.enter(config["readable"], config["listable"]))
    lockdown = _step("seccomp", lambda: _filtered("landlock" in plan, counted))
    prepare()
    _say({"python": sys.version.split()[0], "landlock": landlock.abi(), "user": user is not None})
    warm_up(drivers[0])
    zygote = Zygote(drivers, lockdown)
    hide_setup()
    gc.collect()
    trim_heap()
    gc.freeze()  # objects of the zygote are not touched by a child's collections, so their pages stay shared
    born = zygote.serve()
    if born is None:
        os._exit(0)
    run_driver(*born)


def _filtered(scoped: bool, counted: bool) -> Lockdown:
    """From here on this process makes few system calls; what its children still have to do to themselves."""
    syscalls = Filter(MACHINE)
    lockdown = Lockdown(syscalls, scoped=scoped, parent=os.getpid(), counted=counted)
    syscalls.install_shared()
    return lockdown


def _step(name: str, build: Any) -> Any:
    """Set up one layer; on failure report which one to the parent, and end."""
    try:
        return build()
    except (OSError, ValueError, PrivilegeError) as error:
        _say({"failed": name, "why": str(error)})
        os._exit(1)


def _continue_as_first_process() -> None:
    """Fork into the new process namespace, whose first process is the zygote: with it all others end."""
    pid = os.fork()
    if pid == 0:
        return
    syscall("close_range", _CONTROL, 0x7FFF_FFFF, 0)
    os.waitpid(pid, 0)
    os._exit(0)


def _prefer_as_victim() -> None:
    """If the machine runs out of memory, let the kernel take us before the user's training run."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass


def _say(message: Mapping[str, Any]) -> None:
    control = socket.socket(fileno=os.dup(_CONTROL))
    control.send(json.dumps(message).encode())
    control.close()
