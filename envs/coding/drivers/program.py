"""Load a candidate's source as a module, and describe its exceptions. Runs inside the sandbox."""

from __future__ import annotations

import linecache
import sys
import traceback
import types

_LONGEST = 1_500


def load(code: str, name: str) -> types.ModuleType:
    """Execute the text as the module `name`.

    Its name is not ``__main__``, so that what stands under ``if __name__ == "__main__"`` is left out.

    Raises:
        BaseException: Whatever the text raises.
    """
    file = f"{name}.py"
    module = types.ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    linecache.cache[file] = (len(code), None, code.splitlines(True), file)
    exec(compile(code, file, "exec", dont_inherit=True), module.__dict__)
    return module


def describe(error: BaseException, name: str) -> str:
    """A traceback as text: the lines of the candidate's own file, then the exception."""
    try:
        file = f"{name}.py"
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        lines = [f"line {frame.lineno}, in {frame.name}: {frame.line}\n" for frame in frames[-3:]]
        lines += traceback.format_exception_only(type(error), error)
        return "".join(lines).strip()[-_LONGEST:]
    except BaseException:  # an exception of the candidate's may raise when it is formatted
        return "an exception that cannot be shown"
