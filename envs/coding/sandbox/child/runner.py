"""Run a driver in a process that is locked down, and end the process."""

from __future__ import annotations

import _thread
import ast
import atexit
import io
import linecache
import os
import random
import sys
import threading
import traceback
from typing import Any, NoReturn, TextIO

from art_gym.envs.coding.sandbox.child.channel import SEED, Channel

READY, REFUSED = b"\0", b"\1"
"""The first byte of the first frame: all layers are active, or the reason why nothing was run."""
OUT_OF_MEMORY = 251
"""The exit code after a ``MemoryError``."""

_WARM_UPS = 20
_streams: list[TextIO] = []
"""The streams on stdout and stderr."""


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


def run_driver(driver: Driver, channel: Channel) -> NoReturn:
    """Tell the parent that all layers are active, read seed and payload, run the driver, and end.

    Args:
        driver: The driver.
        channel: The frames to and from the parent.
    """
    channel.write_frame(READY)
    try:
        frame = channel.read_frame()
        (seed,) = SEED.unpack_from(frame)
        if seed:  # the zygote has seeded with 0
            random.seed(seed)
        driver.run(channel, frame[SEED.size :])
        status = 0
    except BaseException as error:  # whatever a program throws, SystemExit included, ends here
        status = exit_code(error)
        if not isinstance(error, SystemExit):
            _report(error)
    _end(status)


def exit_code(error: BaseException) -> int:
    """The exit code of a program that ends with this exception, as the interpreter would have it."""
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    _report(error)
    return 1


def _report(error: BaseException) -> None:
    """Write an exception as the interpreter does; a program may have broken any part of that."""
    try:
        if isinstance(error, SystemExit):
            print(error.code, file=sys.stderr)
        else:
            traceback.print_exception(error)
    except BaseException:
        os.write(2, b"an exception that cannot be shown\n")


def _end(status: int) -> NoReturn:
    """Do what the interpreter does at its end, without taking its modules apart, which takes long."""
    try:
        if _thread._count():
            # The interpreter's own way to wait for them.
            threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        _flush()
    except BaseException:
        status = status or 1
    os._exit(status)


def _flush() -> None:
    # The program may have put others in their places.
    for stream in {*_streams, sys.stdout, sys.stderr} - {None}:
        try:  # noqa: SIM105  # `suppress` would be one more object in every run
            stream.flush()
        except ValueError:
            pass  # it is closed, or its buffer is detached


def warm_up(script: Driver) -> None:
    """Run a program that does nothing, in the zygote itself.

    The interpreter keeps what it has looked up, and the code that it has made faster; a child that finds both
    ready writes to fewer pages.

    Args:
        script: The driver of that name.
    """
    main, words = sys.modules["__main__"], sys.argv
    for _ in range(_WARM_UPS):
        channel = Channel(*os.pipe())
        channel.write_frame(b"print(end='')")
        script.run(channel, channel.read_frame())
        _thread._count()
        _flush()
    sys.modules["__main__"], sys.argv = main, words
    linecache.cache.clear()


def hide_setup() -> None:
    """Take these modules out of the reach of ``import``; programs find the standard library and no more."""
    for name in [name for name in sys.modules if name.split(".")[0] == "art_gym"]:
        del sys.modules[name]


def prepare() -> None:
    """What every run finds: text streams on the descriptors 0, 1 and 2, and random numbers that repeat."""
    sys.stdin = _text(0, "r", "surrogateescape")
    # What cannot be encoded is shown by its escape: a program does not fail for printing it.
    sys.stdout = _text(1, "w", "backslashreplace")
    sys.stderr = _text(2, "w", "backslashreplace")
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
    _streams.extend((sys.stdout, sys.stderr))
    random.seed(0)


def _text(descriptor: int, mode: str, errors: str) -> io.TextIOWrapper:
    stream = open(descriptor, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
    assert isinstance(stream, io.TextIOWrapper)
    return stream
