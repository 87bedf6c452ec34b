"""A sandbox for untrusted programs; see ``Sandbox``.

``art-gym sandbox check`` shows which layers work on a machine, and tries to escape. How it works:

* A *zygote* (``zygote_backend``, ``child.zygote``) is a warm interpreter that is isolated from everything. It
  forks a child for each run, which locks itself down before it reads any program (``child.lockdown``).
* The parent (``process``, ``streams``) enforces the time limit, counts the output, makes the zygote kill
  runs (by a pidfd; if that fails, the zygote is killed, and all its children end with it), and trusts nothing
  that it reads. If a layer cannot be set up, the run is ``REFUSED``, with the reason.
* After two equal requests, the child for the next one is forked and locked down in advance
  (``sandbox.Standby``).
* A layer that a machine lacks is left out only if another layer does the same; else each run gets a
  container (``backends``).

Remaining risks: kernel bugs in the system calls that are allowed (``child.seccomp`` lists them), timing side
channels, and, without a mount namespace, the names and sizes of files (not their contents).
Runs of one zygote share the hash seed and the layout of addresses, which are no secrets, and simultaneous
runs share one limit on threads.
"""

from art_gym.envs.coding.sandbox.process import Process
from art_gym.envs.coding.sandbox.run import Limits, Outcome, Run, SandboxFailedError, SandboxUnavailableError
from art_gym.envs.coding.sandbox.sandbox import Sandbox

__all__ = ["Limits", "Outcome", "Process", "Run", "Sandbox", "SandboxFailedError", "SandboxUnavailableError"]
