"""Call one function with many arguments and send its return values. Runs inside the sandbox.

The payload is JSON: ``code``, ``entry_point`` (``Class.method`` is called on one object of the class),
``listed`` (whether an iterator counts as the list of what it gives) and ``cases``, each the tokens of its
positional and of its keyword arguments. Further frames have a ``seed`` and ``cases`` to try the program on
again, loaded anew; an empty frame is the end.

The first frame sent says whether the program loaded: ``{"failed": message or null}``. Then one frame for each
case: ``{"value": tokens}`` or ``{"raised": message}``. Expected values are not sent here.
"""

from __future__ import annotations

import gc
import json
import random
import sys
from collections.abc import Callable
from typing import Any

from art_gym.envs.coding.drivers.codec import decode, encode
from art_gym.envs.coding.drivers.program import describe, load

_NAME = "solution"


def main(channel: Any, payload: bytes) -> None:
    """Load the program and call its function case after case, as often as asked."""
    job = json.loads(payload)

    def send(message: dict[str, Any], dumps: Any = json.dumps, write: Any = channel.write_frame) -> None:
        write(dumps(message).encode())

    while _try(job, send):
        frame = channel.read_frame()
        if not frame:
            return
        job.update(json.loads(frame))
        random.seed(job["seed"])
        # The program is loaded anew; what it held must not count against its memory twice.
        sys.modules.pop(_NAME, None)
        gc.collect()


def _try(job: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> bool:
    """Call the function on each case; ``False`` if there is none."""
    try:
        function = _find(load(job["code"], _NAME), job["entry_point"])
    except BaseException as error:  # whatever the candidate raises is its failure, SystemExit included
        send({"failed": describe(error, _NAME)})
        return False
    if not callable(function):
        send({"failed": f"there is no function `{job['entry_point']}`"})
        return False
    send({"failed": None})
    for args, kwargs in job["cases"]:
        send(_call(function, decode(args), decode(kwargs), job["listed"]))
    return True


def _find(module: Any, entry_point: str) -> Any:
    """The function of this name; of a class, the method of a new object."""
    kind, _, name = entry_point.rpartition(".")
    return getattr(getattr(module, kind)() if kind else module, name, None)


def _call(function: Any, args: Any, kwargs: Any, listed: bool) -> dict[str, Any]:
    try:
        value = function(*args, **kwargs)
        return {"value": encode(list(value) if listed and hasattr(type(value), "__next__") else value)}
    except BaseException as error:  # whatever the candidate raises is its failure, SystemExit included
        return {"raised": describe(error, _NAME)}
