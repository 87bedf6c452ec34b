import os
from collections.abc import Iterator

import pytest

import art_gym.envs.coding.env as coding_env
from art_gym.envs.coding import sharing
from art_gym.envs.coding.collection import open_collection
from art_gym.envs.coding.env import CodingEnv
from art_gym.envs.coding.sandbox import Limits, Outcome, Run, SandboxFailedError
from tests.envs.coding.tasks import HIDDEN, PROBLEMS
from tests.envs.playing import last_info

pytestmark = pytest.mark.usefixtures("sandbox")


@pytest.fixture
def env() -> Iterator[CodingEnv]:
    made = CodingEnv(problems=PROBLEMS, max_turns=4)
    yield made
    made.close()


def test_hidden_tests_are_never_shown(env: CodingEnv) -> None:
    # Each number is raised by one, so as not to find its own words; the decoy shows that the search works.
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
        env.reset(seed=0, options={"task": "triple"})
        observation, *_, info = env.step(f"{reply}\n```\n{curious}```")
        shown = observation + repr({key: info[key] for key in info if key != "call"})
        assert str(HIDDEN[0] + 1) not in shown
        assert ("9000147412" in shown) == (reply != "submit")


def test_a_failed_sandbox_raises_and_pays_nothing(env: CodingEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        limits = Limits()

        def run(self, *args: object, **how: object) -> Run:
            return Run(Outcome.REFUSED, why="no walls")

    monkeypatch.setattr(coding_env, "shared_sandbox", Failing)
    env.reset(seed=0, options={"task": "triple"})
    for reply in ('run("1")', 'test("1")', 'submit("1")'):
        with pytest.raises(SandboxFailedError, match="the sandbox failed: no walls"):
            env.step(reply)


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
    env.reset(seed=0)
    info = env.step(f"run\n```\n{'#' * 100_001}\n```")[4]
    assert "code may have 100,000 characters" in info["error"]["message"]


def test_levels_choose_problems() -> None:
    assert set(open_collection(PROBLEMS, level=2)[0]) == {"upper"}
    assert set(open_collection(PROBLEMS, level=[0, 1])[0]) == {"triple", "hole", "bare"}
    assert {problem.level for problem in open_collection("builtin")[0].values()} == {1, 2, 3}
    grammar, tasks = open_collection("builtin", level=0)
    assert {problem.level for problem in grammar.values()} == {0}
    assert set(tasks.splits) == {"train", "test"}
    for problems, level in ((PROBLEMS, 3), ("builtin", 4)):
        with pytest.raises(ValueError, match="level"):
            open_collection(problems, level=level)
    assert open_collection("builtin", level=1)[0] is open_collection("builtin", level=1)[0], "made once"


def score(env: CodingEnv, player: str, task: str, seed: int = 0) -> tuple[bool, int]:
    info = last_info(env, player, seed, task=task)
    return info["success"], info["metrics"]["turns"]


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
