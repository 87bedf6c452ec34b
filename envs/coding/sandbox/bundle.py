"""Bundle the child's modules into one text, for an interpreter that has nothing of ours installed."""

from __future__ import annotations

import functools
import json
import pkgutil
from collections.abc import Mapping
from typing import Any

_PACKAGE = "art_gym.envs.coding.sandbox.child"
_MODULES = (
    # In order of their imports; first what programs use, so that what every run executes is close together.
    "preload",
    "kernel",
    "seccomp",
    "landlock",
    "namespaces",
    "channel",
    "lockdown",
    "runner",
    "relay",
    "zygote",
)

BOOTSTRAP = """
import json, os, sys, types
# Some modules would repair their state in every forked child, which takes time. The zygote has one thread
# and none of that state, so there is nothing to repair; and nothing else ever forks.
os.register_at_fork = lambda **_: None
bundle = json.loads(sys.stdin.buffer.readline())
def put(name, module):
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], leaf, module)
for name in bundle["packages"]:
    put(name, types.ModuleType(name))
for name, source in bundle["modules"]:
    module = types.ModuleType(name)
    put(name, module)
    exec(compile(source, "<" + name + ">", "exec"), module.__dict__)
    if hasattr(module, "early"):
        module.early(bundle["config"])
module.main(bundle["config"])
"""
"""What the interpreter runs: it makes modules of a bundle on stdin and calls the last one's ``main``."""


def bundle(main: str, config: Mapping[str, Any]) -> bytes:
    """What to write to the stdin of ``python -c BOOTSTRAP``.

    Args:
        main: The module whose ``main(config)`` is to run; it gets those that come before it.
        config: JSON-able.
    """
    names = _MODULES[: _MODULES.index(main) + 1]
    parts = _PACKAGE.split(".")
    packages = [".".join(parts[: i + 1]) for i in range(len(parts))]
    modules = [(f"{_PACKAGE}.{name}", source(name)) for name in names]
    return json.dumps({"packages": packages, "modules": modules, "config": config}).encode() + b"\n"


@functools.cache
def source(name: str) -> str:
    """The text of one of the child's modules."""
    text = pkgutil.get_data(_PACKAGE, f"{name}.py")
    assert text is not None
    return text.decode()
