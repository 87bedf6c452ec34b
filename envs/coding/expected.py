"""Expected values for sets that publish inputs and a reference solution: what that one returns."""

from __future__ import annotations

import json
from dataclasses import replace

from art_gym.envs.coding.drivers.codec import decode, encode
from art_gym.envs.coding.endings import ending
from art_gym.envs.coding.problem import Problem
from art_gym.envs.coding.sandbox import Sandbox


def with_expected(problem: Problem, sandbox: Sandbox) -> Problem:
    """The problem with what its reference solution returns as the expected value of every hidden case.

    Public cases without one of their own become the hidden cases of the same arguments.

    Raises:
        ValueError: When the reference solution fails on a case, or returns what is no plain value.
    """
    job = {
        "code": problem.complete(problem.reference),
        "entry_point": problem.entry_point,
        "cases": [(encode(case.args), encode(dict(case.kwargs))) for case in problem.hidden],
    }
    run = sandbox.run("calls", json.dumps(job).encode())
    head, *results = [json.loads(frame) for frame in run.frames] or [{"failed": ending(run)}]
    if head["failed"] is not None:
        raise ValueError(f"the reference solution cannot be loaded: {head['failed']}")
    if len(results) != len(problem.hidden):
        raise ValueError(f"the reference solution fails on case {len(results) + 1}: {ending(run)}")
    hidden = []
    for number, (case, result) in enumerate(zip(problem.hidden, results, strict=True), 1):
        if "raised" in result:
            raise ValueError(f"the reference solution fails on case {number}: {result['raised']}")
        try:
            hidden.append(replace(case, expected=decode(result["value"])))
        except ValueError as error:
            raise ValueError(f"the reference returns no plain value on case {number}: {error}") from None
    known = {repr(case.args): case for case in hidden}
    public = tuple(known.get(repr(case.args), case) for case in problem.public)
    return replace(problem, hidden=tuple(hidden), public=public)
