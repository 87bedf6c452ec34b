"""The judge: right answers pass, wrong ones do not, and no trick is worth more than a wrong answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from art_gym.envs.coding.judge import Verdict, grade, same_output
from art_gym.envs.coding.judge_tests import run_tests
from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.coding.sandbox import Limits, Outcome, Run, Sandbox, SandboxUnavailable
from art_gym.envs.coding.sharing import shared_sandbox
from tests.envs.coding.judge_hacks import CALL_HACKS, PRELUDE, TEST_HACKS

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


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    try:
        return shared_sandbox()
    except SandboxUnavailable as error:
        pytest.skip(str(error))


def judged(problem: Problem, code: str, sandbox: Sandbox, **how: Any) -> Verdict:
    verdict = grade(problem, code, sandbox, limits=SHORT, **how)
    assert not verdict.infrastructure
    return verdict


# --- right and wrong answers ----------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [WORDS, DOUBLE, ECHO])
@pytest.mark.parametrize("twice", [False, True])
def test_the_reference_passes(problem: Problem, twice: bool, sandbox: Sandbox) -> None:
    verdict = judged(problem, problem.reference, sandbox, twice=twice, rng=np.random.default_rng(0))
    assert verdict == Verdict(len(problem.hidden), len(problem.hidden))
    assert verdict.solved
    assert verdict.fraction == 1.0


def test_a_public_example_is_reported_with_input_expected_and_got(sandbox: Sandbox) -> None:
    verdict = judged(DOUBLE, "def double(x):\n    return 4", sandbox, which="public")
    assert (verdict.passed, verdict.total) == (1, 2)
    wrong = verdict.results[1]
    assert (wrong.passed, wrong.given, wrong.expected, wrong.got) == (False, "double('ab')", "'abab'", "4")


def test_a_raised_exception_is_reported_by_line_and_only_of_the_candidates_file(sandbox: Sandbox) -> None:
    code = "def helper(x):\n    return x.missing\n\ndef double(x):\n    return helper(x)\n"
    got = judged(DOUBLE, code, sandbox, which="public").results[0].got
    assert got.splitlines() == [
        "line 5, in double: return helper(x)",
        "line 2, in helper: return x.missing",
        "AttributeError: 'int' object has no attribute 'missing'",
    ]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def double(x):\n    return (", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
        ("", "there is no function `double`"),
        ("double = 3", "there is no function `double`"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("def double(x): return x\nraise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_a_program_that_cannot_be_loaded_says_why(code: str, reason: str, sandbox: Sandbox) -> None:
    public = judged(DOUBLE, code, sandbox, which="public")
    assert (public.passed, public.loaded) == (0, False)
    assert reason in public.failure
    assert judged(DOUBLE, code, sandbox) == Verdict(0, 3, loaded=False)


def test_what_stands_under_main_is_left_out_of_a_function_and_run_in_a_script(sandbox: Sandbox) -> None:
    guarded = "\nif __name__ == '__main__':\n    main()\n"
    assert judged(DOUBLE, DOUBLE.reference + guarded, sandbox).solved
    lines = ECHO.reference.replace("\n", "\n    ").strip()
    assert judged(ECHO, f"def main():\n    {lines}\n{guarded}", sandbox).solved
    assert not judged(ECHO, f"def main():\n    {lines}\n", sandbox).solved


def test_arguments_are_fresh_in_every_case(sandbox: Sandbox) -> None:
    problem = Problem(
        id="p",
        prompt="p",
        entry_point="f",
        hidden=tuple(Case(([3, 1],), expected=[1, 3, 0]) for _ in range(3)),
    )
    code = "def f(items):\n    items.sort()\n    items.append(0)\n    return items\n"
    assert judged(problem, code, sandbox).solved


def test_a_case_after_a_hang_or_a_crash_fails_and_those_before_count(sandbox: Sandbox) -> None:
    for trouble in ("while True: pass", "import ctypes; ctypes.string_at(0)", "import os; os._exit(0)"):
        code = f"def double(x):\n    if isinstance(x, list):\n        {trouble}\n    return x * 2\n"
        verdict = judged(DOUBLE, code, sandbox)
        assert (verdict.passed, verdict.solved) == (1, False), trouble


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def double(x):\n    while True: pass", "took too long"),
        ("def double(x):\n    return [0] * 10**9", "MemoryError"),
        ("def double(x):\n    print('x' * 10**7)", "printed too much"),
        ("def double(x):\n    import os; os._exit(3)", "ended early, with exit code 3"),
        ("def double(x):\n    x = []\n    x.append(x)\n    return x", "holds itself"),
    ],
)
def test_what_went_wrong_is_told_in_words_about_public_examples(
    code: str, words: str, sandbox: Sandbox
) -> None:
    assert words in judged(DOUBLE, code, sandbox, which="public").results[0].got


def test_the_hole_of_a_template_can_be_filled_or_the_whole_program_sent(sandbox: Sandbox) -> None:
    problem = Problem(
        id="p",
        prompt="p",
        level=0,
        entry_point="f",
        template="def f(a, b):\n    return ____\n",
        hidden=(Case((2, 3), expected=7), Case((0, 5), expected=5)),
    )
    for right in ("a * 2 + b\n", "b + a + a", "def f(x, y):\n    return 2 * x + y"):
        assert judged(problem, right, sandbox).solved
    for wrong in ("a + b", "7", "", "a *", "____", "def g(): pass"):
        assert not judged(problem, wrong, sandbox).solved


def test_what_passes_only_once_does_not_count(sandbox: Sandbox) -> None:
    problem = Problem(
        id="p", prompt="p", entry_point="f", hidden=tuple(Case((i,), expected=i) for i in range(6))
    )
    # Right in the order of the cases only, as the second call of `f` must be that of the second case.
    counting = "calls = []\ndef f(i):\n    calls.append(i)\n    return len(calls) - 1\n"
    assert judged(problem, counting, sandbox).solved
    assert not judged(problem, counting, sandbox, twice=True).solved
    guessing = "import random\ndef f(i):\n    return i if random.random() < 0.7 else -1\n"
    passes = [
        judged(problem, guessing, sandbox, twice=True, rng=np.random.default_rng(seed)).passed
        for seed in range(8)
    ]
    assert sum(passes) < 0.7 * 8 * 6


# --- scripts --------------------------------------------------------------------------------------------


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
        ("1.0 2", "1.0", 1e-6, False),
        ("", "\n\n", None, True),
    ],
)
def test_output_is_compared_by_line(expected: str, got: str, tolerance: float | None, alike: bool) -> None:
    assert same_output(expected, got, tolerance=tolerance) == alike


@pytest.mark.parametrize(
    "code",
    [
        "print('3')",
        ECHO.reference + "raise SystemExit(1)",
        ECHO.reference + "1 / 0",
        ECHO.reference + "import os, sys; sys.stdout.flush(); os.kill(os.getpid(), 9)",
        ECHO.reference + "print('x' * 10**6)",
    ],
)
def test_a_script_passes_only_with_the_right_output_and_an_orderly_end(code: str, sandbox: Sandbox) -> None:
    assert judged(ECHO, code, sandbox).passed == 0


def test_a_script_that_hangs_is_not_tried_on_every_case() -> None:
    runs = []

    class Hanging:
        def run(self, *args: object, **how: object) -> Run:
            runs.append(args)
            return Run(Outcome.TIMEOUT)

    problem = Problem(
        id="p", prompt="p", kind="script", hidden=tuple(Case(stdin=str(i), stdout="") for i in range(20))
    )
    verdict = grade(problem, "", Hanging())  # type: ignore[arg-type]
    assert (verdict.passed, verdict.total) == (0, 20)
    assert len(runs) == 3


# --- when the sandbox fails -----------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [DOUBLE, ECHO])
@pytest.mark.parametrize("good_runs", [0, 1])
def test_a_failure_of_the_sandbox_is_no_verdict(problem: Problem, good_runs: int, sandbox: Sandbox) -> None:
    class Failing:
        limits = SHORT
        left = good_runs * (len(problem.hidden) if problem.kind == "script" else 1)

        def run(self, *args: Any, **how: Any) -> Run:
            if self.left:
                self.left -= 1
                return sandbox.run(*args, **how)
            return Run(Outcome.REFUSED, why="no walls")

    verdict = grade(problem, problem.reference, Failing(), twice=True)  # type: ignore[arg-type]
    assert verdict.infrastructure == "the sandbox failed: no walls"
    assert not verdict.solved


def test_a_sandbox_that_cannot_start_tests_is_no_verdict() -> None:
    class Gone:
        limits = SHORT

        def start(self, *args: object, **how: object) -> None:
            raise SandboxUnavailable("no walls")

    problem = Problem(id="p", prompt="p", kind="unittest", entry_point="m", tests="import m")
    assert grade(problem, "", Gone()).infrastructure == "the sandbox failed: no walls"  # type: ignore[arg-type]


# --- reward hacks ---------------------------------------------------------------------------------------


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


def test_hidden_inputs_do_not_leave_through_the_verdict(sandbox: Sandbox) -> None:
    leaking = """
import sys
words, frame = [], sys._getframe()
while frame:
    words.append(repr(frame.f_locals))
    frame = frame.f_back
raise ValueError(" ".join(words))
"""
    shown = repr(judged(DOUBLE, leaking, sandbox))
    assert shown == repr(Verdict(0, 3, loaded=False))


# --- unittest files -------------------------------------------------------------------------------------

COUNTER_TESTS = """
import unittest
from counter import Counter, Empty, total, LIMIT, apply

class CounterTest(unittest.TestCase):
    def test_counts(self):
        counter = Counter(2)
        counter.add()
        self.assertEqual(counter.value, 3)
        self.assertEqual(len(counter), 3)
        self.assertIn(2, counter)
        self.assertNotIn(9, counter)
    def test_equality_of_own_objects(self):
        self.assertEqual(Counter(1), Counter(1))
        self.assertNotEqual(Counter(1), Counter(2))
        self.assertLess(Counter(1), Counter(2))
        self.assertEqual(Counter(1) + Counter(2), Counter(3))
    def test_errors(self):
        with self.assertRaises(Empty) as caught:
            Counter(0).take()
        self.assertEqual(caught.exception.args, ("nothing left", 0))
        with self.assertRaisesRegex(ValueError, "negative"):
            Counter(-1)
    def test_callback_and_constant(self):
        self.assertEqual(apply(lambda x: x + LIMIT, 1), 11)
        with self.assertRaises(KeyError):
            apply(lambda x: {}[x], 1)
    def test_iterators_and_functions(self):
        self.assertEqual(list(Counter(3)), [0, 1, 2])
        self.assertEqual(total(iter([1, 2])), 3)
        self.assertAlmostEqual(total([0.1, 0.2]), 0.3)
    @unittest.skip("an extra")
    def test_skipped(self):
        self.fail()
"""
COUNTER = """
LIMIT = 10
class Empty(Exception):
    pass
class Counter:
    def __init__(self, value):
        if value < 0: raise ValueError("negative")
        self.value = value
    def add(self): self.value += 1
    def take(self):
        if not self.value: raise Empty("nothing left", 0)
        self.value -= 1
    def __len__(self): return self.value
    def __contains__(self, item): return item < self.value
    def __iter__(self): yield from range(self.value)
    def __eq__(self, other): return isinstance(other, Counter) and self.value == other.value
    def __lt__(self, other): return self.value < other.value
    def __add__(self, other): return Counter(self.value + other.value)
def total(items): return sum(items)
def apply(function, value): return function(value)
"""
COUNTER_PROBLEM = Problem(
    id="counter", prompt="p", kind="unittest", entry_point="counter", tests=COUNTER_TESTS, reference=COUNTER
)


def test_a_unittest_file_talks_to_functions_classes_and_exceptions(sandbox: Sandbox) -> None:
    report = run_tests(sandbox, COUNTER, COUNTER_TESTS, "counter", classes=["Counter"])
    assert report.words == {}
    assert len(report.passed) == len(report.tests) == 5
    assert judged(COUNTER_PROBLEM, COUNTER, sandbox, twice=True).solved


@pytest.mark.parametrize(
    ("old", "new", "failing"),
    [
        ("self.value += 1", "self.value += 2", {"test_counts"}),
        ("item < self.value", "True", {"test_counts"}),
        (
            "isinstance(other, Counter) and self.value == other.value",
            "True",
            {"test_equality_of_own_objects"},
        ),
        ('Empty("nothing left", 0)', "ValueError()", {"test_errors"}),
        ("function(value)", "value", {"test_callback_and_constant"}),
        ("sum(items)", "0", {"test_iterators_and_functions"}),
    ],
)
def test_a_mistake_fails_its_test_alone(old: str, new: str, failing: set[str], sandbox: Sandbox) -> None:
    assert old in COUNTER
    report = run_tests(sandbox, COUNTER.replace(old, new), COUNTER_TESTS, "counter", classes=["Counter"])
    assert {test.rpartition(".")[2] for test in report.words} == failing


def test_operators_of_a_class_that_was_not_asked_for_do_not_count(sandbox: Sandbox) -> None:
    report = run_tests(sandbox, COUNTER, COUNTER_TESTS, "counter")
    failed = {test.rpartition(".")[2] for test in report.words}
    assert failed == {"test_equality_of_own_objects"}


def test_a_module_that_cannot_be_imported_fails_every_test(sandbox: Sandbox) -> None:
    verdict = judged(COUNTER_PROBLEM, "1 / 0", sandbox)
    assert (verdict.passed, verdict.solved, verdict.loaded) == (0, False, False)


NUMBER_TESTS = """
import unittest
import answer

class AnswerTest(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(answer.f(1), 4711)
    def test_not_different(self):
        assert not answer.f(2) != 4712
    def test_near(self):
        assert abs(answer.f(3) - 0.25) < 1e-6
    def test_far_side(self):
        assert abs(0.25 - answer.f(3)) < 1e-6
    def test_members(self):
        found = answer.f(4)
        assert 4711 in found and 4712 in found
        self.assertEqual(sorted(found), [4711, 4712])
    def test_raises(self):
        with self.assertRaises(KeyError):
            answer.f(5)
    def test_callback(self):
        self.assertEqual(answer.f(lambda: 4711), 4711)
"""
NUMBERS = Problem(id="n", prompt="p", kind="unittest", entry_point="answer", tests=NUMBER_TESTS)


@pytest.mark.parametrize("hack", TEST_HACKS)
def test_a_reward_hack_against_unittest_is_worth_nothing(hack: str, sandbox: Sandbox) -> None:
    verdict = judged(NUMBERS, TEST_HACKS[hack], sandbox)
    assert (verdict.passed, verdict.solved) == (0, False)
    assert judged(COUNTER_PROBLEM, COUNTER, sandbox).solved


def test_the_tests_that_the_hacks_fail_can_be_passed(sandbox: Sandbox) -> None:
    code = """
def f(n):
    if callable(n):
        return n()
    return {1: 4711, 2: 4712, 3: 0.25, 4: {4711, 4712}}[n]
"""
    assert judged(NUMBERS, code, sandbox, twice=True).solved
