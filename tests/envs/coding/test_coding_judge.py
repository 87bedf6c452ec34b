"""The judge: right answers pass, wrong ones do not, and no trick is worth more than a wrong answer."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from art_gym.envs.coding.baselines import constant_answers, empty_answer
from art_gym.envs.coding.env import score_terms
from art_gym.envs.coding.judge import Verdict, grade, run_tests, same_output
from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.coding.sandbox import (
    Limits,
    Outcome,
    Run,
    Sandbox,
    SandboxFailedError,
    SandboxUnavailableError,
)
from tests.envs.coding.tasks import BARE, HOLE

HACKS = Path(__file__).with_name("reward_hacks")
PRELUDE = (HACKS / "prelude.txt").read_text("utf-8")
"""An object that agrees to everything, a writer of forged frames to every descriptor, and a search through
all that the process holds."""


def sections(name: str) -> dict[str, str]:
    """The programs in a file, by the name after ``###``."""
    text = (HACKS / f"{name}.txt").read_text("utf-8")
    found = [section.partition("\n") for section in text.removeprefix("### ").split("\n### ")]
    return {title: program for title, _, program in found}


def hacks(name: str) -> dict[str, str]:
    """Programs that try to be rewarded without solving anything."""
    return {title: f"{PRELUDE}\n{program}" for title, program in sections(name).items()}


CALL_HACKS = hacks("against_calls")
"""Programs that define ``word``."""
TEST_HACKS = hacks("against_tests")
"""Modules that define ``f``."""

SECRETS = ["secret-4711", "secret-0815", "secret-2342"]
SHORT = Limits(wall_seconds=4, cpu_seconds=1)

WORDS = Problem(
    id="words",
    prompt="Say the word for a number.",
    entry_point="word",
    public=(Case((0,), expected="zero"),),
    hidden=tuple(Case((number,), expected=secret) for number, secret in enumerate(SECRETS, 1)),
    reference=f"WORDS = {['zero', *SECRETS]}\ndef word(n):\n    return WORDS[n]\n",
)
DOUBLE = Problem(
    id="double",
    prompt="Double it.",
    entry_point="double",
    public=(Case((2,), expected=4), Case(("ab",), expected="abab")),
    hidden=(Case((5,), expected=10), Case(([1],), expected=[1, 1]), Case(kwargs={"x": 1.5}, expected=3.0)),
    reference="def double(x):\n    return x * 2\n",
)
ECHO = Problem(
    id="echo",
    prompt="Print the lines in reverse.",
    kind="script",
    public=(Case(stdin="a\nb\n", stdout="b\na\n"),),
    hidden=(Case(stdin="1\n2\n3", stdout="3\n2\n1"), Case(stdin="", stdout="")),
    reference="import sys\nfor line in reversed(sys.stdin.read().split()):\n    print(line)\n",
)


def function(*cases: Case, **fields: Any) -> Problem:
    return Problem(id="p", prompt="p", entry_point="f", hidden=cases, **fields)


SORT = function(*[Case(([3, 1],), expected=[1, 3, 0])] * 3)


ANSWERS = {
    f"{problem}: {answer['name']}": (task, answer)
    for problem, task in {"double": DOUBLE, "echo": ECHO, "hole": HOLE, "sort": SORT}.items()
    for answer in tomllib.loads(Path(__file__).with_name("judged.toml").read_text("utf-8"))[problem]
}


def judged(problem: Problem, code: str, sandbox: Sandbox, **how: Any) -> Verdict:
    return grade(problem, code, sandbox, limits=SHORT, **how)


@pytest.mark.parametrize("problem", [WORDS, DOUBLE, ECHO])
def test_the_reference_passes(problem: Problem, sandbox: Sandbox) -> None:
    for twice in (False, True):
        verdict = judged(problem, problem.reference, sandbox, twice=twice, rng=np.random.default_rng(0))
        assert verdict == Verdict(len(problem.hidden), len(problem.hidden))
        assert (verdict.solved, verdict.fraction) == (True, 1.0)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer(name: str, sandbox: Sandbox) -> None:
    task, answer = ANSWERS[name]
    loaded = answer.get("loaded", True)
    verdict = judged(task, answer["code"], sandbox)
    assert verdict == Verdict(answer.get("passed", 0), len(task.hidden), loaded=loaded)
    if "says" in answer:
        public = judged(task, answer["code"], sandbox, which="public")
        shown = [f"{each.given} {each.expected} {each.got}\n" for each in public.results if not each.passed]
        assert public.loaded == loaded
        assert all(words in public.failure + "".join(shown) for words in answer["says"])


def test_a_right_answer_may_need_much_and_its_second_try_as_much(sandbox: Sandbox) -> None:
    long = "x" * (9 << 20)
    for problem, code in [
        (replace(ECHO, public=(), hidden=(Case(stdin="", stdout=long),)), "print('x' * (9 << 20))"),
        (function(Case(expected=long)), "def f(): return 'x' * (9 << 20)"),
        (DOUBLE, "def double(x):\n    print('x' * 15_000)\n    return x * 2\n"),
        (DOUBLE, "held = [0] * 40_000_000\ndef double(x): return x * 2\n"),  # 320 MB of half a GiB
    ]:
        assert grade(problem, code, sandbox, twice=True, limits=Limits(cpu_seconds=600)).solved


def test_what_passes_only_once_does_not_count(sandbox: Sandbox) -> None:
    problem = function(*(Case((i,), expected=i) for i in range(6)))
    # Right in the order of the cases only, as the second call of `f` must be that of the second case.
    counting = "calls = []\ndef f(i):\n    calls.append(i)\n    return len(calls) - 1\n"
    assert judged(problem, counting, sandbox).solved
    assert not judged(problem, counting, sandbox, twice=True).solved
    guessing = "import random\ndef f(i):\n    return i if random.random() < 0.7 else -1\n"
    rngs = map(np.random.default_rng, range(8))
    passes = [judged(problem, guessing, sandbox, twice=True, rng=rng).passed for rng in rngs]
    assert sum(passes) < 0.7 * 8 * 6


@pytest.mark.parametrize(("cpu_seconds", "processes"), [(600, 1), (1, 2)])
def test_the_second_try_of_what_is_quick_needs_no_second_process(
    cpu_seconds: int, processes: int, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = sandbox.start, []
    monkeypatch.setattr(sandbox, "start", lambda *args, **how: started.append(args) or start(*args, **how))
    # The answer is loaded anew for each try; a module of the standard library lives as long as the process.
    code = (
        "import math, time\nmath.tries = getattr(math, 'tries', 0) + 1\ndef f():\n"
        "    time.sleep(0.2)\n    return math.tries\n"
    )
    verdict = grade(BARE, code, sandbox, twice=True, limits=Limits(wall_seconds=60, cpu_seconds=cpu_seconds))
    assert (verdict.solved, len(started)) == (processes == 2, processes)


@pytest.mark.parametrize(
    ("expected", "got", "tolerance", "alike"),
    [
        ("a\nb\n", "a  \nb", None, True),
        ("a\n\nb", "a\nb", None, False),
        ("a b", "a  b", None, False),
        ("1.0", "1.0000001", None, False),
        ("1.0 x\n2", "1.0000001 x\n2.0", 1e-6, True),
        ("1.0", "nan", 1e-6, False),
        ("1.0", "1.1", 1e-6, False),
        ("inf", "3.0", 1e-6, False),
        ("inf", "inf", 1e-6, True),
        ("1.0 2", "1.0", 1e-6, False),
        ("", "\n\n", None, True),
    ],
)
def test_output_is_compared_by_line(expected: str, got: str, tolerance: float | None, alike: bool) -> None:
    assert same_output(expected, got, tolerance=tolerance) == alike


def test_a_script_that_hangs_is_not_tried_on_every_case() -> None:
    runs = []

    class Hanging:
        limits = SHORT

        def run(self, *args: object, **how: object) -> Run:
            runs.append(args)
            return Run(Outcome.TIMEOUT)

    cases = tuple(Case(stdin=str(i), stdout="") for i in range(20))
    problem = Problem(id="p", prompt="p", kind="script", hidden=cases)
    verdict = grade(problem, "", Hanging())  # type: ignore[arg-type]
    assert (verdict.passed, verdict.total, len(runs)) == (0, 20, 3)


@pytest.mark.e2e
def test_a_problem_may_give_more_time_and_a_busy_machine_takes_none(sandbox: Sandbox) -> None:
    code = "import time\nwhile time.process_time() < 1.5: pass\ndef f(): return time.sleep(1) or 1"
    slow = replace(BARE, limits={"cpu_seconds": 9})
    limits = Limits(wall_seconds=2, cpu_seconds=1)
    assert [grade(problem, code, sandbox, limits=limits).solved for problem in (BARE, slow)] == [False, True]


@pytest.mark.parametrize(("problem", "good_runs"), [(DOUBLE, 0), (ECHO, 0), (ECHO, 1)])
def test_a_failure_of_the_sandbox_is_no_verdict(problem: Problem, good_runs: int, sandbox: Sandbox) -> None:
    class Failing:
        limits = SHORT
        left = good_runs * len(problem.hidden)

        def run(self, *args: Any, **how: Any) -> Run:
            if self.left:
                self.left -= 1
                return sandbox.run(*args, **how)
            return Run(Outcome.REFUSED, why="no walls")

    with pytest.raises(SandboxFailedError, match="the sandbox failed: no walls"):
        grade(problem, problem.reference, Failing(), twice=True)  # type: ignore[arg-type]


def test_a_sandbox_that_cannot_start_tests_is_no_verdict() -> None:
    class Unavailable:
        limits = SHORT

        def start(self, *args: object, **how: object) -> None:
            raise SandboxUnavailableError("no walls")

    problem = Problem(id="p", prompt="p", kind="unittest", entry_point="m", tests="import m")
    with pytest.raises(SandboxFailedError, match="the sandbox failed: no walls"):
        grade(problem, "", Unavailable())  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [SandboxUnavailableError("it died"), OSError(24, "too many files")])
def test_a_sandbox_that_fails_once_is_tried_again_for_tests_too(error: Exception, sandbox: Sandbox) -> None:
    errors = [error]

    class Flaky:
        limits = SHORT

        def start(self, *args: Any, **how: Any) -> Any:
            if errors:
                raise errors.pop()
            return sandbox.start(*args, **how)

    tests = (
        "import unittest, m\nclass T(unittest.TestCase):\n"
        "    def test(self):\n        self.assertEqual(m.one(), 1)\n"
    )
    problem = Problem(id="p", prompt="p", kind="unittest", entry_point="m", tests=tests)
    assert grade(problem, "def one():\n    return 1\n", Flaky()).solved  # type: ignore[arg-type]


@pytest.mark.parametrize("hack", CALL_HACKS)
def test_a_reward_hack_is_worth_nothing(hack: str, sandbox: Sandbox) -> None:
    verdict = judged(WORDS, CALL_HACKS[hack], sandbox, twice=True)
    assert (verdict.passed, verdict.solved, verdict.failure) == (0, False, "")
    # And the sandbox still answers rightly.
    assert judged(WORDS, WORDS.reference, sandbox).solved


def test_the_search_of_the_hacks_finds_what_is_there(sandbox: Sandbox) -> None:
    """Else that the expected values are not found would prove nothing."""
    code = PRELUDE + "hidden = {'a': [('decoy-' + str(4711),)]}\ndef word(n): return search('decoy' + '-4')"
    assert judged(WORDS, code, sandbox, which="public").results[0].got == "'decoy-4711'"


def test_a_right_answer_that_also_forges_is_worth_nothing(sandbox: Sandbox) -> None:
    code = PRELUDE + WORDS.reference + "forge({'failed': None})"
    assert judged(WORDS, code, sandbox).passed == 0


UNITTESTS = sections("unittests")
COUNTER, COUNTER_TESTS = UNITTESTS["counter"], UNITTESTS["counter tests"]
COUNTER_PROBLEM = Problem(
    id="counter", prompt="p", kind="unittest", entry_point="counter", tests=COUNTER_TESTS, reference=COUNTER
)


def failing_tests(code: str, sandbox: Sandbox, problem: Problem = COUNTER_PROBLEM) -> set[str]:
    report = run_tests(problem, code, sandbox)
    assert len(report.tests) == 5, "a test that its author skips is none"
    return {test.rpartition(".")[2] for test in {*report.tests} - report.passed}


@pytest.mark.parametrize(
    ("old", "new", "failing"),
    [
        ("", "", set()),
        ("self.value += 1", "self.value += 2", {"test_counts"}),
        ("self.value == other.value", "True", {"test_equality_of_own_objects"}),
        (
            "self.value == other.value",
            "True\n    def __ne__(self, other):\n        return True",
            {"test_equality_of_own_objects"},
        ),
        ('Empty("nothing left", 0)', "ValueError()", {"test_errors"}),
        ("function(value)", "value", {"test_callback_and_constant"}),
        ("sum(items)", "0", {"test_iterators_and_functions"}),
    ],
)
def test_a_mistake_fails_its_test_alone(old: str, new: str, failing: set[str], sandbox: Sandbox) -> None:
    assert old in COUNTER
    assert failing_tests(COUNTER.replace(old, new) if old else COUNTER, sandbox) == failing


def test_operators_of_a_class_that_was_not_asked_for_do_not_count(sandbox: Sandbox) -> None:
    unasked = replace(COUNTER_PROBLEM, reference="")
    assert failing_tests(COUNTER, sandbox, unasked) == {"test_equality_of_own_objects"}


def test_a_module_that_cannot_be_imported_fails_every_test(sandbox: Sandbox) -> None:
    verdict = judged(COUNTER_PROBLEM, "1 / 0", sandbox)
    assert (verdict.passed, verdict.solved, verdict.loaded) == (0, False, False)


NUMBERS = Problem(
    id="n",
    prompt="p",
    kind="unittest",
    entry_point="answer",
    tests=UNITTESTS["number tests"],
    reference=UNITTESTS["number answers"],
)


@pytest.mark.parametrize("hack", TEST_HACKS)
def test_a_reward_hack_against_unittest_is_worth_nothing(hack: str, sandbox: Sandbox) -> None:
    assert not run_tests(NUMBERS, TEST_HACKS[hack], sandbox, limits=SHORT).passed
    assert judged(COUNTER_PROBLEM, COUNTER, sandbox).solved


def test_the_tests_that_the_hacks_fail_can_be_passed(sandbox: Sandbox) -> None:
    assert judged(NUMBERS, NUMBERS.reference, sandbox, twice=True).solved


SOLVED, HALF, NONE, BROKEN = Verdict(4, 4), Verdict(2, 4), Verdict(0, 4), Verdict(0, 4, loaded=False)


@pytest.mark.parametrize(
    ("reward", "verdict", "turns_left", "terms"),
    [
        ("all", SOLVED, 0.5, {"tests": 1.0, "quick": 0.05}),
        ("all", SOLVED, 0.0, {"tests": 1.0, "quick": 0.0}),
        ("all", HALF, 0.5, {"tests": 0.0, "loads": 0.05}),
        ("all", BROKEN, 0.5, {"tests": 0.0}),
        ("fraction", SOLVED, 0.5, {"tests": 1.0, "quick": 0.05}),
        ("fraction", HALF, 0.5, {"tests": 0.5}),
        ("fraction", Verdict(99, 100), 1.0, {"tests": 0.99}),
        ("fraction", Verdict(1, 100), 1.0, {"tests": 0.01, "loads": 0.04}),
        ("fraction", NONE, 0.5, {"tests": 0.0, "loads": 0.05}),
        ("fraction", BROKEN, 0.5, {"tests": 0.0}),
    ],
)
def test_what_a_submission_pays(
    reward: str, verdict: Verdict, turns_left: float, terms: dict[str, float]
) -> None:
    assert score_terms(reward, verdict, turns_left) == pytest.approx(terms)


def test_nothing_is_solved_without_a_test() -> None:
    assert (Verdict().solved, Verdict().fraction) == (False, 0.0)


def test_answers_that_ignore_the_input_are_programs_of_the_problems_kind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = Case((1,), expected="a'b")
    plain = function(Case((2,), expected=2), public=(case,))
    names: dict[str, Any] = {}
    exec(constant_answers(plain)[0], names)
    assert names["f"](3, y=4) == "a'b"
    exec(empty_answer(plain), names)
    assert names["f"](3) is None
    line = Case(stdin="x", stdout="one\ntwo\n")
    script = Problem(id="s", prompt="p", kind="script", public=(line,), hidden=(replace(line, stdin="y"),))
    exec(constant_answers(script)[0])
    assert capsys.readouterr().out == "one\ntwo\n"
    assert empty_answer(script) == "pass\n"
    hole = function(case, template="def f(x):\n    return ____")
    assert constant_answers(hole) == ["None", "0", "''", "[]"]
    assert empty_answer(hole) == "None"
