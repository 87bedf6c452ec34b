import math
import re
from collections.abc import Callable
from datetime import date
from typing import Any, ClassVar

import pytest

from art_gym.env import TextEnv
from art_gym.envs.game_2048.env import Game2048Env
from art_gym.errors import ToolDeclarationError, UnknownTaskError
from art_gym.tasks import Task
from art_gym.terminal import visible
from art_gym.testing import check_text_env
from art_gym.tools import Outcome, tool
from tests.art_gym.toy_games import Race
from tests.art_gym.toys import CounterEnv


def test_the_contract_holds() -> None:
    """Seeds, copies, snapshots, the form of ``info`` and all that the kit checks."""
    check_text_env(CounterEnv())


def test_the_first_observation_is_the_system_text_and_the_task() -> None:
    observation, info = CounterEnv().reset(options={"task": "t3"})
    assert observation == f"{info['system']}\n\nReach 3. The counter is 0."
    assert "- add(amount: int, times: int = 1): Add to the counter." in info["system"]
    assert (info["task_id"], info["turn"]) == ("t3", 0)
    assert [item["function"]["name"] for item in info["tools"]] == ["add", "peek", "stop"]


def test_a_right_ending_pays_its_terms_and_reports_success() -> None:
    env = CounterEnv()
    env.reset(seed=0, options={"task": "t5"})
    env.count = 5
    observation, reward, terminated, truncated, info = env.step("stop()")
    assert (observation, reward, terminated, truncated) == ("Done.", 1.0, True, False)
    assert info == {
        "task_id": "t5",
        "turn": 1,
        "call": {"name": "stop", "arguments": {}},
        "score_terms": {"right": 1.0},
        "success": True,
        "metrics": {"turns": 1.0, "invalid_actions": 0.0, "count": 5.0},
        "facts": {},
    }


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        ("adds(2)", "unknown_tool", "did you mean `add`"),
        ("add(40)", "refused", "amount must be from 1 to 9, not 40"),
    ],
)
def test_an_invalid_reply_costs_the_penalty_and_is_answered_in_words(
    reply: str, kind: str, words: str
) -> None:
    env = CounterEnv(invalid_action_penalty=0.25)
    env.reset(seed=0)
    observation, reward, terminated, _, info = env.step(reply)
    assert (reward, terminated, env.count) == (-0.25, False, 0)
    assert words in observation
    assert info["error"]["kind"] == kind
    assert info["score_terms"] == {"invalid_action": -0.25}


def test_only_the_first_of_two_calls_counts_and_the_answer_says_so() -> None:
    env = CounterEnv()
    env.reset(seed=0)
    call = '<tool_call>{"name": "add", "arguments": {"amount": 2}}</tool_call>'
    observation, *_ = env.step(call + call)
    assert env.count in (2, 3)
    assert "Only the first of 2 calls was carried out." in observation


def test_the_turn_limit_truncates_after_exactly_max_turns_and_is_announced() -> None:
    env = CounterEnv(max_turns=3)
    env.reset(seed=0)
    results = [env.step("add(1)") for _ in range(3)]
    assert [r[3] for r in results] == [False, False, True]
    assert not any(r[2] for r in results)
    assert "(2 turns left)" in results[0][0]
    assert "(1 turn left)" in results[1][0]
    assert results[2][0].endswith("No turns are left.")
    assert results[2][4]["success"] is False


def test_on_truncation_adds_its_terms_to_the_last_turn() -> None:
    class Strict(CounterEnv):
        def on_truncation(self) -> Outcome:
            return Outcome("Too late.", {"late": -1.0, "peek": -0.5}, metrics={"late": 1.0})

    env = Strict(max_turns=1)
    env.reset(seed=0)
    observation, reward, _, truncated, info = env.step('peek("count")')
    assert truncated
    assert observation == "count = 0\nToo late."
    assert info["score_terms"] == {"peek": -0.51, "late": -1.0}
    assert reward == pytest.approx(-1.51)
    assert info["metrics"]["late"] == 1.0


class DiceEnv(TextEnv):
    """Has no tasks, and every hook that ``CounterEnv`` has not."""

    def begin(self, task: Task) -> str:
        vars(self)["book"] = "a value of its own beside the tool"
        return f"You see {self.np_random.integers(6)}."

    def observation_after_error(self) -> str:
        return f"It is turn {self.turn}."

    @tool
    def book(self, day: date, others: list[date]) -> str:
        """Book days.

        Args:
            day: The first.
            others: The others.
        """
        return f"{day} and {len(others)} more"

    @tool
    def fall(self) -> str:
        """Fall."""
        return [][0]  # type: ignore[no-any-return]

    @tool(ends=True)
    def leave(self) -> str:
        """Leave."""
        return "Bye."


class NoToolsEnv(TextEnv):
    pass


class FewerEnv(DiceEnv):
    def book(self) -> str:  # type: ignore[override]
        return "no longer a tool"

    @tool
    def wait(self) -> str:
        """Wait."""
        return "Waited."


@tool
def a_tool(self: Any) -> str:
    """Do."""
    return "Done."


def own(**members: Any) -> TextEnv:
    """An environment with members of its own."""
    env: TextEnv = type("Own", (CounterEnv,), members)(max_turns=1)
    return env


def step(env: TextEnv, reply: Any) -> None:
    env.reset()
    env.step(reply)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        *(
            (lambda given=given: CounterEnv(max_turns=given), ValueError, f"at least 1, not {given!r}")
            for given in (0, 2.5, "5")
        ),
        *(
            (lambda given=given: CounterEnv(invalid_action_penalty=given), ValueError, "number, 0 or more")
            for given in (-1, math.nan, "0.1")
        ),
        (lambda: CounterEnv(render_mode="ansy"), ValueError, "did you mean `ansi`"),
        (lambda: CounterEnv(split="valid"), UnknownTaskError, "no split `valid`"),
        (lambda: CounterEnv().reset(options={"task": "t99"}), UnknownTaskError, "no task `t99`"),
        (lambda: CounterEnv().reset(options={"split": "tset"}), UnknownTaskError, "did you mean `test`"),
        (lambda: CounterEnv().reset(options={"tsak": "t1"}), ValueError, "did you mean `task`"),
        (lambda: CounterEnv().reset(options={"split": ["test"]}), ValueError, r"`split` .* not \['test'\]"),
        (lambda: DiceEnv().restore(CounterEnv().snapshot()), ValueError, r"CounterEnv, not of .*DiceEnv"),
        (lambda: DiceEnv().restore(DiceEnv(max_turns=3).snapshot()), ValueError, "=3, this one with 10"),
        (lambda: DiceEnv().restore(DiceEnv([Task("t", "")]).snapshot()), ValueError, "none of this env"),
        (lambda: step(CounterEnv(), 3), TypeError, "str, not int"),
        (NoToolsEnv, TypeError, "no tool"),
        *(
            (lambda name=name: type("Own", (TextEnv,), {name: a_tool}), ToolDeclarationError, "rename")
            for name in ("close", "task")
        ),
        (lambda: own(max_turns=4), TypeError, "max_turns has no effect: every"),
        (lambda: own(shared=("books")), TypeError, r"as in \('books',\)"),
        (lambda: own(instructions=("Go.",)), TypeError, "instructions must be a str, not"),
        (own(begin=lambda self, _: setattr(self, "turn", 1)).reset, TypeError, "begin sets self.turn, which"),
        (lambda: step(DiceEnv(), "fall()"), IndexError, "list index"),
        (lambda: own(begin=lambda *_: None).reset(), TypeError, "Own.begin must return str, not None"),
        (lambda: step(own(on_truncation=lambda *_: "Over."), ""), TypeError, "return Outcome, not 'Over.'"),
        (lambda: step(own(facts=lambda *_: None), ""), TypeError, "Own.facts must return Mapping, not None"),
        (lambda: Outcome("", 1.0), TypeError, "score_terms of an Outcome .* not 1.0"),  # type: ignore[arg-type]
        (lambda: Outcome("", metrics={"cards": None}), TypeError, "metrics of an Outcome"),  # type: ignore[dict-item]
    ],
)
def test_wrong_use_and_faults_of_tools_are_raised(
    make: Callable[[], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make()


def test_tools_are_inherited_overridden_and_withdrawn() -> None:
    assert list(FewerEnv.tools) == ["fall", "leave", "wait"]


def test_dates_are_text_in_info_and_the_state_is_shown_below_a_refusal() -> None:
    env = DiceEnv()
    env.reset(seed=0)
    *_, info = env.step('book("2026-01-02", ["2026-01-03"])')
    assert info["call"]["arguments"] == {"day": "2026-01-02", "others": ["2026-01-03"]}
    observation, *_, info = env.step("hello")
    assert observation == f"{info['error']['message']}\nIt is turn 2."


def test_an_environment_without_tasks_differs_by_seed_alone() -> None:
    env = DiceEnv()
    assert env.reset(seed=1)[0] == env.reset(seed=1)[0]
    assert len({env.reset(seed=s)[0] for s in range(30)}) == 6
    _, reward, terminated, _, info = env.step("leave()")
    assert (reward, terminated, info["success"]) == (0.0, True, False)


def test_reset_samples_from_its_split() -> None:
    env = CounterEnv(split="test")
    assert {env.reset(seed=s)[1]["task_id"] for s in range(30)} == {"t8", "t9", "t10"}
    assert {env.reset(seed=s, options={"split": "train"})[1]["task_id"] for s in range(60)} == {
        f"t{n}" for n in range(1, 8)
    }


def test_a_snapshot_shares_what_the_author_says_is_shared_and_forgets_what_came_later() -> None:
    class Library(CounterEnv):
        shared: ClassVar[tuple[str, ...]] = ("books",)

        def __init__(self) -> None:
            super().__init__()
            self.books = ["x" * 100_000]

    env, other = Library(), Library()
    env.reset(seed=0)
    snapshot = env.snapshot()
    assert len(snapshot.state) < 10_000
    books = other.books
    other.later = 1  # type: ignore[attr-defined]
    other.restore(snapshot)
    assert other.books is books
    assert not hasattr(other, "later")


def test_a_long_observation_is_cut_in_the_middle_and_says_so() -> None:
    class Talker(TextEnv):
        @tool
        def talk(self) -> str:
            """Talk."""
            return "a" * 50_000 + "END"

    env = Talker()
    env.reset()
    observation = env.step("talk()")[0]
    assert observation in env.observation_space
    assert "characters left out" in observation
    assert observation.endswith("END")


def test_render_shows_the_latest_exchange(capsys: pytest.CaptureFixture[str]) -> None:
    env = CounterEnv(render_mode="ansi")
    env.reset(seed=0, options={"task": "t1"})
    assert str(env.render()).endswith("Reach 1. The counter is 0.")
    env.step("stop()")
    assert env.render() == "> stop()\nDone."
    human = CounterEnv(render_mode="human")
    human.reset(seed=0)
    human.step("stop()")
    assert human.render() is None
    assert capsys.readouterr().out.endswith("> stop()\nDone.\n")


def test_visible_keeps_lines_tabs_and_every_script() -> None:
    assert visible("a\tb\r\nc 日本 é 🙂") == "a\tb\nc 日本 é 🙂"
    assert visible("\x00\x7f\x9b") == "␀␡�"


@pytest.mark.parametrize("mode", ["ansi", "human"])
@pytest.mark.parametrize("make", [CounterEnv, Game2048Env, Race])
def test_what_a_model_says_cannot_drive_the_terminal(
    make: Any, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    env = make(render_mode=mode)
    env.reset(seed=0)
    env.step("\x1b]52;c;b3duZWQ=\x07\x9b2J\u202e\ud800")
    shown = f"{env.render()}{capsys.readouterr().out}"
    assert not re.search("\x1b\\]|[\x07\x9b\u202e\ud800]", shown)
    assert ("␛]52" in shown) == (make is not Race or mode == "human")
