"""The driver ``script``: run the payload, a program's text, as ``__main__``."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art_gym.envs.coding.sandbox.child.channel import Channel

NAME = "main.py"


def main(channel: Channel, payload: bytes) -> None:
    """Run the text as ``__main__``, on the process's own stdin, stdout and stderr."""
    channel.close()
    text = payload.decode("utf-8", "surrogateescape")
    module = types.ModuleType("__main__")
    module.__dict__["__file__"] = NAME
    sys.modules["__main__"] = module
    sys.argv = [NAME]
    linecache.cache[NAME] = (len(text), None, text.splitlines(keepends=True), NAME)
    try:
        exec(compile(text, NAME, "exec", dont_inherit=True), module.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        full = isinstance(error, MemoryError)
        if full:
            module.__dict__.clear()  # room to say so
        _show(error)
        sys.stdout.flush()
        sys.stderr.flush()
        raise SystemExit(251 if full else 1) from None  # `runner.OUT_OF_MEMORY`


def _show(error: BaseException) -> None:
    """Print a traceback that begins with the program's own first line."""
    try:
        own = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(type(error), error, own)
    except BaseException:
        os.write(2, b"an exception that cannot be shown\n")


main(channel, payload)  # type: ignore[name-defined]  # noqa: F821  # what every driver is given
