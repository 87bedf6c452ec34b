import itertools
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import gymnasium as gym
import pytest

from art_gym import Outcome, Task, TextEnv, tool
from art_gym.baselines import play
from art_gym.catalog import documented_class, entries, env_spec, sections, summary
from art_gym.cli.envs import parse_env_args
from art_gym.testing import CHECKS, Rule, check_results
from tests.art_gym.toys import CounterEnv


class CoinEnv(TextEnv):
    __doc__ = CounterEnv.__doc__
    baselines: ClassVar[Any] = {"heads": lambda env, rng: lambda text: "call(True)"}
    teachers: ClassVar[Any] = {"seer": lambda env, rng: lambda text: f"call({env.heads})"}

    def __init__(self, bias: float = 0.5, **options: Any) -> None:
        self.bias = bias
        tasks = [Task(f"{split}-{n}", "Call it.", split) for split in ("train", "test") for n in range(3)]
        super().__init__(tasks, **options)

    def begin(self, task: Task) -> str:
        self.heads = bool(self.np_random.random() < self.bias)
        return task.prompt

    @tool(ends=True)
    def call(self, heads: bool) -> Outcome:
        """Call the coin.

        Args:
            heads: Whether it is heads.
        """
        right = heads == self.heads
        return Outcome("It was.", {"right": float(right)}, success=right)


class ForgetfulEnv(CoinEnv):
    __doc__ = CounterEnv.__doc__

    def begin(self, task: Task) -> str:
        return f"{super().begin(task)} {next(NUMBERS)}"


NUMBERS = itertools.count()


def make_coin(**options: Any) -> CoinEnv:
    return CoinEnv(**options)


MADE = {"Coin": CoinEnv, "Made": make_coin, "Forgetful": ForgetfulEnv, "Gone": "no_such_module:Env"}


@pytest.fixture(autouse=True)
def coins() -> Iterator[None]:
    for name, entry_point in MADE.items():
        gym.register(f"toy/{name}-v0", entry_point, order_enforce=False, disable_env_checker=True)
    yield
    for name in MADE:
        del gym.registry[f"toy/{name}-v0"]


def test_list_has_every_id_with_a_line(command):
    code, out, _ = command("list")
    assert code == 0
    lines = dict(line.strip().split(maxsplit=1) for line in out.splitlines())
    assert lines["art/Coding-v0"] == "Solve a programming task in Python."
    assert lines["art/2048Duel-v0"].startswith("2048 as a duel")
    assert lines["toy/Coin-v0"] == lines["toy/Made-v0"] == summary(CoinEnv)
    assert lines["toy/Gone-v0"] == "(cannot be loaded: No module named 'no_such_module')"
    assert "CartPole-v1" not in lines
    ids = list(lines)
    assert ids.index("art/Coding-v0") < ids.index("toy/Coin-v0")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (
            ("toy/Coin-v0", "--env-args", "max_turns=4"),
            (
                "toy/Coin-v0: Add numbers until",
                "Description\n  Words about it.\n",
                "observations: UnicodeText(16384)",
                "- call(heads: bool): Call the coin.",
                "Tasks\n  train: 3\n  test: 3\n",
                "4 turns; a reply that is not a valid call costs 0.1",
                "Scripted players\n  random\n  heads\n  seer (may look at the answer)\n",
            ),
        ),
        (
            ("toy/Coin-v0", "--env-args", "bias=1", "--play", 6, "--split", "test"),
            (
                "Scripted players, 6 episodes each",
                "heads: reward 1.000 ± 0.000, success 100.0%, 1.0 turns",
                "random: reward ",
            ),
        ),
        (("art/2048Duel-v0",), ("Seat placer_1", "- place(cell: int)", "scripted players: random, worst")),
        (("art/2048Array-v0",), ("actions: Discrete(4)", "Scripted players\n  none")),
    ],
)
def test_info_shows_what_an_environment_is_and_what_players_get(command, arguments, shown):
    code, out, _ = command("info", *arguments)
    assert code == 0
    assert [text for text in shown if text not in out] == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("info", "art/Emial-v0"), "no environment `art/Emial-v0`; did you mean `art/Email-v0`?"),
        (("info", "toy/Coin-v0", "--env-args", "biass=1"), "did you mean `bias`"),
        (("info", "toy/Coin-v0", "--env-args", "bias"), "write it as name=value"),
        (("check", "toy/Coin-v0", "--env-args", "max_turns=0"), "must be a whole number of at least 1"),
        (("info", "toy/Coin-v0", "--play", "1", "--split", "tset"), "no split `tset`; did you mean `test`?"),
        (("check", "toy/Gone-v0"), "No module named 'no_such_module'"),
        *(((command, "art/2048Duel-v0"), "a game with several seats") for command in ("check", "play")),
        (("play", "CartPole-v1"), "is no text: art_gym.wrappers.TextAdapter"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(rejected, arguments, reason):
    assert reason in rejected(*arguments)


def test_check_names_each_rule_and_what_is_broken(command):
    code, out, _ = command("check", "toy/Coin-v0")
    assert code == 0
    assert out.count("ok       ") == len(CHECKS)
    assert out.endswith(f"toy/Coin-v0 keeps {len(CHECKS)} of the contract's {len(CHECKS)} rules\n")
    code, out, _ = command("check", "toy/Forgetful-v0")
    assert code == 1
    broken = "BROKEN   The same seed and the same replies must give the same episode.\n         At turn 0"
    assert broken in out
    assert "ok       step before reset and after the end must raise ResetNeededError." in out
    code, _, err = command("check", "art/2048Array-v0")
    assert code == 2
    assert "art/2048Array-v0 is no TextEnv" in err
    assert "TextAdapter" in err


def test_check_names_the_line_of_an_authors_error_once(command, tmp_path):
    file = tmp_path / "clumsy_desk.py"
    file.write_text(
        "from art_gym import TextEnv, Outcome, tool\n"
        "class DeskEnv(TextEnv):\n"
        "    instructions = 'Answer.'\n"
        "    @tool\n"
        "    def answer(self, floor: int) -> Outcome:\n"
        '        """Answer.\n\n        Args:\n            floor: The floor.\n        """\n'
        "        return Outcome({}['desk'])\n"
    )
    code, out, _ = command("check", str(file))
    assert code == 1
    assert out.count("raised KeyError: 'desk' (clumsy_desk.py, line 11)") == 2
    assert out.count("BROKEN") == 1


def test_a_fault_of_a_check_itself_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_tools(subject: Any) -> Iterator[str]:
        raise LookupError("a bug of the check")

    checks = {Rule.SPACES: CHECKS[Rule.SPACES], Rule.TOOLS: check_tools}
    monkeypatch.setattr("art_gym.testing.checker.CHECKS", checks)
    found = check_results(CoinEnv())
    assert next(found).passed
    with pytest.raises(LookupError, match="a bug of the check"):
        next(found)
    # After a broken rule, others may fail to be checked.
    results = list(check_results(gym.make("art/2048Array-v0")))
    assert [(one.passed, one.detail) for one in results] == [
        (False, "action_space is Discrete(4)."),
        (None, "LookupError: a bug of the check"),
    ]


def test_players_play_the_same_games_for_the_same_seed() -> None:
    env = gym.make("toy/Coin-v0")
    first, again = (play(env, "random", episodes=30, seed=3) for _ in range(2))
    assert first == again
    assert 0 < first.success < 1
    assert first.error == pytest.approx(math.sqrt(first.success * (1 - first.success) / 29))
    assert play(env, "seer", episodes=30).success == 1
    assert math.isnan(play(env, "heads", episodes=1).error)


def test_arguments_are_json_if_they_can_be() -> None:
    written = ["a=1", "b=[1, 2]", "c=shaped", "d=null", "e=x=y", "f="]
    read = {"a": 1, "b": [1, 2], "c": "shaped", "d": None, "e": "x=y", "f": ""}
    assert parse_env_args(written) == read


def test_docstrings_are_read_by_their_headings_behind_any_entry_point() -> None:
    assert summary(CounterEnv).startswith("Add numbers until")
    found = sections(CounterEnv)
    assert list(found)[:2] == ["Description", "Action Space"]
    assert found["Rewards"] == "Words about it."
    assert (summary(lambda: None), sections(lambda: None)) == ("", {})
    assert documented_class(make_coin) is CoinEnv
    assert documented_class("art_gym.envs.coding.env:CodingEnv").__name__ == "CodingEnv"
    assert env_spec("toy/Coin-v0").entry_point is CoinEnv
    assert [entry.game for entry in entries() if entry.id.endswith("Duel-v0")] == [True]
