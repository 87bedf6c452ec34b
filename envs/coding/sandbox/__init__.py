"""A sandbox for programs that nobody trusts; see ``Sandbox``.

``art-gym sandbox check`` shows what holds on a machine, and tries to get out. How it works:

* A *zygote* (``warm``, ``child.zygote``) is a warm interpreter with an empty view of the world. It forks a
  child for each run, which locks itself down before it reads a byte of anybody's code (``child.lockdown``).
* The parent (``process``, ``streams``) holds the clock, counts the output, has the zygote kill (by a pidfd;
  if it does not, the zygote is killed, and all its children end with it), and believes nothing that it
  reads. If any wall cannot be put up, the run is ``REFUSED`` and says why.
* Where runs are alike, the child for the next is forked and locked down ahead (``standby``).
* Walls that a machine does not have are left out only where another one stands for them; else bubblewrap,
  else a container takes the zygote's place (``backends``).

What is left: faults of the kernel in the system calls that are allowed (``child.seccomp`` lists them), what
can be learnt from timing, and, without a mount namespace, the names and sizes of files (not their contents).
Runs of one zygote share the hash seed and the layout of addresses, which hide nothing, and those that go on
at the same time share one limit on threads.
"""

from art_gym.envs.coding.sandbox.errors import SandboxUnavailable
from art_gym.envs.coding.sandbox.limits import Limits, Outcome, Run
from art_gym.envs.coding.sandbox.process import Process
from art_gym.envs.coding.sandbox.sandbox import Sandbox, SandboxPool

__all__ = ["Limits", "Outcome", "Process", "Run", "Sandbox", "SandboxPool", "SandboxUnavailable"]
