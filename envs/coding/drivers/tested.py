"""Run a unittest file that imports the candidate's module as a proxy. Runs inside the sandbox.

No code of the candidate's is ever in this process. The payload is JSON: ``tests`` (the file's text),
``module`` (the name it imports the candidate by), ``classes`` (what in it is a class whose operators count)
and ``seed`` (of their order).
Frames that begin with ``>`` are for the candidate; those that begin with ``=`` are for the judge, JSON:
``{"failed": message or null}`` once the file has loaded, ``{"tests": [ids]}``, and for each test
``{"id": id, "passed": bool, "message": message}``. A skipped test has not passed.
"""

from __future__ import annotations

import io
import json
import random
import sys
import types
import unittest
import unittest.mock
from typing import Any

from art_gym.envs.coding.drivers.program import describe, load
from art_gym.envs.coding.drivers.remote import HARMLESS, OPERATORS, Peer

_NAME = "tests"
_BESIDE_TESTS = (io.StringIO.__module__, unittest.mock.__name__, _NAME)


class _Proxied(types.ModuleType):
    """The candidate's module: a name that is looked up here is looked up there."""

    def __init__(self, name: str, peer: Peer, module: Any, classes: list[str]) -> None:
        super().__init__(name)
        vars(self).update({"_peer": peer, "_module": module, "_classes": classes})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
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
    """Remembers whether the one test that is run passed, and else why."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = False
        self.why = "skipped"

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.passed = True

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.passed, self.why = False, describe(err[1], _NAME)

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
        unittest.TestSuite([case]).run(result)
        passed = result.passed and result.wasSuccessful()
        report({"id": case.id(), "passed": passed, "message": "" if passed else result.why})


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
    """What the candidate may do to what it was handed: call it, use it as a value, read its public names.

    The names of a function, a generator or a class lead to the tests' frames and globals: they are closed.
    """
    if what == "call":
        return not isinstance(target, type) or target.__module__ in _BESIDE_TESTS
    if what == "special":
        return name in (*HARMLESS, *OPERATORS)
    return what == "get" and not name.startswith("_") and type(target).__module__ in _BESIDE_TESTS
