"""Baselines of the coding environment (scripted policies), and the teachers that look at the answer.

``empty`` and ``hard_coded`` show the reward of answers that solve nothing: with good hidden tests, none.
The teachers know the reference solution; they are an upper bound and can be imitated.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from textwrap import indent
from typing import TYPE_CHECKING

import numpy as np

from art_gym.baselines import Act, Baseline
from art_gym.envs.coding.problem import HOLE, Problem
from art_gym.envs.coding.problems.grammar import noisy_answer
from art_gym.envs.coding.values import write_literal
from art_gym.random_calls import random_calls

if TYPE_CHECKING:
    from art_gym.envs.coding.env import CodingEnv


_TESTS_FIRST = 0.2  # how often the demonstrator tries the examples before it submits


def empty(env: CodingEnv, rng: np.random.Generator) -> Act:
    """Submit a program that does nothing."""
    return lambda observation: _call(env, "submit", empty_answer(env.problem))


def hard_coded(env: CodingEnv, rng: np.random.Generator) -> Act:
    """Submit a program that returns the answer of the first public example."""
    return lambda observation: _call(env, "submit", constant_answers(env.problem)[0])


def reference(env: CodingEnv, rng: np.random.Generator) -> Act:
    """Submit the reference solution."""
    return lambda observation: _call(env, "submit", env.problem.reference)


def repair(env: CodingEnv, rng: np.random.Generator) -> Act:
    """Test wrong solutions one after the other, then the reference, and submit the first that passes.

    An agent that improves its program by the examples. It submits a mutant that passes all public examples,
    so its success rate also measures how good these are.
    """
    tries = list(env.problem.mutants)
    tries = [tries[int(index)] for index in rng.permutation(len(tries))][: max(0, env.max_turns - 2)]
    replies = _repairs(env, [*tries, env.problem.reference])
    first = [next(replies)]  # which asks for no observation
    return lambda observation: first.pop() if first else replies.send(observation)


def demonstrator(env: CodingEnv, rng: np.random.Generator) -> Act:
    """A noisy agent to learn the tools from: it knows the answer and gives it in a third of its tries.

    Otherwise it submits a wrong answer of the same kind. Sometimes it tries the examples first.
    """
    problem = env.problem
    if problem.source.startswith("grammar"):
        answer = noisy_answer(problem, rng)
    else:
        answers = (problem.reference, *problem.mutants)
        right = rng.random() < 1 / 3 or len(answers) == 1
        answer = answers[0 if right else int(rng.integers(1, len(answers)))]
    names = ["submit"]
    if rng.random() < _TESTS_FIRST and problem.public and env.max_turns > 1:
        names = ["test", "submit"]
    replies = (_call(env, name, answer) for name in names)
    return lambda observation: next(replies)


BASELINES: Mapping[str, Baseline] = {"random": random_calls, "empty": empty, "hard_coded": hard_coded}
TEACHERS: Mapping[str, Baseline] = {"reference": reference, "repair": repair, "demonstrator": demonstrator}


def empty_answer(problem: Problem) -> str:
    """The shortest answer that can be loaded and does nothing."""
    if HOLE in problem.template:
        return "None"
    if problem.kind == "function":
        return _function(problem.entry_point, "pass")
    return "pass\n"


def constant_answers(problem: Problem) -> list[str]:
    """Answers that ignore the input, the first public example's expected value first."""
    if problem.kind == "unittest":
        return [empty_answer(problem)]
    if problem.kind == "script":
        outputs = dict.fromkeys([*(case.stdout or "" for case in problem.public[:1]), "", "0\n"])
        return [f"print({output!r}, end='')\n" for output in outputs]
    values = [*(write_literal(case.expected) for case in problem.public[:1]), "None", "0", "''", "[]"]
    values = list(dict.fromkeys(values))
    if HOLE in problem.template:
        return values
    return [_function(problem.entry_point, f"return {value}") for value in values]


def _function(entry_point: str, body: str) -> str:
    kind, _, name = entry_point.rpartition(".")
    lines = f"def {name}(*args, **kwargs):\n    {body}\n"
    return f"class {kind}:\n" + indent(lines, "    ") if kind else lines


def _call(env: CodingEnv, name: str, code: str) -> str:
    return env.tools[name].render({"code": code})


def _repairs(env: CodingEnv, tries: list[str]) -> Generator[str, str, None]:
    """Test each but the last; submit the first that passes all examples, else the last."""
    examples = len(env.problem.public)
    for code in tries[:-1] if examples else ():
        observation = yield _call(env, "test", code)
        if observation.startswith(f"{examples} of {examples} examples pass"):
            yield _call(env, "submit", code)
    yield _call(env, "submit", tries[-1])
