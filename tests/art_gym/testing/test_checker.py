"""Good environments pass; for each rule of the contract there is an environment that breaks it."""

import contextlib
import copy
import random
import sqlite3

import gymnasium as gym
import numpy as np
import pytest

import art_gym  # noqa: F401 (registers the environments)
from art_gym.env import TextEnv
from art_gym.errors import ContractError, ResetNeededError
from art_gym.spaces import UnicodeText
from art_gym.tasks import Task
from art_gym.testing import CHECKS, Rule, behaviour_checks, check_text_env
from art_gym.testing.hostile_replies import hostile_replies
from art_gym.testing.rules import broken
from art_gym.testing.trajectories import Subject
from art_gym.tools import Outcome, Tool, tool
from tests.art_gym.toys import DOCSTRING

TASKS = [
    Task("easy", "Guess a number from 1 to 9.", "train", {"highest": 9}),
    Task("hard", "Guess a number from 1 to 99.", "train", {"highest": 99}),
    Task("odd", "Guess a number from 1 to 7.", "test", {"highest": 7}),
]


def guess_mostly(env, rng):
    return lambda observation: "give_up()" if rng.random() < 0.05 else f"guess({rng.integers(1, 100)})"


class GuessEnv(TextEnv):
    """Guess a hidden number; the answer to a guess also holds a word of chance."""

    __doc__ = DOCSTRING
    instructions = "Guess the number."
    baselines = {"random": guess_mostly}  # noqa: RUF012
    teachers = {"know": lambda env, rng: lambda observation: f"guess({env.hidden})"}  # noqa: RUF012

    def __init__(self, **kwargs):
        super().__init__(TASKS, max_turns=6, **kwargs)

    def begin(self, task):
        self.hidden = int(self.np_random.integers(1, task.data["highest"] + 1))
        self.guesses = []
        return f"{task.prompt} Lucky: {self.np_random.integers(1_000_000)}"

    @tool
    def guess(self, number: int):
        """Guess the number.

        Args:
            number: The guess.
        """
        self.guesses.append(number)
        if number == self.hidden:
            terms = {"right": 1.0, "late": -0.1 * len(self.guesses)}
            return Outcome("Right.", terms, ends=True, success=True)
        word = "LOW" if number < self.hidden else "HIGH"
        return Outcome(f"{word}. Lucky: {self.np_random.integers(1_000_000)}", {"try": -0.01})

    @tool(ends=True)
    def give_up(self, why: str = "no reason"):
        """End without a guess.

        Args:
            why: The reason.
        """
        return Outcome("A pity.", metrics={"words": float(len(why.split()))})


gym.register("conformance/Guess-v0", GuessEnv, order_enforce=False, disable_env_checker=True)


class BareTool:
    def __init__(self, made):
        self.schema = made.schema


class BareEnv(gym.Env):
    """Guess a number, without inheriting from TextEnv."""

    __doc__ = DOCSTRING
    max_turns = 6
    baselines = GuessEnv.baselines

    def __init__(self):
        self.played = GuessEnv()
        self.observation_space, self.action_space = UnicodeText(), UnicodeText()
        self.tasks = self.played.tasks
        self.tools = {name: BareTool(made) for name, made in GuessEnv.tools.items()}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.played.reset(seed=seed, options=options)

    def step(self, action):
        return self.played.step(action)

    def snapshot(self):
        return self.played.snapshot()

    def restore(self, snapshot):
        self.played.restore(snapshot)


@pytest.mark.parametrize("make", [GuessEnv, lambda: gym.make("conformance/Guess-v0"), BareEnv])
def test_good_environments_pass(make):
    check_text_env(make(), publish=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("__doc__", "Guess."), ("baselines", {"random": lambda env, rng: lambda observation: "hm"})],
)
def test_advice_is_an_error_only_for_what_is_published(monkeypatch, name, value):
    monkeypatch.setattr(GuessEnv, name, value)
    check_text_env(GuessEnv())
    with pytest.raises(ContractError):
        check_text_env(GuessEnv(), publish=True)


def test_a_registered_time_limit_below_max_turns_is_named():
    gym.register("conformance/Cut-v0", GuessEnv, max_episode_steps=4)
    with pytest.raises(ContractError, match=r"max_episode_steps=4.*max_turns is 6"):
        check_text_env(gym.make("conformance/Cut-v0"))


def test_what_cannot_be_pickled_comes_with_what_to_do():
    class LambdaEnv(GuessEnv):
        def begin(self, task):
            self.hook = lambda: None
            return super().begin(task)

    with pytest.raises(ContractError, match=r"local object .* at the top of its file"):
        check_text_env(LambdaEnv())

    class DatabaseEnv(GuessEnv):
        def begin(self, task):
            self.database = sqlite3.connect(":memory:")
            return super().begin(task)

    with pytest.raises(
        ContractError, match=r"cannot pickle 'sqlite3.Connection' object. An open handle .*__reduce__"
    ):
        check_text_env(DatabaseEnv())


def changed_step(change):
    """A ``step`` that returns ``change(env, action, observation, reward, terminated, truncated, info)``."""
    return lambda self, action: change(self, action, *GuessEnv.step(self, action))


def changed_info(change):
    """A ``step`` that changes its info."""

    def step(self, action):
        result = GuessEnv.step(self, action)
        change(self, result[-1])
        return result

    return step


def changed_reset(change):
    """A ``reset`` that returns ``change(env, observation, info)``."""

    def reset(self, *, seed=None, options=None):
        return change(self, *GuessEnv.reset(self, seed=seed, options=options))

    return reset


def changed_options(change):
    """A ``reset`` that gets ``change(env, options)``."""

    def reset(self, *, seed=None, options=None):
        return GuessEnv.reset(self, seed=seed, options=change(self, dict(options or {})))

    return reset


def step_with_limit(limit):
    def step(self, action):
        self.max_turns = limit
        try:
            return GuessEnv.step(self, action)
        finally:
            self.max_turns = 6

    return step


def changed_schemas(change):
    class ChangedTool(Tool):
        def schema(self):
            schema = Tool.schema(self)
            change(schema["function"])
            return schema

    return {
        name: ChangedTool(item.name, item.description, item.parameters, item.ends)
        for name, item in GuessEnv.tools.items()
    }


def init_with(change):
    def __init__(self, **kwargs):
        GuessEnv.__init__(self, **kwargs)
        change(self)

    return __init__


def raising(error):
    def method(self, *args):
        raise error

    return method


MUTANTS = {}


def breaks(*rules, made=False):
    """Register a mutant with the rule it breaks first, and others that then cannot hold either.

    A ``made`` mutant is registered with Gymnasium too, so that more instances are new ones, not copies.
    """

    def register(cls):
        cls.__doc__ = cls.__doc__ or DOCSTRING
        if made:
            gym.register(f"conformance/{cls.__name__}-v0", cls, order_enforce=False, disable_env_checker=True)
        MUTANTS[cls.__name__] = (cls, rules, made)
        return cls

    return register


def mutant(name, *rules, **members):
    """Register a subclass of GuessEnv with other members."""
    globals()[name] = cls = type(name, (GuessEnv,), {"__doc__": DOCSTRING, "__module__": __name__, **members})
    breaks(*rules)(cls)


R = Rule
mutant(
    "GymnasiumText", R.SPACES, __init__=init_with(lambda e: setattr(e, "action_space", gym.spaces.Text(9)))
)
mutant("NoHeadings", R.DOCSTRING, __doc__="Guess a number.")
mutant("HeadingsInAnotherOrder", R.DOCSTRING, __doc__="\n".join(reversed(DOCSTRING.splitlines())))
for _name, _change in {
    "UndescribedParameter": lambda f: [p.pop("description") for p in f["parameters"]["properties"].values()],
    "UndescribedTool": lambda f: f.update(description=" "),
    "ToolUnderAnotherName": lambda f: f.update(name="try"),
    "RequiresWhatItDoesNotDeclare": lambda f: f["parameters"]["required"].append("luck"),
}.items():
    mutant(_name, R.TOOLS)
    globals()[_name].tools = changed_schemas(_change)
mutant("ObservesBytes", R.RESETS, R.GYMNASIUM, reset=changed_reset(lambda e, obs, info: (obs.encode(), info)))
mutant("ResetGivesNoInfo", R.RESETS, R.GYMNASIUM, reset=changed_reset(lambda e, obs, info: obs))
mutant("ResetRaises", R.RESETS, R.GYMNASIUM, begin=raising(LookupError("no such book")))
for _name, _rules, _step in (
    ("FourValues", (R.STEPS, R.GYMNASIUM), lambda e, a, o, r, end, cut, info: (o, r, end or cut, info)),
    ("NumpyFlag", (R.STEPS,), lambda e, a, o, r, end, cut, info: (o, r, np.bool_(end), cut, info)),
    ("WholeNumberReward", (R.STEPS,), lambda e, a, o, r, end, cut, info: (o, round(r), end, cut, info)),
    ("EndsTwice", (R.NOT_BOTH,), lambda e, a, o, r, end, cut, info: (o, r, end or cut, cut, info)),
    ("HiddenReward", (R.SCORE_TERMS,), lambda e, a, o, r, *rest: (o, r + 1e-6, *rest)),
    ("TooLong", (R.WITHIN, R.GYMNASIUM), lambda e, a, o, *rest: (o + "x" * 20_000, *rest)),
    ("EchoesSurrogates", (R.WITHIN,), lambda e, a, o, *rest: (o + a[:99], *rest)),
):
    mutant(_name, *_rules, step=changed_step(_step))
for _name, _rules, _change in (
    ("CallAndError", (R.INFO, R.BASELINE), lambda e, i: i.update(error={"kind": "", "message": ""}, call={})),
    ("NoTurn", (R.INFO,), lambda e, info: info.pop("turn")),
    ("WrongTurn", (R.INFO,), lambda e, info: info.update(turn=info["turn"] + 1)),
    ("CallWithoutArguments", (R.INFO,), lambda e, info: info.get("call", {}).pop("arguments", None)),
    ("TupleInInfo", (R.JSON,), lambda e, info: info.update(guesses=tuple(e.guesses))),
    ("NotANumberInInfo", (R.JSON, R.GYMNASIUM), lambda e, info: info.update(chance=float("nan"))),
    ("SetInInfo", (R.JSON,), lambda e, info: info.update(chance={1})),
    ("WholeNumberTerm", (R.SCORE_TERMS,), lambda e, info: info["score_terms"].update(nothing=0)),
    ("TaskOfItsOwn", (R.TASK_ID,), lambda e, info: info.update(task_id="another")),
    ("SuccessAllAlong", (R.AT_THE_END,), lambda e, info: info.setdefault("success", False)),
    ("NoMetrics", (R.AT_THE_END,), lambda e, info: info.pop("metrics", None)),
    ("NumberOfSuccess", (R.AT_THE_END,), lambda e, i: "success" in i and i.update(success=int(i["success"]))),
    ("OneListForAll", (R.FRESH,), lambda e, info: info.update(rules=e.__dict__.setdefault("rules", ["a"]))),
    ("HandsOutItsState", (R.FRESH,), lambda e, info: info.update(guesses=e.guesses)),
    ("DrawsFromRandom", (R.GLOBAL_STATE,), lambda e, info: random.random()),
):
    mutant(_name, *_rules, step=changed_info(_change))
mutant("ToolsByName", R.INFO, reset=changed_reset(lambda e, obs, info: (obs, info | {"tools": ["guess"]})))
mutant("SystemElsewhere", R.SYSTEM, reset=changed_reset(lambda e, obs, info: (f"Hello. {obs}", info)))
SPEECHLESS = {"random": lambda env, rng: lambda observation: "hm"}
mutant("SpeechlessBaseline", R.BASELINE, baselines=SPEECHLESS)
mutant("RaisingBaseline", R.BASELINE, baselines={"random": lambda env, rng: lambda obs: obs[10**9]})
mutant("TruncatesEarly", R.MAX_TURNS, step=step_with_limit(5))
mutant("NeverTruncates", R.MAX_TURNS, R.RESET_NEEDED, step=step_with_limit(10**6))
mutant(
    "OneToolListForAllResets",
    R.FRESH,
    __init__=init_with(lambda e: setattr(e, "schemas", [item.schema() for item in e.tools.values()])),
    reset=changed_reset(lambda e, obs, info: (obs, info | {"tools": e.schemas})),
)
mutant("SeedsNumpy", R.GLOBAL_STATE, reset=changed_reset(lambda e, *r: (np.random.rand(), r)[1]))  # noqa: NPY002
mutant(
    "DeafToTask",
    R.OPTIONS,
    reset=changed_options(lambda e, o: ("task" in o and e.tasks.get(o.pop("task")), o)[1]),
)
mutant(
    "DeafToSplit",
    R.OPTIONS,
    reset=changed_options(lambda e, o: ("split" in o and e.tasks.split(o.pop("split")), o)[1]),
)
mutant(
    "TakesAnyOption",
    R.WRONG_OPTIONS,
    reset=changed_options(lambda e, o: {k: o[k] for k in o if k in ("task", "split")}),
)
mutant("AnswersBeforeReset", R.RESET_NEEDED, __init__=init_with(lambda e: setattr(e, "_running", True)))
mutant("CopiesShareTheirChance", R.COPIES, __deepcopy__=lambda self, memo: copy.copy(self))
mutant("OldSeedMethod", R.GYMNASIUM, seed=lambda self, seed=None: [seed])
mutant(
    "DoesNotPickle",
    R.PICKLES,
    shared=("hook",),
    __init__=init_with(lambda e: setattr(e, "hook", lambda: None)),
)
mutant(
    "SnapshotHoldsLiveState",
    R.SNAPSHOT_RESTORES,
    snapshot=lambda self: dict(vars(self)),
    restore=lambda self, snapshot: vars(self).update(snapshot),
)
mutant(
    "SnapshotStaysAtHome",
    R.SNAPSHOT_TRAVELS,
    snapshot=lambda self: (GuessEnv.snapshot(self), lambda: None),
    restore=lambda self, snapshot: GuessEnv.restore(self, snapshot[0]),
)


@breaks(R.SAME_SEED, R.ANY_INSTANCE, R.INTERLEAVED, R.FRESH)
class CountsItsEpisodes(GuessEnv):
    episodes = 0

    def begin(self, task):
        self.episodes += 1
        return f"Episode {self.episodes}. {super().begin(task)}"


@breaks(R.ANY_INSTANCE, made=True)
class CountsItsInstances(GuessEnv):
    instances = 0

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        CountsItsInstances.instances += 1
        self.number = self.instances

    def begin(self, task):
        return f"Table {self.number}. {super().begin(task)}"


@breaks(R.INTERLEAVED, R.SNAPSHOT_RESTORES, R.SNAPSHOT_TRAVELS, R.COPIES)
class SharesItsChance(GuessEnv):
    chance = None

    def begin(self, task):
        SharesItsChance.chance = np.random.default_rng(int(self.np_random.integers(1_000_000)))
        return super().begin(task)

    step = changed_step(lambda self, action, observation, *rest: (f"{self.chance.random()}", *rest))


def options_rejected_without_a_message(env, options):
    if options.get("split", "train") not in env.tasks.splits:
        raise KeyError("bad")
    return options


@breaks(R.NEVER_RAISES)
class FearsLargeNumbers(GuessEnv):
    @tool
    def guess(self, number: int):
        """Guess the number.

        Args:
            number: The guess.
        """
        return f"{float(number) * 1e300} {range(number)[:1]} {2.0**number:.0f}"


def another_error_after_the_end(self, action):
    try:
        return GuessEnv.step(self, action)
    except ResetNeededError:
        raise RuntimeError("over") from None


def restore_but_chance(self, snapshot):
    chance = self.np_random
    GuessEnv.restore(self, snapshot)
    self.np_random = chance


def step_but_nul(self, action):
    return GuessEnv.step(self, str(int(action)) if "\0" in action else action)


mutant("RejectsWithoutAMessage", R.WRONG_OPTIONS, reset=changed_options(options_rejected_without_a_message))
mutant("FearsNul", R.NEVER_RAISES, step=step_but_nul)
mutant("AnotherErrorAfterTheEnd", R.RESET_NEEDED, step=another_error_after_the_end)
mutant(
    "SnapshotDraws",
    R.SNAPSHOT_CHANGES_NOTHING,
    R.SNAPSHOT_TRAVELS,
    snapshot=lambda self: (self.np_random.random(), GuessEnv.snapshot(self))[1],
)
mutant("RestoresNoChance", R.SNAPSHOT_RESTORES, R.SNAPSHOT_TRAVELS, restore=restore_but_chance)
mutant("PicklesAsNew", R.PICKLES, R.COPIES, __reduce__=lambda self: (type(self), ()))


def rule_broken_by(check, env):
    """The rule that one check alone finds broken."""
    with contextlib.closing(Subject(env, (0, 1), 30)) as subject:
        try:
            for seen in CHECKS[check](subject):
                raise broken(check, seen)
        except ContractError as error:
            return next(rule for rule in Rule if str(error).startswith(rule))
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught_by_its_rule_and_no_other(name, monkeypatch):
    def short_replies(tools):  # the good environments hear the long ones
        return (reply for reply in hostile_replies(tools) if len(reply) < 1_000)

    monkeypatch.setattr(behaviour_checks, "hostile_replies", short_replies)
    cls, expected, made = MUTANTS[name]
    found = [
        rule_broken_by(check, gym.make(f"conformance/{name}-v0").unwrapped if made else cls())
        for check in CHECKS
    ]
    caught = [rule for rule in found if rule is not None]
    assert caught[0] == expected[0]
    assert set(caught) == set(expected)


def test_every_rule_has_a_check_and_a_mutant():
    assert set(Rule) == {rules[0] for _, rules, _ in MUTANTS.values()}
    assert list(CHECKS) == [rule for rule in Rule if rule not in (Rule.RESETS, Rule.STEPS)]


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("SharesItsChance", f"^{Rule.INTERLEAVED}"),
        ("FearsNul", r"the reply '.*\\x00.*' raised ValueError"),
        ("CountsItsEpisodes", r"At turn 0, after reset: observation .*Episode \d+.*Episode \d+"),
    ],
)
def test_the_first_broken_rule_is_reported_with_what_was_seen(name, seen):
    with pytest.raises(AssertionError, match=seen):
        check_text_env(MUTANTS[name][0]())


def test_hostile_replies_try_every_tool_and_argument():
    replies = list(hostile_replies(GuessEnv().tools))
    assert len(set(replies)) > 100
    for part in ("guess(", "give_up()", '"number": null', '"why": "', "\0", "\ud800", "<tool_call>"):
        assert any(part in reply for reply in replies)
    assert max(map(len, replies)) >= 1_000_000


def test_other_instances_are_closed(monkeypatch):
    closed = []
    monkeypatch.setattr(GuessEnv, "close", lambda self: closed.append(self))
    with contextlib.closing(Subject(GuessEnv(), (0,), 5)) as subject:
        others = [subject.another(), subject.another()]
    assert closed == others
