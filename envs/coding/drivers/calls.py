"""Call one function with many arguments and send its return values. Runs inside the sandbox.

The payload is JSON: ``code``, ``entry_point`` and ``cases``, each the tokens of its positional and of its
keyword arguments. The first frame says whether the program loaded: ``{"failed": message or null}``. Then
one frame for each case: ``{"value": tokens}`` or ``{"raised": message}``. Expected values are not sent here.
"""

from __future__ import annotations

import json
from typing import Any

from art_gym.envs.coding.drivers.codec import decode, encode
from art_gym.envs.coding.drivers.program import describe, load

_NAME = "solution"


def main(channel: Any, payload: bytes) -> None:
    """Load the program and call its function case after case."""
    job = json.loads(payload)
    write, dumps = channel.write_frame, json.dumps

    def send(message: dict[str, Any]) -> None:
        write(dumps(message).encode())

    try:
        function = getattr(load(job["code"], _NAME), job["entry_point"], None)
    except BaseException as error:  # whatever the candidate raises is its failure, SystemExit included
        send({"failed": describe(error, _NAME)})
        return
    if not callable(function):
        send({"failed": f"there is no function `{job['entry_point']}`"})
        return
    send({"failed": None})
    for args, kwargs in job["cases"]:
        send(_call(function, decode(args), decode(kwargs)))


def _call(function: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    try:
        return {"value": encode(function(*args, **kwargs))}
    except BaseException as error:  # whatever the candidate raises is its failure, SystemExit included
        return {"raised": describe(error, _NAME)}
