"""Drivers: our own code that a run begins with."""

from __future__ import annotations

import ast
from typing import Any

from art_gym.envs.coding.sandbox.child.channel import Channel


class Driver:
    """A driver, ready to run.

    Its last statement is for each run, and finds the globals ``channel`` and ``payload``; what comes before
    (imports, functions) is executed here already, once for all runs.

    Args:
        name: For messages.
        source: A text such as ``"def main(channel, payload): …;main(channel, payload)"``.
    """

    def __init__(self, name: str, source: str) -> None:
        file = f"<driver {name}>"
        tree = ast.parse(source, file)
        *before, last = tree.body
        self._globals: dict[str, Any] = {"__name__": f"driver_{name}"}
        exec(compile(ast.Module(before, tree.type_ignores), file, "exec", dont_inherit=True), self._globals)
        self._last = compile(ast.Module([last], []), file, "exec", dont_inherit=True)

    def run(self, channel: Channel, payload: bytes) -> None:
        """Execute the last statement."""
        self._globals["channel"], self._globals["payload"] = channel, payload
        exec(self._last, self._globals)
