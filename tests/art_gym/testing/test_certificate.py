"""Planted defects are found under the right name, and good environments give no alarm."""

import fnmatch
import json
import re
import shlex
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from typer.testing import CliRunner

import art_gym  # noqa: F401 (registers the environments)
from art_gym.cli.app import app
from art_gym.cli.certify import _training, verdict_of
from art_gym.env import TextEnv
from art_gym.errors import ToolError
from art_gym.lookup import make_env
from art_gym.spaces import UnicodeText
from art_gym.tasks import Task
from art_gym.testing.certificate import Finding, Level, Survey, _extra, _leak, certify
from art_gym.testing.shuffled_reward import CONTROL, ShuffledReward
from art_gym.tools import Outcome, tool
from art_gym.wrappers.text_adapter import TextAdapter
from tests.art_gym.toys import DOCSTRING

ENVIRONMENTS = Path(__file__).parents[2] / "environments"
CODES = [
    f"{word}-{number}" for number, word in enumerate("amber birch cedar delta ember flint".split() * 7, 100)
]
NAMES = [f"{first} {last}" for first in ("Ada", "Bo", "Cy", "Di", "Ed", "Flo") for last in "KLMNOPQ"]


def tasks(test=12):
    split = ["test"] * test + ["train"] * (len(NAMES) - test)
    rows = zip(NAMES, CODES, split, strict=True)
    return [Task(name, f"What is the code of {name}?", split, {"code": code}) for name, code, split in rows]


def know(env, rng):
    return lambda observation: f'answer("{env.task.data["code"]}")'


class CodesEnv(TextEnv):
    """A sound environment: look a name up among decoys, then answer with its code."""

    __doc__ = DOCSTRING
    instructions = "Find the code."
    teachers = {"know": know}  # noqa: RUF012
    made = tuple(tasks())
    wrong = 0.0

    def __init__(self, **kwargs):
        super().__init__(self.made, max_turns=4, **kwargs)

    @tool
    def look_up(self, name: str) -> str:
        """Look a name up.

        Args:
            name: First name, or both.
        """
        if len(name) < 2:
            raise ToolError(self.refusal())
        return (
            "\n".join(f"{task.id}: {task.data['code']}" for task in self.tasks if name in task.id)
            or "Nobody."
        )

    @tool(ends=True)
    def answer(self, code: str) -> Outcome:
        """End with an answer.

        Args:
            code: The code.
        """
        right = self.grade(code, self.task.data["code"])
        return Outcome("Right." if right else "Wrong.", self.pay(right), success=right)

    def refusal(self):
        return "a name has at least two letters"

    def grade(self, given, expected):
        return given.strip() == expected

    def pay(self, right):
        return {"code": 1.0 if right else self.wrong}

    def facts(self):
        return {"expected": self.task.data["code"]}


def graded(grade):
    return {"grade": lambda self, given, expected: grade(given, expected)}


def slow(self, task):
    time.sleep(0.15)
    return task.prompt


def keep_file(self, task):
    if len(self.opened) < 700:  # no more than a process may have
        self.opened.append(open("/dev/null"))  # noqa: SIM115
    return task.prompt


def keep_memory(self, task):
    if len(self.opened) < 1_000:
        self.opened.append(np.ones(20_000))
    return task.prompt


def fail_late(self, task):
    if task.id == NAMES[-1]:
        raise KeyError("no such person")
    return task.prompt


def leaky_begin(words):
    return {"begin": lambda self, task: f"{task.prompt} {words.format(task.data['code'])}"}


def reset_with_answer(self, **kwargs):
    observation, info = super(CodesEnv, self).reset(**kwargs)
    return observation, info | {"debug": {"row": self.task.data["code"]}}


def look_up(self, name: str) -> Outcome:
    """Look a name up.

    Args:
        name: First name.
    """
    return Outcome("Somebody.", {"activity": 0.5})


class ChoiceEnv(CodesEnv):
    """Yes or no, and nearly always yes."""

    made = tuple(
        Task(f"q{n}", f"Is {n} so?", "train", {"code": "no" if n % 10 == 0 else "yes"}) for n in range(60)
    )

    @tool(ends=True)
    def answer(self, code: str) -> Outcome:
        """End with an answer.

        Args:
            code: Either yes or no.
        """
        right = code == self.task.data["code"]
        return Outcome("End.", {"code": float(right)}, success=right)


HOLLOW = """
from art_gym import Outcome, TextEnv, tool


class Hollow(TextEnv):
    @tool(ends=True)
    def answer(self, text: str) -> Outcome:
        '''End with an answer.

        Args:
            text: The answer.
        '''
        return Outcome("End.", {"long": float(len(text) > 50)}, success=len(text) > 50)
"""
DOUBLED = [Task(f"{one.id}, again", one.prompt, "test", one.data) for one in tasks(0)[:15]]
DEFECTS = {
    "an empty answer is right": ("adversarial_floor", graded(lambda given, code: code.startswith(given))),
    "any answer is right": ("headroom", graded(lambda given, code: True)),
    "what contains the code is right": ("adversarial_floor", graded(lambda given, code: code in given)),
    "a pattern is right": ("adversarial_floor", graded(lambda given, code: fnmatch.fnmatch(code, given))),
    "a judge obeys": (
        "adversarial_floor",
        graded(lambda given, code: code == given or "full score" in given),
    ),
    "what cannot be read is right": (
        "headroom",
        graded(lambda given, code: "-" not in given or given == code),
    ),
    "a long text is right": (
        "adversarial_floor",
        graded(lambda given, code: len(given) > 5_000 or given == code),
    ),
    "None is right": ("adversarial_floor", graded(lambda given, code: given in (code, "None"))),
    "right answers are refused": (
        "oracle_max",
        graded(lambda given, code: given == code and int(code[-1]) % 3 > 0),
    ),
    "the answer is in the question": ("no_solution_leakage", leaky_begin("(expected: {})")),
    "the answer is in the question, in words": (
        "no_solution_leakage",
        leaky_begin("The correct answer is {}."),
    ),
    "the answer is in info": ("no_solution_leakage", {"reset": reset_with_answer}),
    "the answer is in an error": (
        "no_solution_leakage",
        {"refusal": lambda self: f"not {self.task.data['code']}"},
    ),
    "the code of anybody is right": ("wrong_refused", graded(lambda given, code: given in CODES)),
    "test tasks are training tasks": ("split_overlap", {"made": (*tasks(0), *DOUBLED)}),
    "a task cannot start": ("behaviour.tasks", {"begin": fail_late}),
    "a reward is infinite": (
        "reward_well_formed",
        {"pay": lambda self, right: {"code": float("inf") if right else 0.0}},
    ),
    "a reward is NaN": ("reward_well_formed", {"pay": lambda self, right: {"code": float("nan")}}),
    "failure pays more": ("success_pays", {"pay": lambda self, right: {"code": 0.2 if right else 0.5}}),
    "not answering pays more": ("canary_floor.reward", {"wrong": -1.0}),
    "activity pays": ("gameability_gap canary_floor.reward", {"look_up": tool(look_up)}),
    "nothing is right": ("reward_reachability", graded(lambda given, code: False)),
    "nothing pays": (
        "training_signal",
        {
            "pay": lambda self, right: {"code": 0.0},
            "__init__": lambda self, **more: TextEnv.__init__(
                self, self.made, invalid_action_penalty=0.0, **more
            ),
        },
    ),
    "an episode takes long": ("resource_envelope", {"begin": slow}),
    "an episode leaves a file open": ("resource_envelope", {"begin": keep_file, "opened": []}),
    "an episode leaves memory behind": ("resource_envelope", {"begin": keep_memory, "opened": []}),
}
"""What is wrong, the ids under which it may be found, and the attributes that make it so."""


class Tampered(gym.Wrapper):
    """A copy of a good environment, of which a function changes what is paid and told."""

    def __init__(self, env, change):
        super().__init__(env)
        self.change = change

    def reset(self, **kwargs):
        observation, info = self.env.reset(**kwargs)
        self.change(self.unwrapped, "", 0.0, False, info)
        return observation, info

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        reward = self.change(self.unwrapped, action, reward, terminated or truncated, info)
        return observation, reward, terminated, truncated, info


def succeed_if(wanted):
    def change(env, action, reward, ended, info):
        if ended and wanted(env, action, info):
            info["success"] = True
            return 1.0
        return reward

    return change


COPIES = {
    "running out of turns is right": (
        "canary_floor", "toy/FrozenLake-v0", {}, succeed_if(lambda env, action, info: info["turn"] >= 20),
    ),
    "to read and select anything is right": (
        "adversarial_floor", "art/Email-v0", {"difficulty": 1},
        succeed_if(lambda env, action, info: info["turn"] > 4 and action.startswith("select")),
    ),
    "the mail's id is in info": (
        "no_solution_leakage", "art/Email-v0", {"difficulty": 2},
        lambda env, action, reward, ended, info: info.update(debug=env.facts()["expected"]) or reward,
    ),
    "any code is right": (
        "headroom adversarial_floor canary_floor", "art/Coding-v0", {"level": 0},
        succeed_if(lambda env, action, info: action.startswith("submit")),
    ),
    "walking pays": (
        "success_pays", "maze", {},
        lambda env, action, reward, ended, info: reward + 0.2 * (not ended),
    ),
    "success costs": (
        "success_pays", "guess", {}, lambda env, action, reward, ended, info: -reward,
    ),
    "a long last reply is right": (
        "adversarial_floor canary_floor", "sort_cards", {},
        succeed_if(lambda env, action, info: len(action) > 40),
    ),
}  # fmt: skip
"""What is wrong, its ids, and the environment of which a copy is tampered with."""


def found(env):
    levels = [level for level in Level if level is not Level.CONTRACT]
    return {one.id: one for one in certify(Survey(env, episodes=40, seconds=2.0), levels)}


def bad(findings):
    return {name for name, one in findings.items() if one.passed is False}


@pytest.mark.e2e
@pytest.mark.parametrize("what", DEFECTS)
def test_a_planted_defect_is_found_under_its_name(what):
    names, attributes = DEFECTS[what]
    env = type("Defective", (CodesEnv,), {"__doc__": DOCSTRING, **attributes})()
    seen = bad(found(env))
    for opened in attributes.get("opened", ()):
        if hasattr(opened, "close"):
            opened.close()
    attributes.get("opened", []).clear()
    assert any(name.endswith(wanted) for name in seen for wanted in names.split()), seen


@pytest.mark.e2e
@pytest.mark.parametrize("what", COPIES)
def test_a_defect_in_a_copy_of_a_good_environment_is_found(what):
    names, env, arguments, change = COPIES[what]
    made = make_env(env if "/" in env else str(ENVIRONMENTS / f"{env}.py"), arguments)
    seen = bad(found(Tampered(made, change)))
    assert any(name.endswith(wanted) for name in seen for wanted in names.split()), seen


def test_a_constant_answer_to_a_lopsided_question_is_an_attack():
    assert "statistical.adversarial_floor" in bad(found(ChoiceEnv()))


class GullibleEnv(gym.Env[str, str]):
    """Takes free text, and pays for one word."""

    observation_space = action_space = UnicodeText()

    def reset(self, *, seed=None, options=None):
        return "What is it?", {}

    def step(self, action):
        paid = "None" in action
        return "End.", float(paid), True, False, {"success": paid}


def test_free_text_is_attacked_and_one_reply_alone_shows_no_signal():
    seen = found(TextAdapter(GullibleEnv(), max_turns=1))
    assert bad(seen) == {"statistical.adversarial_floor"}
    assert seen["statistical.training_signal"].passed is None
    assert "anything but 'pass'" in seen["statistical.training_signal"].evidence


def test_tasks_in_other_words_are_named_for_the_author_to_look_at():
    forms = {"train": "Of {} {} {} {} {}?", "test": "Say what {4}, {3}, {2} or {1} is!"}
    made = tuple(
        Task(f"{split} {n}", words.format(*(f"{x}{n}" for x in "abcde")), split, {"code": f"c{n}"})
        for n in range(40)
        for split, words in forms.items()
    )
    env = type("Reworded", (CodesEnv,), {"__doc__": DOCSTRING, "made": made})()
    seen = {one.id: one for one in certify(Survey(env, episodes=4, seconds=1.0), [Level.BEHAVIOUR])}
    assert seen["tasks.split_overlap"].passed
    assert seen["tasks.near_duplicates"].passed is None
    example = re.search(r"40 of 40 .* as test (\d+) of train (\d+)$", seen["tasks.near_duplicates"].evidence)
    assert example
    assert example[1] == example[2]


def test_tasks_of_the_same_words_in_another_order_are_others():
    sums = [(split, n) for split in ("train", "test") for n in range(12)]
    prompts = {"train": "What is {} - 3?", "test": "What is 3 + {}?"}
    made = tuple(Task(f"{split}{n}", prompts[split].format(n), split, {"code": "7"}) for split, n in sums)
    env = type("Sums", (CodesEnv,), {"__doc__": DOCSTRING, "made": made})()
    seen = {one.id: one for one in certify(Survey(env, episodes=4, seconds=1.0), [Level.BEHAVIOUR])}
    assert seen["tasks.split_overlap"].passed


def test_where_nobody_could_play_nothing_is_known_of_leaks():
    env = type("Broken", (CodesEnv,), {"__doc__": DOCSTRING, "begin": lambda self, task: 1 / 0})()
    seen = found(env)
    assert seen["semantic.no_solution_leakage"].passed is None
    assert "ZeroDivisionError" in seen["adversarial.floor"].evidence


def test_answers_that_stand_where_they_must_not():
    shown = [("Who has it?", ""), ("not amber-1, try again", "look()")]
    assert _leak("amber-1", shown, "{}") == "an error message has 'amber-1', which is expected"
    assert _leak({"code": ["åmber-1"]}, shown[:1], _extra({"row": "åmber-1"})).startswith("info has")
    assert _leak(7, [("The expected value is 7.", "")], "") == "the observation has 'expected value is 7'"
    for innocent in (None, "", True, "Who", "amb", 1):
        assert not _leak(innocent, shown, "{}")
    assert not _leak("amber-1", [shown[0], ("no amber-1 here", 'look("amber-1")')], "")


def test_without_players_nothing_is_known_of_what_is_paid():
    env = CodesEnv()
    env.baselines, env.teachers = {}, {}
    seen = found(env)
    assert not bad(seen)
    assert seen["adversarial.search"].evidence == "there are no baselines['random'] to play"
    assert seen["runtime.task_declaration_accuracy"].passed


def test_a_shuffled_reward_is_that_of_an_earlier_episode():
    made = ShuffledReward(CodesEnv())
    earned, paid = [], []
    for seed in range(20):
        made.reset(seed=seed)
        code = made.unwrapped.task.data["code"] if seed % 3 else "wrong"
        assert made.step('look_up("Ada")')[1] == 0
        _, reward, terminated, _, info = made.step(f'answer("{code}")')
        assert terminated
        assert info["score_terms"] == {"shuffled": reward}
        assert info["success"] == bool(seed % 3)
        assert reward in (earned or [0.0])
        earned.append(float(info["success"]))
        paid.append(reward)
    assert 4 < sum(one != other for one, other in zip(paid, earned, strict=True)) < 16
    assert gym.make(CONTROL, env="art/Email-v0", env_args={"difficulty": 1}).unwrapped.spec.id == CONTROL


def test_whatever_is_bad_makes_its_part_of_the_verdict_bad():
    findings = [Finding(f"{level}.x", level, True, "") for level in Level]
    findings += [Finding("semantic.resource_envelope", Level.BEHAVIOUR, True, "")]
    assert verdict_of(findings) == {"sound": True, "learnable": None, "not hackable": True, "fast": True}
    learned = Finding("statistical.improvement", Level.LEARNABILITY, True, "")
    assert verdict_of([*findings, learned])["learnable"] is True
    parts = ["sound", "sound", "learnable", "not hackable"]
    for level, part in zip(Level, parts, strict=True):
        verdict = verdict_of([*findings, learned, Finding("the check met an error", level, False, "")])
        assert [name for name, good in verdict.items() if good is False] == [part]


@pytest.mark.e2e
def test_a_training_that_ends_early_says_why():
    (finding,) = _training("no/Such-v0", {}, wanted=True)
    assert finding.passed is False
    assert "no environment 'no/Such-v0'" in finding.evidence


@pytest.mark.e2e
def test_a_small_model_learns_an_environment_and_not_its_shuffled_rewards():
    learned, control = _training(str(ENVIRONMENTS / "calculator.py"), {}, wanted=True)
    assert learned.passed, learned
    assert control.passed, control


def test_the_command_writes_verdict_and_badge_and_fails_for_a_bad_finding(tmp_path):
    files = ["--json", str(tmp_path / "found.json"), "--badge", str(tmp_path / "badge.json")]
    good = str(ENVIRONMENTS / "sort_cards.py")
    ran = CliRunner().invoke(app, ["certify", good, "--no-train", "--level", "learnability", *files])
    assert ran.exit_code == 0, ran.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["verdict"] == {"sound": None, "learnable": None, "not hackable": None, "fast": None}
    assert "statistical.improvement: no model was trained: --no-train" in ran.output
    assert json.loads((tmp_path / "badge.json").read_text())["message"] == "nothing"
    (tmp_path / "hollow.py").write_text(HOLLOW)
    ran = CliRunner().invoke(app, ["certify", str(tmp_path / "hollow.py"), "--level", "adversarial"])
    assert ran.exit_code == 1
    assert "not hackable NO (statistical.adversarial_floor)" in ran.output
    (shown,) = {line.partition("To see it: ")[2] for line in ran.output.splitlines() if "To see it" in line}
    ran = CliRunner().invoke(app, shlex.split(shown)[1:])
    assert "Solved" in ran.output, shown
    ran = CliRunner().invoke(app, ["play", good, "--policy", "randm"])
    assert "no policy `randm`; did you mean `random`" in ran.output


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["codes", *sorted(path.stem for path in ENVIRONMENTS.glob("*.py"))])
def test_a_good_environment_gives_no_alarm(name):
    env = CodesEnv() if name == "codes" else make_env(str(ENVIRONMENTS / f"{name}.py"), {})
    assert not bad(found(env))
