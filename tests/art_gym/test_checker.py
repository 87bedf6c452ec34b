"""Good environments pass; for each sentence of the contract there is an environment that breaks it."""

import contextlib
import copy
import random

import gymnasium as gym
import numpy as np
import pytest

import art_gym  # noqa: F401 (registers the environments)
from art_gym import _check_form, _check_play, _plays, checker
from art_gym._hostile import hostile_replies
from art_gym._plays import Case
from art_gym.checker import CHECKS, check_text_env
from art_gym.env import TextEnv
from art_gym.errors import ContractError, ResetNeeded
from art_gym.spaces import UnicodeText
from art_gym.tasks import Task
from art_gym.tools import Outcome, Tool, tool

IDS = [env_id for env_id in gym.registry if env_id.startswith("art/") and "Array" not in env_id]
DOCSTRING = "\n\n".join(f"## {heading}\nWords." for heading in _check_form.HEADINGS)
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
            return Outcome(
                "Right.", {"right": 1.0, "late": -0.1 * len(self.guesses)}, ends=True, success=True
            )
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


def good(cls=GuessEnv):
    env = cls()
    assert env.spec is None
    return env


@pytest.mark.parametrize("make", [good, lambda: gym.make("conformance/Guess-v0")], ids=["bare", "made"])
def test_good_environments_pass(make):
    check_text_env(make())


class PullTool:
    def schema(self):
        parameters = {"type": "object", "properties": {}, "required": []}
        function = {"name": "pull", "description": "Pull the lever.", "parameters": parameters}
        return {"type": "function", "function": function}


def pull_always(env, rng):
    return lambda observation: "pull"


class BareEnv(gym.Env):
    """A bandit that owes nothing to TextEnv."""

    __doc__ = DOCSTRING
    max_turns = 3

    def __init__(self):
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self.tasks = GuessEnv().tasks
        self.tools = {"pull": PullTool()}
        self.baselines = {"random": pull_always}
        self.turn = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        options = dict(options or {})
        split = options.pop("split", "train")
        task_id = options.pop("task", None)
        if options:
            raise ValueError(f"no option {list(options)}")
        self.task = self.tasks.get(task_id) if task_id else self.tasks.split(split).sample(self.np_random)
        self.turn = 0
        tools = [item.schema() for item in self.tools.values()]
        return "Pull.", {"task_id": self.task.id, "turn": 0, "tools": tools, "system": ""}

    def step(self, action):
        if self.turn is None or self.turn == self.max_turns:
            raise ResetNeeded("reset first")
        self.turn += 1
        told = (
            {"call": {"name": "pull", "arguments": {}}}
            if action == "pull"
            else {"error": {"kind": "unknown", "message": "pull!"}}
        )
        reward = float(self.np_random.random())
        info = {"task_id": self.task.id, "turn": self.turn, "score_terms": {"luck": reward}, **told}
        over = self.turn == self.max_turns
        if over:
            info |= {"success": True, "metrics": {}}
        return f"Lucky {reward}", reward, False, over, info

    def snapshot(self):
        return copy.deepcopy((self.turn, self.task, self.np_random))

    def restore(self, state):
        self.turn, self.task, self.np_random = copy.deepcopy(state)


def test_a_good_environment_needs_no_class_of_ours():
    check_text_env(BareEnv())


@pytest.mark.parametrize("env_id", IDS)
def test_registered_environments_pass(env_id):
    env = gym.make(env_id)
    check_text_env(env)
    env.close()


MUTANTS = {}


def breaks(sentence, *also, made=False):
    """Register a mutant with the sentence it breaks first, and others that then cannot hold either.

    A ``made`` mutant is registered with Gymnasium too, so that more instances are new ones, not copies.
    """

    def register(cls):
        cls.__doc__ = cls.__doc__ or DOCSTRING
        if made:
            gym.register(f"conformance/{cls.__name__}-v0", cls, order_enforce=False, disable_env_checker=True)
        MUTANTS[cls.__name__] = (cls, [sentence, *also], made)
        return cls

    return register


def changed_step(change):
    """A ``step`` that returns ``change(env, action, observation, reward, terminated, truncated, info)``."""

    def step(self, action):
        return change(self, action, *GuessEnv.step(self, action))

    return step


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


@breaks(_check_form.SPACES)
class GymnasiumText(GuessEnv):
    def __init__(self):
        super().__init__()
        self.action_space = gym.spaces.Text(100)


@breaks(_check_form.DOCSTRING)
class NoHeadings(GuessEnv):
    """Guess a number."""


@breaks(_check_form.DOCSTRING)
class HeadingsInAnotherOrder(GuessEnv):
    __doc__ = "\n".join(reversed(DOCSTRING.splitlines()))


def changed_schemas(change):
    """A decorator that sends the schemas of a class's tools through ``change``."""

    class ChangedTool(Tool):
        def schema(self):
            schema = Tool.schema(self)
            change(schema["function"])
            return schema

    def decorate(cls):
        cls.tools = {
            name: ChangedTool(item.name, item.description, item.parameters, item.ends)
            for name, item in cls.tools.items()
        }
        return cls

    return decorate


@breaks(_check_form.TOOLS)
@changed_schemas(lambda function: [words.pop("description") for words in parameters_of(function).values()])
class UndescribedParameter(GuessEnv):
    pass


def parameters_of(function):
    return function["parameters"]["properties"]


@breaks(_check_form.TOOLS)
@changed_schemas(lambda function: function.update(description=" "))
class UndescribedTool(GuessEnv):
    pass


@breaks(_check_form.TOOLS)
@changed_schemas(lambda function: function.update(name="try"))
class ToolUnderAnotherName(GuessEnv):
    pass


@breaks(_check_form.TOOLS)
@changed_schemas(lambda function: function["parameters"]["required"].append("luck"))
class RequiresWhatItDoesNotDeclare(GuessEnv):
    pass


@breaks(_plays.RESETS, checker.GYMNASIUM)
class ObservesBytes(GuessEnv):
    reset = changed_reset(lambda self, observation, info: (observation.encode(), info))


@breaks(_plays.STEPS, checker.GYMNASIUM)
class FourValues(GuessEnv):
    step = changed_step(lambda self, action, o, reward, end, cut, info: (o, reward, end or cut, info))


@breaks(_check_form.INFO, _plays.BASELINE)
class CallAndError(GuessEnv):
    step = changed_info(lambda self, info: info.update(error={"kind": "none", "message": "none"}, call={}))


@breaks(_plays.RESETS, checker.GYMNASIUM)
class ResetGivesNoInfo(GuessEnv):
    reset = changed_reset(lambda self, observation, info: observation)


@breaks(_plays.RESETS, checker.GYMNASIUM)
class ResetRaises(GuessEnv):
    def begin(self, task):
        raise LookupError("no such book")


@breaks(_plays.STEPS)
class NumpyFlag(GuessEnv):
    step = changed_step(lambda self, action, o, reward, end, cut, info: (o, reward, np.bool_(end), cut, info))


@breaks(_plays.STEPS)
class WholeNumberReward(GuessEnv):
    step = changed_step(lambda self, action, o, reward, end, cut, info: (o, round(reward), end, cut, info))


@breaks(_check_form.INFO)
class NoTurn(GuessEnv):
    step = changed_info(lambda self, info: info.pop("turn"))


@breaks(_check_form.INFO)
class WrongTurn(GuessEnv):
    step = changed_info(lambda self, info: info.update(turn=info["turn"] + 1))


@breaks(_check_form.INFO)
class CallWithoutArguments(GuessEnv):
    step = changed_info(lambda self, info: info.get("call", {}).pop("arguments", None))


@breaks(_check_form.INFO)
class ToolsByName(GuessEnv):
    reset = changed_reset(lambda self, observation, info: (observation, info | {"tools": ["guess"]}))


@breaks(_check_form.JSON)
class TupleInInfo(GuessEnv):
    step = changed_info(lambda self, info: info.update(guesses=tuple(self.guesses)))


@breaks(_check_form.JSON, checker.GYMNASIUM)
class NotANumberInInfo(GuessEnv):
    step = changed_info(lambda self, info: info.update(chance=float("nan")))


@breaks(_check_form.JSON)
class SetInInfo(GuessEnv):
    step = changed_info(lambda self, info: info.update(chance={1}))


@breaks(_check_form.WITHIN, checker.GYMNASIUM)
class TooLong(GuessEnv):
    step = changed_step(lambda self, action, observation, *rest: (observation + "x" * 20_000, *rest))


@breaks(_check_form.WITHIN)
class EchoesSurrogates(GuessEnv):
    step = changed_step(lambda self, action, observation, *rest: (observation + action[:99], *rest))


@breaks(_check_form.SYSTEM)
class SystemElsewhere(GuessEnv):
    reset = changed_reset(lambda self, observation, info: (f"Hello. {observation}", info))


@breaks(_check_form.SCORE_TERMS)
class HiddenReward(GuessEnv):
    step = changed_step(lambda self, action, o, reward, *rest: (o, reward + 1e-6, *rest))


@breaks(_check_form.SCORE_TERMS)
class WholeNumberTerm(GuessEnv):
    step = changed_info(lambda self, info: info["score_terms"].update(nothing=0))


@breaks(_check_form.TASK_ID)
class TaskOfItsOwn(GuessEnv):
    step = changed_info(lambda self, info: info.update(task_id="another"))


@breaks(_plays.BASELINE)
class SpeechlessBaseline(GuessEnv):
    baselines = {"random": lambda env, rng: lambda observation: "hm"}  # noqa: RUF012


@breaks(_plays.BASELINE)
class RaisingBaseline(GuessEnv):
    baselines = {"random": lambda env, rng: lambda observation: observation[10**9]}  # noqa: RUF012


@breaks(_check_form.NOT_BOTH)
class EndsTwice(GuessEnv):
    step = changed_step(lambda self, action, o, reward, end, cut, info: (o, reward, end or cut, cut, info))


@breaks(_check_form.MAX_TURNS)
class TruncatesEarly(GuessEnv):
    def step(self, action):
        self.max_turns = 5
        try:
            return super().step(action)
        finally:
            self.max_turns = 6


@breaks(_check_form.MAX_TURNS, _check_play.RESET_NEEDED)
class NeverTruncates(GuessEnv):
    def step(self, action):
        self.max_turns = 10**6
        try:
            return super().step(action)
        finally:
            self.max_turns = 6


@breaks(_check_form.AT_THE_END)
class SuccessAllAlong(GuessEnv):
    step = changed_info(lambda self, info: info.setdefault("success", False))


@breaks(_check_form.AT_THE_END)
class NoMetrics(GuessEnv):
    step = changed_info(lambda self, info: info.pop("metrics", None))


@breaks(_check_form.AT_THE_END)
class NumberOfSuccess(GuessEnv):
    step = changed_info(lambda self, info: "success" in info and info.update(success=int(info["success"])))


@breaks(_check_play.SAME_SEED, _check_play.ANY_INSTANCE, _check_play.INTERLEAVED, _check_play.FRESH)
class CountsItsEpisodes(GuessEnv):
    episodes = 0

    def begin(self, task):
        self.episodes += 1
        return f"Episode {self.episodes}. {super().begin(task)}"


@breaks(_check_play.ANY_INSTANCE, made=True)
class CountsItsInstances(GuessEnv):
    instances = 0

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        CountsItsInstances.instances += 1
        self.number = self.instances

    def begin(self, task):
        return f"Table {self.number}. {super().begin(task)}"


@breaks(
    _check_play.INTERLEAVED, _check_play.SNAPSHOT_RESTORES, _check_play.SNAPSHOT_TRAVELS, _check_play.COPIES
)
class SharesItsChance(GuessEnv):
    chance = None

    def begin(self, task):
        SharesItsChance.chance = np.random.default_rng(int(self.np_random.integers(1_000_000)))
        return super().begin(task)

    step = changed_step(lambda self, action, observation, *rest: (f"{self.chance.random()}", *rest))


@breaks(_check_play.FRESH)
class OneListForAll(GuessEnv):
    def __init__(self):
        super().__init__()
        self.rules = ["no peeking"]

    step = changed_info(lambda self, info: info.update(rules=self.rules))


@breaks(_check_play.FRESH)
class HandsOutItsState(GuessEnv):
    step = changed_info(lambda self, info: info.update(guesses=self.guesses))


@breaks(_check_play.FRESH)
class OneToolListForAllResets(GuessEnv):
    def __init__(self):
        super().__init__()
        self.schemas = [item.schema() for item in self.tools.values()]

    reset = changed_reset(lambda self, observation, info: (observation, info | {"tools": self.schemas}))


@breaks(_check_play.GLOBAL_STATE)
class DrawsFromRandom(GuessEnv):
    step = changed_info(lambda self, info: random.random())


@breaks(_check_play.GLOBAL_STATE)
class SeedsNumpy(GuessEnv):
    reset = changed_reset(lambda self, *result: (np.random.rand(), result)[1])  # noqa: NPY002


@breaks(_check_play.OPTIONS)
class DeafToTask(GuessEnv):
    def reset(self, *, seed=None, options=None):
        options = dict(options or {})
        if "task" in options:
            self.tasks.get(options.pop("task"))
        return super().reset(seed=seed, options=options)


@breaks(_check_play.OPTIONS)
class DeafToSplit(GuessEnv):
    def reset(self, *, seed=None, options=None):
        options = dict(options or {})
        if "split" in options:
            self.tasks.split(options.pop("split"))
        return super().reset(seed=seed, options=options)


@breaks(_check_play.WRONG_OPTIONS)
class TakesAnyOption(GuessEnv):
    def reset(self, *, seed=None, options=None):
        known = {key: value for key, value in (options or {}).items() if key in ("task", "split")}
        return super().reset(seed=seed, options=known)


@breaks(_check_play.WRONG_OPTIONS)
class RefusesWithoutWords(GuessEnv):
    def reset(self, *, seed=None, options=None):
        if (options or {}).get("split", "train") not in self.tasks.splits:
            raise KeyError("bad")
        return super().reset(seed=seed, options=options)


@breaks(_plays.NEVER_RAISES)
class FearsNul(GuessEnv):
    def step(self, action):
        return super().step(str(int(action)) if "\0" in action else action)


@breaks(_plays.NEVER_RAISES)
class FearsLargeNumbers(GuessEnv):
    def guess(self, number: int):
        """Guess the number.

        Args:
            number: The guess.
        """
        return f"{float(number) * 1e300} {range(number)[:1]} {2.0**number:.0f}"

    guess = tool(guess)


@breaks(_check_play.RESET_NEEDED)
class AnswersBeforeReset(GuessEnv):
    def __init__(self):
        super().__init__()
        self._running = True


@breaks(_check_play.RESET_NEEDED)
class AnotherErrorAfterTheEnd(GuessEnv):
    def step(self, action):
        try:
            return super().step(action)
        except ResetNeeded:
            raise RuntimeError("over") from None


@breaks(_check_play.SNAPSHOT_CHANGES_NOTHING, _check_play.SNAPSHOT_TRAVELS)
class SnapshotDraws(GuessEnv):
    def snapshot(self):
        self.np_random.random()
        return super().snapshot()


@breaks(_check_play.SNAPSHOT_RESTORES)
class SnapshotHoldsLiveState(GuessEnv):
    def snapshot(self):
        return dict(vars(self))

    def restore(self, snapshot):
        vars(self).update(snapshot)


@breaks(_check_play.SNAPSHOT_RESTORES, _check_play.SNAPSHOT_TRAVELS)
class RestoresNoChance(GuessEnv):
    def restore(self, snapshot):
        chance = self.np_random
        super().restore(snapshot)
        self.np_random = chance


@breaks(_check_play.SNAPSHOT_TRAVELS)
class SnapshotStaysAtHome(GuessEnv):
    def snapshot(self):
        return super().snapshot(), lambda: None

    def restore(self, snapshot):
        super().restore(snapshot[0])


@breaks(_check_play.PICKLES)
class DoesNotPickle(GuessEnv):
    shared = ("hook",)

    def __init__(self):
        super().__init__()
        self.hook = lambda: None


@breaks(_check_play.PICKLES, _check_play.COPIES)
class PicklesAsNew(gym.utils.EzPickle, GuessEnv):
    def __init__(self):
        gym.utils.EzPickle.__init__(self)
        GuessEnv.__init__(self)


@breaks(_check_play.COPIES)
class CopiesShareTheirChance(GuessEnv):
    def __deepcopy__(self, memo):
        return copy.copy(self)


@breaks(checker.GYMNASIUM)
class OldSeedMethod(GuessEnv):
    def seed(self, seed=None):
        return [seed]


SENTENCES = [
    value
    for module in (_plays, _check_form, _check_play, checker)
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str) and not name.startswith("_")
]


def broken(check, env):
    """The sentence that one check alone finds broken."""
    try:
        with contextlib.closing(Case(env, (0, 1), 30)) as case:
            check(case)
    except ContractError as error:
        return next(sentence for sentence in SENTENCES if str(error).startswith(sentence))
    return None


def make_mutant(name):
    cls, _, made = MUTANTS[name]
    return gym.make(f"conformance/{name}-v0").unwrapped if made else cls()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught_by_its_sentence_and_no_other(name, monkeypatch):
    def short_replies(tools):  # the good environments hear the long ones
        return (reply for reply in hostile_replies(tools) if len(reply) < 1_000)

    monkeypatch.setattr(_check_play, "hostile_replies", short_replies)
    found = [broken(check, make_mutant(name)) for check in CHECKS]
    caught = [sentence for sentence in found if sentence is not None]
    first, *_ = expected = MUTANTS[name][1]
    assert caught[0] == first
    assert set(caught) == set(expected)


def test_every_sentence_has_a_mutant():
    assert set(SENTENCES) == {sentences[0] for _, sentences, _ in MUTANTS.values()}


def test_the_first_broken_sentence_is_told():
    with pytest.raises(ContractError) as caught:
        check_text_env(SharesItsChance())
    assert str(caught.value).startswith(_check_play.INTERLEAVED)


def test_errors_name_the_reply_and_are_assertions():
    with pytest.raises(AssertionError, match=r"the reply '.*\\x00.*' raised ValueError"):
        check_text_env(FearsNul())


def test_errors_show_where_episodes_part():
    with pytest.raises(
        ContractError, match=r"At turn 0, after reset: observation .*Episode \d+.*Episode \d+"
    ):
        check_text_env(CountsItsEpisodes())


def test_hostile_replies_try_every_tool_and_argument():
    replies = list(hostile_replies(GuessEnv().tools))
    assert len(set(replies)) > 100
    for part in ("guess(", "give_up()", '"number": null', '"why": "', "\0", "\ud800", "<tool_call>"):
        assert any(part in reply for reply in replies)
    assert max(map(len, replies)) >= 1_000_000


def test_other_instances_are_closed():
    closed = []

    class CountsClosing(GuessEnv):
        __doc__ = DOCSTRING

        def close(self):
            closed.append(self)

    env = CountsClosing()
    with contextlib.closing(Case(env, (0,), 5)) as case:
        others = [case.another(), case.another()]
    assert closed == others
