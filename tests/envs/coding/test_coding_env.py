from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import art_gym.envs.coding.env as coding_env
from art_gym.envs.coding import sharing
from art_gym.envs.coding.collection import open_collection
from art_gym.envs.coding.env import CodingEnv
from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.coding.sandbox import Outcome, Run, SandboxFailedError

pytestmark = pytest.mark.usefixtures("sandbox")

HIDDEN = (7_411_147_411, 1_147_741_114)
TRIPLE = Problem(
    id="triple",
    prompt="Return three times a number.",
    entry_point="triple",
    template="def triple(n: int) -> int:\n    ...\n",
    public=(Case((1,), expected=3), Case((2,), expected=6)),
    hidden=(Case((HIDDEN[0],), expected=3 * HIDDEN[0]), Case((-HIDDEN[1],), expected=-3 * HIDDEN[1])),
    reference="def triple(n):\n    return 3 * n\n",
    mutants=("def triple(n):\n    return n + 2\n", "def triple(n):\n    return 3 * abs(n)\n"),
)
UPPER = Problem(
    id="upper",
    prompt="Print the input in capitals.",
    kind="script",
    level=2,
    public=(Case(stdin="ab\ncd\n", stdout="AB\nCD\n"),),
    hidden=(Case(stdin="x", stdout="X\n"), Case(stdin="y z", stdout="Y Z\n")),
    reference="import sys\nprint(sys.stdin.read().upper(), end='')\n",
    mutants=("print(input().upper())\nprint()\n",),
    split="test",
)
HOLE = Problem(
    id="hole",
    prompt="Return a plus b.",
    level=0,
    entry_point="f",
    template="def f(a, b):\n    return ____\n",
    public=(Case((1, 2), expected=3),),
    hidden=(Case((2, 5), expected=7), Case((0, 0), expected=0)),
    reference="a + b",
    mutants=("a * b", "a - b", "b - a"),
)
PROBLEMS = (TRIPLE, UPPER, HOLE)


@pytest.fixture
def env() -> Iterator[CodingEnv]:
    made = CodingEnv(problems=PROBLEMS, max_turns=4)
    yield made
    made.close()


def play(env: CodingEnv, task: str, *replies: str) -> tuple[Any, ...]:
    env.reset(seed=0, options={"task": task})
    result: tuple[Any, ...] = ()
    for reply in replies:
        result = env.step(reply)
    return result


def test_the_first_observation_holds_the_task_the_template_and_the_examples(env: CodingEnv) -> None:
    observation, info = env.reset(seed=0, options={"task": "triple"})
    assert observation.removeprefix(info["system"]) == (
        "\n\nReturn three times a number.\n\ndef triple(n: int) -> int:\n    ...\n"
        "\ntriple(1) -> 3\ntriple(2) -> 6"
    )
    observation, _ = env.reset(seed=0, options={"task": "upper"})
    assert observation.endswith("Print the input in capitals.\n\nInput:\nab\ncd\nOutput:\nAB\nCD")


@pytest.mark.parametrize(
    ("reply", "observation"),
    [
        ('run("print(1 + 1)")', "2"),
        ('run("print(input())", stdin="hello")', "hello"),
        ('run("x = 1")', "(nothing was printed)"),
        ("run\n```python\nif __name__ == '__main__':\n    print('main')\n```", "main"),
        ('run("raise SystemExit(3)")', "[exit code 3]"),
    ],
)
def test_run_shows_what_is_printed(reply: str, observation: str, env: CodingEnv) -> None:
    assert play(env, "triple", reply)[0] == observation


def test_long_output_is_cut_in_the_middle_with_a_note(env: CodingEnv) -> None:
    observation = play(env, "triple", "run(\"print('a' * 5000 + 'z' * 5000)\")")[0]
    assert "[8000 characters left out]" in observation
    assert (observation[0], observation[-1]) == ("a", "z")
    assert len(observation) < 2_100


def test_test_tells_what_failed_and_pays_nothing(env: CodingEnv) -> None:
    observation, reward, terminated, _, info = play(env, "triple", f"test\n```\n{TRIPLE.mutants[0]}```")
    assert observation == "1 of 2 examples pass.\ntriple(2): expected 6, got 4"
    assert (reward, terminated, info["score_terms"]) == (0.0, False, {})
    observation, reward, *_ = play(env, "triple", f"test\n```\n{TRIPLE.reference}```")
    assert (observation, reward) == ("2 of 2 examples pass.", 0.0)
    observation = play(env, "upper", 'test("print(input().upper())")')[0]
    assert observation == "0 of 1 examples pass.\nFor:\nab\ncd\n\nexpected:\nAB\nCD\n\ngot:\nAB\n"


def test_a_task_without_examples_refuses_test_in_words() -> None:
    env = CodingEnv(problems=[Problem(id="p", prompt="p", entry_point="f", hidden=(Case(expected=1),))])
    info = play(env, "p", 'test("def f(): return 1")')[4]
    assert info["error"]["kind"] == "refused"
    assert "submit a program that defines `f`" in info["error"]["message"]


@pytest.mark.parametrize(
    ("task", "reply", "success"),
    [
        ("triple", f"submit\n```python\n{TRIPLE.reference}```", True),
        ("triple", 'submit(code="```python\\ndef triple(n):\\n    return n * 3\\n```")', True),
        ("triple", f"submit\n```\n{TRIPLE.mutants[0]}```", False),
        ("upper", f"submit\n```\n{UPPER.reference}```", True),
        ("hole", 'submit("b + a")', True),
        ("hole", 'submit("3")', False),
    ],
)
def test_a_submission_ends_and_hidden_tests_decide(
    task: str, reply: str, success: bool, env: CodingEnv
) -> None:
    _, reward, terminated, truncated, info = play(env, task, reply)
    assert (terminated, truncated, info["success"]) == (True, False, success)
    right, wrong = {"tests": 1.0, "quick": pytest.approx(0.1 * 3 / 4)}, {"tests": 0.0, "loads": 0.05}
    assert info["score_terms"] == (right if success else wrong)
    assert reward == pytest.approx(sum(info["score_terms"].values()))


def test_the_fraction_reward_pays_the_share_of_the_hidden_tests() -> None:
    env = CodingEnv(problems=PROBLEMS, reward="fraction")
    info = play(env, "triple", f"submit\n```\n{TRIPLE.mutants[1]}```")[4]
    assert (info["score_terms"], info["success"], info["metrics"]["passed"]) == ({"tests": 0.5}, False, 0.5)
    assert play(env, "triple", 'submit("def triple(n) return")')[:2] == ("The program cannot be loaded.", 0.0)


def test_turns_run_out_without_pay(env: CodingEnv) -> None:
    _, reward, terminated, truncated, info = play(env, "triple", *['run("print(1)")'] * 3, 'test("x")')
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, False)
    assert info["metrics"] == {
        "turns": 4.0, "invalid_actions": 0.0, "passed": 0.0, "runs": 3.0, "tests_tried": 1.0, "level": 1.0,
    }  # fmt: skip


def test_hidden_tests_are_never_shown(env: CodingEnv) -> None:
    # It tells each number one too high, so as not to find its own words; the decoy shows that it looks.
    curious = """
import gc, re, sys
def look():
    frame = sys._getframe()
    while frame:
        yield from map(repr, (frame.f_locals, frame.f_globals))
        frame = frame.f_back
    yield from (repr(item) for item in gc.get_objects() if type(item) in (dict, list, tuple))
def triple(n):
    decoy = {"inputs": [9 * 10 ** 9 + 147411]}
    numbers = {int(digits) for text in look() for digits in re.findall("[0-9]{10}", text)}
    raise ValueError([number + 1 for number in numbers if number % 10 ** 6 == 147411])
triple(1)
"""
    for reply in ("run", "test", "submit"):
        result = play(env, "triple", f"{reply}\n```\n{curious}```")
        shown = repr((result[0], result[4].get("score_terms"), result[4].get("metrics")))
        assert str(HIDDEN[0] + 1) not in shown
        assert ("9000147412" in shown) == (reply != "submit")


def test_a_failed_sandbox_raises_and_pays_nothing(env: CodingEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def run(self, *args: object, **how: object) -> Run:
            return Run(Outcome.REFUSED, why="no walls")

    monkeypatch.setattr(coding_env, "shared_sandbox", Failing)
    for reply in ('run("1")', 'test("1")', 'submit("1")'):
        with pytest.raises(SandboxFailedError, match="the sandbox failed: no walls"):
            play(env, "triple", reply)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_closed_sandbox_is_made_again_and_a_forked_process_gets_its_own(env: CodingEnv) -> None:
    first = sharing.shared_sandbox()
    assert sharing.shared_sandbox() is first
    sharing.close_shared_sandbox()
    assert sharing.shared_sandbox() is not first
    env.reset(seed=0, options={"task": "hole"})
    pid = os.fork()
    if pid == 0:
        solved = env.step('submit("a + b")')[4]["success"]
        sharing.close_shared_sandbox()
        os._exit(0 if solved else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert env.step('submit("a + b")')[4]["success"] is True


def test_code_may_be_long_but_not_endless(env: CodingEnv) -> None:
    info = play(env, "triple", f"run\n```\n{'#' * 100_001}\n```")[4]
    assert "code may have 100,000 characters" in info["error"]["message"]


def test_levels_choose_problems() -> None:
    assert set(open_collection(PROBLEMS, level=2)[0]) == {"upper"}
    assert set(open_collection(PROBLEMS, level=[0, 1])[0]) == {"triple", "hole"}
    assert {problem.level for problem in open_collection("builtin")[0].values()} == {1, 2, 3}
    grammar, tasks = open_collection("builtin", level=0)
    assert {problem.level for problem in grammar.values()} == {0}
    assert set(tasks.splits) == {"train", "test"}
    for problems, level in ((PROBLEMS, 3), ("builtin", 4)):
        with pytest.raises(ValueError, match="level"):
            open_collection(problems, level=level)
    assert open_collection("builtin", level=1)[0] is open_collection("builtin", level=1)[0], "made once"


# --- players without a model ----------------------------------------------------------------------------


def score(env: CodingEnv, player: str, task: str, seed: int = 0) -> tuple[bool, int]:
    observation, _ = env.reset(seed=seed, options={"task": task})
    act = {**env.baselines, **env.teachers}[player](env, np.random.default_rng(seed))
    for turn in range(1, env.max_turns + 1):
        observation, _, terminated, truncated, info = env.step(act(observation))
        if terminated or truncated:
            return info["success"], turn
    raise AssertionError("the episode did not end")


@pytest.mark.parametrize("task", ["triple", "upper", "hole"])
def test_players_solve_what_they_should(task: str, env: CodingEnv) -> None:
    found = [score(env, player, task) for player in ("reference", "empty", "hard_coded")]
    assert found == [(True, 1), (False, 1), (False, 1)]


def test_repair_tries_mutants_until_the_examples_pass(env: CodingEnv) -> None:
    assert score(env, "repair", "upper") == (True, 2)
    assert score(env, "repair", "hole") == (True, 3)  # one turn is for the submission
    # The examples of `triple` cannot tell its second mutant from a solution.
    assert {score(env, "repair", "triple", seed) for seed in range(6)} == {(False, 2), (False, 3)}


def test_the_demonstrator_is_right_in_a_third_of_its_tries(env: CodingEnv) -> None:
    for task in ("hole", "triple"):
        right = [score(env, "demonstrator", task, seed)[0] for seed in range(45)]
        assert 0.15 < sum(right) / len(right) < 0.55
