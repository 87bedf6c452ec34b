import contextlib
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
from tests.envs.coding.tasks import DUEL_PROBLEMS
from tests.envs.playing import play_game

pytestmark = pytest.mark.usefixtures("sandbox")

ROOT, UPPER = DUEL_PROBLEMS.values()
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


def test_a_program_that_differs_the_second_time_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = duel_attacks.grade, []

    def fickle(problem: Problem, code: str, *args: Any, **options: Any) -> Any:
        calls.append(code)
        wrong = calls.count("marked") == 2  # right in the first run, wrong in the second
        return real(problem, ROOT.mutants[0] if wrong else ROOT.reference, *args, **options)

    monkeypatch.setattr(duel_attacks, "grade", fickle)
    said = attack(at_breaker("marked"), "-5")
    assert "got: -2, but something else in a second run" in said


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


def test_hidden_tests_and_the_reference_are_shown_to_nobody() -> None:
    shown = play_game(started(), {SOLVER: "mutant", BREAKER: "variation"})
    assert not any(secret in " ".join(shown) for secret in ("8100", "copysign", "secret"))


def test_a_game_continues_from_a_snapshot() -> None:
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
