"""One run in an interpreter of its own, which something else has put walls around, or nothing has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NoReturn

from art_gym.envs.coding.sandbox.child import landlock, preload
from art_gym.envs.coding.sandbox.child.channel import Channel
from art_gym.envs.coding.sandbox.child.driver import Driver
from art_gym.envs.coding.sandbox.child.kernel import MACHINE
from art_gym.envs.coding.sandbox.child.lockdown import Lockdown
from art_gym.envs.coding.sandbox.child.rights import Refused, give_up_rights, settle
from art_gym.envs.coding.sandbox.child.runner import (
    REFUSED,
    forget_ourselves,
    prepare,
    run_driver,
)
from art_gym.envs.coding.sandbox.child.seccomp import Filter


def main(config: Mapping[str, Any]) -> NoReturn:
    """Lock this process down as far as the plan says, and run the driver in it.

    Args:
        config: ``descriptors`` (stdin, stdout, stderr, channel in, channel out), ``plan``, ``driver`` (its
            source), ``request``, and the paths as for a zygote.
    """
    settle(config["descriptors"])
    request, plan = config["request"], config["plan"]
    try:
        preload.offer_packages(config["packages"])
        prepare()
        driver = Driver(request["driver"], config["driver"])
        give_up_rights(None, counted=config["counted"])
        if "landlock" in plan:
            landlock.enter(config["readable"], config["listable"])
        syscalls = Filter(MACHINE) if "seccomp" in plan else None
        lockdown = Lockdown(
            syscalls, scoped="landlock" in plan, parent=os.getppid(), counted=config["counted"]
        )
        if syscalls is not None:
            syscalls.install_shared()
        lockdown.prepare(request["cpu_seconds"], request["memory_bytes"])
        lockdown.ready()()
    except (OSError, ValueError, Refused) as error:
        Channel(3, 4).write_frame(REFUSED + str(error).encode())
        os._exit(1)
    forget_ourselves()
    run_driver(driver, Channel(3, 4), request["seed"])
