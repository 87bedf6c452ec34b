"""Build the driver scripts that run inside the sandbox, from the modules of this package.

Each driver is one text without imports of this project, as the Python inside has none of it: the modules it
needs, one after the other, then a call of its `main`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

_PARTS = {
    "calls": ("codec", "program", "calls"),
    "served": ("codec", "program", "remote", "served"),
    "tested": ("codec", "program", "remote", "tested"),
}
_LEFT_OUT = re.compile(r"^from (__future__|art_gym\.envs\.coding\.drivers\.\w+) import .*\n", re.MULTILINE)


@cache
def drivers() -> Mapping[str, str]:
    """The drivers' texts by name, for `sandbox.Sandbox`."""
    return MappingProxyType({name: _text(parts) for name, parts in _PARTS.items()})


def _text(parts: tuple[str, ...]) -> str:
    folder = files(__name__)
    texts = [_LEFT_OUT.sub("", (folder / f"{part}.py").read_text("utf-8")) for part in parts]
    return "\n\n".join(["from __future__ import annotations", *texts, "main(channel, payload)\n"])
