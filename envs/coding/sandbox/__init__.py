"""A sandbox for untrusted programs; see ``Sandbox``.

``art-gym sandbox check`` shows what holds on a machine, and tries to get out. How it works:

* A *zygote* (``zygote_backend``, ``child.zygote``) is a warm interpreter that is isolated from everything. It
  forks a child for each run, which locks itself down before it reads any program (``child.lockdown``).
* The parent (``process``, ``streams``) holds the clock, counts the output, has the zygote kill (by a pidfd;
  if it does not, the zygote is killed, and all its children end with it), and believes nothing that it
  reads. If any layer cannot be set up, the run is ``REFUSED`` and says why.
* If runs are alike, the child for the next is forked and locked down ahead (``sandbox.Standby``).
* A layer that a machine lacks is left out only if another one does the same; else the zygote runs in
  bubblewrap, else each run gets a container (``backends``).

What is left: faults of the kernel in the system calls that are allowed (``child.seccomp`` lists them), what
can be learnt from timing, and, without a mount namespace, the names and sizes of files (not their contents).
Runs of one zygote share the hash seed and the layout of addresses, which hide nothing, and simultaneous
runs share one limit on threads.
"""

from art_gym.envs.coding.sandbox.process import Process
from art_gym.envs.coding.sandbox.run import Limits, Outcome, Run, SandboxFailedError, SandboxUnavailableError
from art_gym.envs.coding.sandbox.sandbox import Sandbox

__all__ = ["Limits", "Outcome", "Process", "Run", "Sandbox", "SandboxFailedError", "SandboxUnavailableError"]
