"""``art/Coding-v0``: solve a programming task in Python, in a sandbox."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any, ClassVar

import numpy as np

from art_gym.base import require_choice
from art_gym.env import Baseline, TextEnv
from art_gym.envs.coding.baselines import BASELINES, TEACHERS
from art_gym.envs.coding.collection import BUILTIN, open_collection
from art_gym.envs.coding.judge import Verdict, Which, grade
from art_gym.envs.coding.problem import Problem
from art_gym.envs.coding.sandbox import Limits, SandboxFailedError
from art_gym.envs.coding.sandbox import Outcome as RunOutcome
from art_gym.envs.coding.sharing import shared_sandbox
from art_gym.envs.coding.statement import printed, report, statement, wanted
from art_gym.errors import ToolError
from art_gym.parameters import Code
from art_gym.tasks import Task
from art_gym.tools import Outcome, tool

_QUICK = Limits(wall_seconds=12, cpu_seconds=1)
"""For one expression; a model in training writes thousands, and ``9 ** 9 ** 9`` among them."""
_FENCED = re.compile(r"\s*```[^\n`]*\n(.*?)\n?```\s*", re.DOTALL)
_LONGEST_CODE = 100_000  # characters
_QUICK_REWARD = 0.1
_LOADS_REWARD = 0.05
REWARDS: Mapping[str, Callable[[Verdict], float]] = {
    "all": lambda verdict: float(verdict.solved),
    "fraction": lambda verdict: verdict.fraction,
}
"""What the hidden tests pay, from 0 to 1, by the name that ``gym.make`` takes."""


class CodingEnv(TextEnv):
    """Solve a programming task in Python.

    ## Description
    The agent gets a task as text, often with code to start from and examples. It can run code, try the
    examples, and submits an answer, which hidden tests decide. Whatever it writes runs in a sandbox: no
    network, no files, no other processes, a limit on time, memory and output.

    ## Action Space
    Text: one call of ``run``, ``test`` or ``submit``. A fenced block counts as the code of the tool that the
    line before it names.

    ## Observation Space
    Text: what the code printed and how it ended; which examples fail, with input, expected and got. Long
    output is cut in the middle, with a note of how much is left out. Hidden tests and times are never shown.

    ## Starting State
    The standing instructions and the task. The seed chooses the task.

    ## Rewards
    Only a submission pays, by the hidden tests. ``reward="all"`` (the default) pays ``tests`` 1 when all
    pass; ``reward="fraction"`` pays the share that does. A solution earns ``quick`` besides, up to 0.1 for
    turns left; any other answer that loads earns 0.05 at least, by ``loads``. What the task shows pays
    nothing. A reply that is no valid call costs ``invalid_action_penalty``.

    The hidden tests run in the sandbox on inputs alone; what comes back is compared outside, by exact type
    and value. What passes is judged a second time in a fresh order, and what does not pass both times does
    not count. When the sandbox itself fails, ``step`` raises ``SandboxFailedError``, which trainers treat as
    a failed episode: no reward in either direction.

    ## Episode End
    Terminated by ``submit``; truncated after ``max_turns`` replies.

    ## Information
    The standard keys; at the end ``metrics`` also has ``passed`` (the share of the hidden tests), ``runs``
    and ``tests_tried`` (calls of ``run`` and ``test``) and the problem's ``level``, and ``facts`` the wanted
    and the reached share.

    ## Arguments
    * ``problems``: ``"builtin"``; a file in a format that ``load_problems`` reads (its own JSONL,
      HumanEval, MBPP, contests, Exercism); or a list of ``Problem``.
    * ``level``: 0 (complete one expression; from a grammar, for small models), 1 (one small idea), 2 (a loop
      with a catch), 3 (an algorithm), a list of these, or ``None``: all that ask for a program.
    * ``operators``, ``described``: of level 0, how many operators an expression has and whether the task
      describes the result (else only the examples show it).
    * ``reward``: ``"all"`` or ``"fraction"``.
    * ``judge_twice``: whether a submission is judged a second time.
    * ``split``, ``max_turns``, ``invalid_action_penalty``, ``render_mode``: as in every ``TextEnv``.

    ## References
    Chen et al. (2021), "Evaluating Large Language Models Trained on Code" (HumanEval). That the child gets no
    expected output, and that results are compared by exact type, answers what its runner and others allow: an
    object that equals everything, an exit with code 0.

    ## Version History
    * v0: first version.
    """

    instructions: ClassVar[str] = (
        "Solve a programming task in Python. You can run code and test it on the examples; end with submit. "
        "Hidden tests decide. Write code as text, or in a fenced block below a line that names the tool."
    )
    shared: ClassVar[tuple[str, ...]] = ("problems", "reward_name", "judge_twice")
    baselines: ClassVar[Mapping[str, Baseline]] = BASELINES
    teachers: ClassVar[Mapping[str, Baseline]] = TEACHERS

    def __init__(
        self,
        *,
        problems: str | PathLike[str] | Iterable[Problem] = BUILTIN,
        level: int | Iterable[int] | None = None,
        operators: int = 1,
        described: bool = True,
        reward: str = "all",
        judge_twice: bool = True,
        split: str = "train",
        max_turns: int = 8,
        invalid_action_penalty: float = 0.1,
        render_mode: str | None = None,
    ) -> None:
        require_choice("reward", reward, REWARDS)
        self.problems, tasks = open_collection(
            problems, level=level, operators=operators, described=described
        )
        self.reward_name = reward
        self.judge_twice = judge_twice
        self._runs = 0
        self._tests_tried = 0
        self._passed: float | None = None
        super().__init__(
            tasks,
            split=split,
            max_turns=max_turns,
            invalid_action_penalty=invalid_action_penalty,
            render_mode=render_mode,
        )

    @property
    def problem(self) -> Problem:
        """The problem of this episode, hidden cases and reference included: for scripted policies."""
        return self.problems[self.task.id]

    def begin(self, task: Task) -> str:
        """Forget the last episode and show the task."""
        self._runs = self._tests_tried = 0
        self._passed = None
        return statement(self.problems[task.id])

    @tool
    def run(self, code: Code, stdin: str = "") -> str:
        """Run code as a program and see what it prints.

        Args:
            code: The program.
            stdin: What it reads from standard input.
        """
        program = _checked(code)
        self._runs += 1
        data = stdin.encode("utf-8", "replace")
        ran = shared_sandbox().run("script", program.encode("utf-8", "replace"), stdin=data)
        if ran.outcome is RunOutcome.REFUSED:
            raise SandboxFailedError(ran.describe())
        exited = ran.outcome is RunOutcome.EXITED
        return printed(ran.stdout, ran.stderr, ran.exit_code if exited else ran.describe())

    @tool
    def test(self, code: Code) -> str:
        """Try an answer on the examples.

        Args:
            code: The whole answer, as for submit.
        """
        if not self.problem.public:
            raise ToolError(f"this task has no examples to try; submit {wanted(self.problem)}")
        self._tests_tried += 1
        return report(self._grade(code, "public"))

    @tool(ends=True)
    def submit(self, code: Code) -> Outcome:
        """End with this answer; hidden tests decide.

        Args:
            code: The whole answer.
        """
        verdict = self._grade(code, "hidden")
        self._passed = verdict.fraction
        left = (self.max_turns - self.turn) / self.max_turns
        terms = score_terms(self.reward_name, verdict, left)
        if verdict.solved:
            words = "All hidden tests pass."
        elif not verdict.loaded:
            words = "The program cannot be loaded."
        else:
            words = f"{verdict.passed} of {verdict.total} hidden tests pass."
        return Outcome(words, terms, success=verdict.solved, metrics=self._metrics(verdict.fraction))

    def on_truncation(self) -> Outcome:
        """Without a submission nothing is paid."""
        return Outcome("No turns are left.", metrics=self._metrics(0.0))

    def facts(self) -> dict[str, Any]:
        """For judges, the share of the hidden tests that pass; what the tests are stays hidden."""
        facts: dict[str, Any] = {
            "expected": {"tests_passed": 1.0},
            "optimal_turns": 2 if self.problem.public else 1,  # trying the examples first is no waste
            "required_actions": ["submit"],
        }
        return facts if self._passed is None else facts | {"result": {"tests_passed": self._passed}}

    def _grade(self, code: str, which: Which) -> Verdict:
        return grade(
            self.problem,
            _checked(code),
            shared_sandbox(),
            which,
            twice=self.judge_twice and which == "hidden",
            rng=np.random.default_rng(self.np_random.integers(2**32)),
            limits=_QUICK if self.problem.level == 0 else None,
        )

    def _metrics(self, passed: float) -> dict[str, float]:
        return {
            "passed": passed,
            "runs": float(self._runs),
            "tests_tried": float(self._tests_tried),
            "level": float(self.problem.level),
        }


def _checked(code: str) -> str:
    """The code without a fence around it; a ToolError if it is too long."""
    if len(code) > _LONGEST_CODE:
        raise ToolError(f"code may have {_LONGEST_CODE:,} characters, not {len(code):,}")
    fenced = _FENCED.fullmatch(code)
    return fenced[1] if fenced else code


def score_terms(reward: str, verdict: Verdict, turns_left: float) -> dict[str, float]:
    """The reward of a submission in named parts.

    ``tests`` is what the hidden tests pay. A solution earns ``quick`` besides, up to 0.1 for turns left; any
    other program that loads and has what is to be called is paid 0.05 at least, by ``loads``.

    Args:
        reward: A name in `REWARDS`.
        verdict: On the hidden tests.
        turns_left: The share of the turns that were not used.
    """
    terms = {"tests": REWARDS[reward](verdict)}
    if verdict.solved:
        terms["quick"] = _QUICK_REWARD * turns_left
    elif verdict.loaded and terms["tests"] < _LOADS_REWARD:
        terms["loads"] = _LOADS_REWARD - terms["tests"]
    return terms
