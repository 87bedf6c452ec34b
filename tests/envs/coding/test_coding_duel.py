import contextlib
import json
import re
import tomllib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_gym.envs.coding import sharing
from art_gym.envs.coding.collection import open_collection
from art_gym.envs.coding.duel import attacks as duel_attacks
from art_gym.envs.coding.duel.attacks import attack_text, read_attack
from art_gym.envs.coding.duel.domain import Domain
from art_gym.envs.coding.duel.env import BREAKER, SOLVER, CodingDuelEnv
from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.coding.problems.builtin import load
from art_gym.envs.coding.sandbox import Outcome, Run, SandboxFailedError
from art_gym.errors import ToolError
from tests.envs.coding import tasks
from tests.envs.playing import play_game

pytestmark = pytest.mark.usefixtures("sandbox")

ROOT = Problem(
    id="root",
    prompt="Return the whole part of the square root of a number, or None for 7, which is unlucky.",
    entry_point="root",
    template="def root(n: int) -> int | None:\n    ...\n",
    public=(Case((4,), expected=2), Case((10,), expected=3)),
    hidden=(Case((-9,), expected=-3), Case((0,), expected=0), Case((8_100,), expected=90)),
    reference=(
        "import math\n"
        "def root(n):\n"
        "    if n == 13:\n        raise ValueError('a secret of the reference')\n"
        "    if n == 14:\n        while True: pass\n"
        "    if n == 15:\n        import random\n        return random.random()\n"
        "    return None if n == 7 else int(math.copysign(math.isqrt(abs(n)), n))\n"
    ),
    mutants=("import math\ndef root(n):\n    return math.isqrt(abs(n))\n",),
)
UPPER = replace(tasks.UPPER, split="train")
TABLE = Problem(
    id="table",
    prompt="Say something about rows of a table.",
    entry_point="f",
    public=(Case(([{"name": "a", "age": 3}], 1.5, (1, "b")), expected=0),),
    hidden=(Case(([{"name": "b", "age": 0}, {"name": "a", "age": 5}], 2.0, (2, "c")), expected=0),),
    reference="def f(rows, x, pair):\n    return 0\n",
)


def started(problem: Problem = ROOT, seed: int = 0, **options: Any) -> CodingDuelEnv:
    game = CodingDuelEnv(problems=[problem], **options)
    game.reset(seed=seed)
    return game


def at_breaker(solution: str, problem: Problem = ROOT, **options: Any) -> CodingDuelEnv:
    game = started(problem, **options)
    game.step(f"submit\n```python\n{solution}\n```")
    assert game.agent_selection == BREAKER
    return game


def attack(game: CodingDuelEnv, arguments: str) -> str:
    game.step(game.tools[BREAKER]["attack"].render({"arguments": arguments}))
    return str(game.observe(BREAKER)["text"])


def test_a_right_program_survives_every_try() -> None:
    game = at_breaker(ROOT.reference, tries=2)
    seen = game.observe(BREAKER)["text"]
    assert ROOT.prompt in seen
    assert ROOT.reference.strip() in seen
    assert "root(5) gives 2.\n1 of 2 tries left." in attack(game, "5")
    assert game.rewards == {SOLVER: 0.0, BREAKER: 0.0}
    attack(game, "root(7)")
    assert game.terminations == {SOLVER: True, BREAKER: True}
    assert game.rewards == {SOLVER: 1.0, BREAKER: -1.0}
    assert [game.infos[name]["success"] for name in game.seats] == [True, False]
    assert game.infos[BREAKER]["metrics"] == {
        "turns": 2.0, "invalid_actions": 0.0, "broken": 0.0, "attacks": 2.0, "tests_tried": 0.0,
        "passed": 1.0, "level": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize("weight", [1.0, 0.25, 0.0])
def test_a_wrong_program_that_no_one_broke_does_not_pay(weight: float) -> None:
    game = at_breaker(ROOT.mutants[0], tries=1, hidden_weight=weight)
    attack(game, "5")
    assert game.rewards == {SOLVER: 1.0 - weight, BREAKER: -1.0}
    assert [game.infos[name]["success"] for name in game.seats] == [False, False]
    assert game.infos[SOLVER]["metrics"]["passed"] == pytest.approx(2 / 3)


BROKEN = {
    "wrong": (ROOT.mutants[0], "expected: -2\ngot: 2"),
    "float": ("def root(n):\n    return -(abs(n) ** 0.5 // 1)\n", "expected: -2\ngot: -2.0"),
    "raises": ("def root(n):\n    return n / 0\n", "ZeroDivisionError"),
    "hangs": ("def root(n):\n    while True: pass\n", "got: the program took too long"),
    "leaves": ("import os\ndef root(n):\n    os._exit(0)\n", "got: the program ended early"),
    "equals": (
        "class A(int):\n    __eq__ = lambda *a: True\ndef root(n):\n    return A(-2)\n",
        "an object of type A",
    ),
    "guesses": ("import random\ndef root(n):\n    return random.choice([-2] + [0] * 9)\n", "expected: -2"),
    "no program": ("def root(n)\n", "SyntaxError"),
    "nothing": ("", "there is no function `root`"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.e2e] * (name == "hangs")) for name in sorted(BROKEN)]
)
def test_one_valid_input_breaks_a_bad_program(name: str) -> None:
    solution, words = BROKEN[name]
    game = at_breaker(solution)
    said = attack(game, "-5")
    assert words in said
    assert "broken by:\nroot(-5)\n" in said
    assert game.infos[BREAKER]["score_terms"] == {"duel": 1.0}
    assert game.infos[SOLVER]["score_terms"] == {"duel": -1.0, "hidden": -1.0}
    assert [game.infos[name]["success"] for name in game.seats] == [False, True]
    assert json.loads(json.dumps(game.infos)) == game.infos


def test_a_program_that_differs_the_second_time_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = duel_attacks.grade, []

    def fickle(problem: Problem, code: str, *args: Any, **options: Any) -> Any:
        calls.append(code)
        wrong = calls.count("marked") == 2  # right in the first run, wrong in the second
        return real(problem, ROOT.mutants[0] if wrong else ROOT.reference, *args, **options)

    monkeypatch.setattr(duel_attacks, "grade", fickle)
    said = attack(at_breaker("marked"), "-5")
    assert "got: -2, but something else in a second run" in said


def test_who_hands_in_nothing_has_lost() -> None:
    game = started(max_cycles=2)
    for _ in range(2):
        game.step("test\n```python\ndef root(n):\n    return 2\n```")
    assert "root(10): expected 3, got 2" in game.observe(SOLVER)["text"]
    assert game.truncations == {SOLVER: True, BREAKER: True}
    assert game.rewards == {SOLVER: -2.0, BREAKER: 1.0}
    assert game.infos[SOLVER]["metrics"]["tests_tried"] == 2
    stubborn = started(max_cycles=9)
    for _ in range(3):
        stubborn.step("I would rather not.")
    assert (stubborn.solution, stubborn.agent_selection) == ("", BREAKER)


INPUTS = tomllib.loads(Path(__file__).with_name("attacks.toml").read_text("utf-8"))
LONG = [
    ("9" * 300, "much larger than in any input"),
    ("1," * 6_000, "an input may have 10,000 characters, not 12,000"),
    ("[" * 150 + "]" * 150, "type list"),
    ("[" * 300 + "]" * 300, "cannot be read"),
]


@pytest.mark.parametrize(("arguments", "words"), [*INPUTS["root"], *LONG])
def test_what_is_no_input_is_refused_and_costs(arguments: str, words: str) -> None:
    game = at_breaker(ROOT.mutants[0])
    said = attack(game, arguments)
    assert "secret" not in said
    if not words:
        assert game.rewards[BREAKER] == 0.0
        return
    assert words in said
    assert game.infos[BREAKER]["score_terms"] == {"invalid_action": -0.1}
    assert game.rewards[SOLVER] == 0.0
    assert game.tries_left == 3
    assert game.agent_selection == BREAKER


def test_an_input_counts_once_and_three_bad_ones_in_a_row_lose_a_try() -> None:
    game = at_breaker(ROOT.reference, max_cycles=7, tries=4)
    attack(game, "5")
    assert "tried before" in attack(game, "root( 5 )")
    assert game.tries_left == 3
    for _ in range(2):
        attack(game, "'x'")
    assert game.tries_left == 2
    for _ in range(3):
        attack(game, "'x'")
    assert game.truncations[BREAKER]
    assert game.rewards == {SOLVER: 1.0, BREAKER: -1.1}


@pytest.mark.parametrize(("text", "words"), INPUTS["table"])
def test_domains_are_of_types_traits_and_sizes(text: str, words: str) -> None:
    with pytest.raises(ToolError, match=re.escape(words)) if words else contextlib.nullcontext():
        read_attack(TABLE, text)


def test_every_input_of_the_built_in_problems_is_an_input_and_is_read_back() -> None:
    for problem in load():
        domain = Domain(problem)
        for case in (*problem.public, *problem.hidden):
            assert domain.objection(case) is None
            read = read_attack(problem, attack_text(problem, case))
            assert (read.args, read.stdin) == (case.args, case.stdin) or "nan" in repr(case.args)


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=40) | st.from_regex(r"[\[\](){}0-9,'a-]{0,30}", fullmatch=True))
def test_whatever_is_said_as_an_input_is_read_or_refused(text: str) -> None:
    for problem in (ROOT, UPPER, TABLE):
        with warnings.catch_warnings(), contextlib.suppress(ToolError):
            warnings.simplefilter("ignore", SyntaxWarning)  # Python's own, on literals such as '\d'
            assert Domain(problem).objection(read_attack(problem, text)) is None


def test_a_script_is_broken_by_what_it_reads() -> None:
    game = at_breaker(UPPER.mutants[0], UPPER)
    assert "is right: k gives K" in attack(game, "k")
    assert "holds '!'" in attack(game, "!")
    game.step("attack\n```\nk\nm\n```")
    assert game.infos[BREAKER]["success"]


def test_hidden_tests_and_the_reference_are_shown_to_nobody() -> None:
    shown = play_game(started(), {SOLVER: "mutant", BREAKER: "variation"})
    assert not any(secret in " ".join(shown) for secret in ("8100", "copysign", "secret"))


def test_a_game_goes_on_from_a_snapshot() -> None:
    game = at_breaker(ROOT.mutants[0])
    attack(game, "5")
    kept = game.snapshot()
    first = attack(game, "-5")
    other = started()
    other.restore(kept)
    assert other.tried == ["5"]
    assert attack(other, "-5") == first


def test_a_sandbox_that_fails_is_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    game = at_breaker(ROOT.reference)
    monkeypatch.setattr(sharing.shared_sandbox(), "run", lambda *a, **b: Run(Outcome.REFUSED, why="no room"))
    with pytest.raises(SandboxFailedError, match="no room"):
        attack(game, "5")


@pytest.mark.parametrize("problem", [ROOT, UPPER])
def test_scripted_players_end_as_they_should(problem: Problem) -> None:
    for solver in CodingDuelEnv.players[SOLVER]:
        for breaker in CodingDuelEnv.players[BREAKER]:
            game = started(problem)
            play_game(game, {SOLVER: solver, BREAKER: breaker})
            if solver == "reference":
                assert game.infos[SOLVER]["success"]
            elif breaker == "hidden" or solver == "empty":
                assert game.infos[BREAKER]["success"], (solver, breaker)


def test_problems_of_unittest_files_are_left_out() -> None:
    unittest = replace(ROOT, id="u", kind="unittest", tests="pass")
    with pytest.raises(ValueError, match="a unittest has no inputs"):
        CodingDuelEnv(problems=[unittest])
    assert list(CodingDuelEnv(problems=[ROOT, unittest]).problems) == ["root"]
    assert CodingDuelEnv().problems is open_collection("builtin")[0]
