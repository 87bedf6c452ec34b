"""Run a unittest file that imports the candidate's module as a proxy. Runs inside the sandbox.

No code of the candidate's is ever in this process. The payload is JSON: ``tests`` (the file's text),
``module`` (the name it imports the candidate by), ``classes`` (what in it is a class whose operators count)
and ``seed`` (of their order).
Frames that begin with ``>`` are for the candidate; those that begin with ``=`` are for the judge, JSON:
``{"failed": message or null}`` once the file has loaded, ``{"tests": [ids]}``, and for each test
``{"id": id, "passed": bool}``. A skipped test has not passed.
"""

from __future__ import annotations

import builtins
import collections.abc
import functools
import io
import json
import math
import operator
import random
import sys
import types
import unittest
import unittest.mock
from typing import Any

from art_gym.envs.coding.drivers.program import describe, load
from art_gym.envs.coding.drivers.remote import CHANGING, HARMLESS, OPERATORS, PLAIN, Peer

_NAME = "tests"
_STREAM = frozenset("read readline readlines write writelines getvalue seek tell flush close closed".split())
_READABLE = (collections.abc.Iterator, collections.abc.MappingView, range)
_READING = frozenset((*HARMLESS, "__contains__", "__reversed__")) - {"__call__"}
_PURE = "abs all any ascii bin chr divmod hash hex len max min oct ord pow repr round sorted sum".split()
_FUNCTIONS = frozenset(
    found
    for found in (*vars(math).values(), *vars(operator).values(), *(vars(builtins)[name] for name in _PURE))
    if isinstance(found, types.BuiltinFunctionType) and found.__name__ != "call"
)
"""Those of the standard library that the candidate may call, if it is handed them."""


class _Proxied(types.ModuleType):
    """The candidate's module: a name that is looked up here is looked up there."""

    def __init__(self, name: str, peer: Peer, module: Any, classes: list[str]) -> None:
        super().__init__(name)
        vars(self).update({"_peer": peer, "_module": module, "_classes": classes})

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":  # the candidate would choose what the tests find by every name
            raise ImportError("`from … import *` is not possible in these tests: name what they import")
        if name.startswith("__"):
            raise AttributeError(name)
        value = vars(self)["_peer"].request("get", vars(self)["_module"], name)
        if name in vars(self)["_classes"]:
            vars(self)["_peer"].know(value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)["_peer"].request("set", vars(self)["_module"], name, value)

    def __delattr__(self, name: str) -> None:
        vars(self)["_peer"].request("delete", vars(self)["_module"], name)


class _Result(unittest.TestResult):
    """Remembers whether the one test that is run passed."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = False

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.passed = True

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.passed = False

    addFailure = addError

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.addError(test, err)


def main(channel: Any, payload: bytes) -> None:
    """Load the tests, run them one after the other, and report each."""
    job = json.loads(payload)

    def report(message: dict[str, Any]) -> None:
        channel.write_frame(b"=" + json.dumps(message).encode())

    peer = Peer(
        channel.read_frame,
        lambda frame: channel.write_frame(b">" + frame),
        allows=_allows,
        sends=_sends,
        trusting=False,
    )
    try:
        sys.modules[job["module"]] = _Proxied(job["module"], peer, peer.accept(), job["classes"])
        cases = _cases(load(job["tests"], _NAME))
    except BaseException as error:  # SystemExit too: whatever ends the loading is reported
        report({"failed": describe(error, _NAME)})
        return
    report({"failed": None})
    random.Random(job["seed"]).shuffle(cases)
    report({"tests": [case.id() for case in cases]})
    for case in cases:
        result = _Result()
        peer.caught.clear()
        unittest.TestSuite([case]).run(result)
        report({"id": case.id(), "passed": result.passed and not peer.caught})


def _cases(module: types.ModuleType) -> list[unittest.TestCase]:
    """The tests of a file, without those that its author skips."""
    found: list[unittest.TestCase] = []
    todo: list[Any] = [unittest.defaultTestLoader.loadTestsFromModule(module)]
    while todo:
        suite = todo.pop()
        if isinstance(suite, unittest.TestSuite):
            todo.extend(suite)
        elif not _skipped(suite):
            found.append(suite)
    return sorted(found, key=lambda case: case.id())


def _skipped(case: unittest.TestCase) -> bool:
    method = getattr(case, case.id().rpartition(".")[2], None)
    return any(getattr(marked, "__unittest_skip__", False) for marked in (type(case), method))


def _sends(value: Any) -> bool:
    """What a test may hand to the candidate: nothing through which the tests themselves can be reached."""
    return not isinstance(value, (types.ModuleType, unittest.TestCase, types.FrameType, types.CodeType))


def _allows(what: str, target: Any, name: str) -> bool:
    """What the candidate may do to an object that it was handed; everything else is refused.

    It may call functions, read iterators, streams and mocks, and use an object of a class of the tests, but
    for its private names. It may use no class, nor the names of a function or a generator, which lead to the
    tests' frames and globals.
    """
    if isinstance(target, type):
        return False
    mock = isinstance(target, unittest.mock.NonCallableMock)
    own = not mock and _of_the_tests(type(target))
    stream = not own and isinstance(target, io.IOBase)
    if what == "call":
        return own or mock or _is_function(target)
    if what == "get" and not name.startswith("_"):
        # A mock's own names are what the tests ask of it, and how they set it.
        return own or (stream and name in _STREAM) or (mock and not hasattr(type(target), name))
    if what == "special" and (own or mock or stream or isinstance(target, _READABLE)):
        return name in _READING or (own and name in OPERATORS and name not in CHANGING)
    return False


def _of_the_tests(thing: Any) -> bool:
    """Whether a class or function stands in the tests' file, or in a module that this file made."""
    module = sys.modules.get(str(getattr(thing, "__module__", "")))
    return module is not None and module.__name__ != "__main__" and module.__spec__ is None


def _is_function(target: Any) -> bool:
    """Whether this is a function of the tests, or one that changes nothing that it is not given."""
    if isinstance(target, functools.partial):
        return _is_function(target.func)
    if isinstance(target, types.MethodDescriptorType):  # such as `str.upper`
        return target.__objclass__ in PLAIN and not target.__name__.startswith("format")
    if isinstance(target, types.BuiltinFunctionType):
        owner = target.__self__
        if isinstance(owner, types.ModuleType):
            return target in _FUNCTIONS
        return type(owner) in PLAIN or isinstance(owner, io.IOBase)
    function = target.__func__ if isinstance(target, types.MethodType) else target
    return isinstance(function, types.FunctionType) and _of_the_tests(function)
