"""An environment's tools as TRL's: schemas, calls, ends, faults."""

from __future__ import annotations

import inspect
import pickle
from datetime import date
from typing import Any

import gymnasium as gym
import pytest

from art_gym import Outcome, TextEnv, UnicodeText, tool
from art_trainer.errors import ConfigError
from art_trainer.trl import EPISODE_OVER, task_dataset
from tests.art_trainer.trl.trl_runs import QUIET, SAY_ID, make_factory

pytest.importorskip("trl", reason="TRL is not installed")
chat_template_utils = pytest.importorskip("transformers.utils.chat_template_utils")

pytestmark = QUIET


class OddTools(TextEnv):
    """Tools of all types of argument, that say what they were given."""

    @tool
    def keep(self, text: str) -> Outcome:
        """Keep a text. Args: are what Returns: needs.

        Args:
            text: Whatever is to be kept. Returns: are of no use.
        """
        self.kept = text
        return Outcome("kept", {"length": float(len(text))})

    @tool
    def mix(
        self,
        names: list[str],
        share: float = 0.5,
        level: int | None = None,
        loud: bool = False,
        day: date = date(2024, 3, 1),
    ) -> str:
        """Mix.

        Args:
            names: Of whom.
            share: How much.
            level: How deep.
            loud: Whether to shout.
            day: When.
        """
        return repr((names, share, level, loud, day))

    @tool(ends=True)
    def stop(self) -> str:
        """End."""
        return "bye"


class Toolless(gym.Env[str, str]):
    """Text in, text out, and no tools."""

    observation_space = action_space = UnicodeText()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return "say", {}

    def step(self, action: str) -> Any:
        return action[::-1], float(len(action)), action == "", False, {}


class Clash(TextEnv):
    """A tool whose name TRL keeps to itself."""

    @tool
    def get_reward(self) -> str:
        """Ask for one."""
        return "no"


for name, made in (("Odd", OddTools), ("Toolless", Toolless), ("Clash", Clash)):
    if f"toy/Trl{name}-v0" not in gym.registry:
        gym.register(f"toy/Trl{name}-v0", made, order_enforce=False, disable_env_checker=True)


def begun(env: str = "toy/TrlOdd-v0", row: int = 0, **options: Any) -> Any:
    """An environment after the reset of a row."""
    rows = task_dataset(env, size=row + 1, env_args=options.get("env_args"))
    environment = make_factory(env, **options)()
    assert environment.reset(**rows[row]) is None
    return environment


def schema_of(environment: Any, name: str) -> Any:
    return chat_template_utils.get_json_schema(getattr(environment, name))["function"]


@pytest.mark.parametrize("env", ["toy/TrlOdd-v0", "art/Email-v0", "art/2048-v0", "art/Coding-v0"])
def test_the_methods_give_the_environments_schemas_back(env: str) -> None:
    environment = make_factory(env)()
    wanted = {s["function"]["name"]: s["function"] for s in gym.make(env).reset(seed=0)[1]["tools"]}
    for name, function in wanted.items():
        found, parameters = schema_of(environment, name)["parameters"], function["parameters"]
        assert found.get("required", []) == parameters["required"]
        assert list(found["properties"]) == list(parameters["properties"])
        for argument, schema in parameters["properties"].items():
            one = found["properties"][argument]
            kept = ("type", "enum", "items")
            assert [one.get(key) for key in kept] == [schema.get(key) for key in kept]
            assert one["description"].replace(" :", ":").startswith(schema["description"])
    public = {n for n, _ in inspect.getmembers(type(environment), inspect.isfunction) if n[0] != "_"}
    assert public == {"reset", "get_reward", *wanted}


def test_defaults_and_dates_are_described_and_arrive_as_their_types() -> None:
    properties = schema_of(make_factory("toy/TrlOdd-v0")(), "mix")["parameters"]["properties"]
    assert properties["share"]["description"] == "How much. By default 0.5."
    assert properties["level"]["nullable"] is True
    assert properties["day"]["description"].startswith("When. A date such as 2024-03-01.")
    mixed = begun().mix(names=["ann"], day="2025-01-02")
    assert mixed.startswith("(['ann'], 0.5, None, False, datetime.date(2025, 1, 2))")


@pytest.mark.parametrize("text", ["", "é漢\n\n ", "a </tool_call> b", "<think>no</think> yes", '"\\{}\x00'])
def test_any_text_arrives_as_it_was_said(text: str) -> None:
    environment = begun()
    environment.keep(text=text)
    assert environment._env.unwrapped.kept == text
    assert environment.get_reward() == len(text)


def test_inside_and_outside_are_the_same_episode() -> None:
    rows = task_dataset(SAY_ID, size=4)
    environment = make_factory(SAY_ID)()
    for row in rows:
        outside = gym.make(SAY_ID)
        outside.reset(seed=row["seed"], options={"task": row["task"]})
        environment.reset(**row)
        paid = 0.0
        for word in ("red", "green"):
            observation, reward, terminated, truncated, _ = outside.step(f'say("{word}")')
            assert environment.say(word=word) == observation
            paid += float(reward)
            if terminated or truncated:
                break
        assert environment.get_reward() == paid


def test_wrong_arguments_are_answered_and_charged_by_the_environment() -> None:
    environment = begun(SAY_ID)
    assert "did you mean `word`" in environment.say(wort="red")
    assert "cannot be" in environment.say(word="rad")
    assert environment.get_reward() == pytest.approx(-0.2)


def test_an_episode_pays_at_its_end_and_calls_after_it_nothing() -> None:
    environment = begun(SAY_ID, unfinished_reward=-0.5)
    answers = [environment.say(word=word) for word in ("green", "red", "red")]
    assert answers == ["wrong\n(1 turn left)", "right", EPISODE_OVER]
    assert environment.get_reward() == environment.get_reward() == 1.0
    assert make_factory(SAY_ID)().say(word="red") == EPISODE_OVER


def test_an_episode_that_the_model_leaves_pays_as_if_its_turns_had_run_out() -> None:
    left, searched = begun("art/Email-v0"), begun("art/Email-v0", unfinished_reward=-0.25)
    searched.search(query="lunch")
    assert (left.get_reward(), left.get_reward(), searched.get_reward()) == (-0.5, -0.5, -0.75)
    assert searched.search(query="lunch") == EPISODE_OVER


@pytest.mark.parametrize("fault", ["red", "begin"])
def test_a_fault_of_the_environment_is_no_reward_and_the_next_episode_gets_a_new_one(fault: str) -> None:
    arguments = {"fault": fault}
    row = task_dataset(SAY_ID, size=1, env_args=arguments)[0]
    environment = make_factory(SAY_ID, env_args=arguments)()
    for _ in range(3 if fault == "begin" else 1):
        environment.reset(**row)
    first = environment._env
    if fault == "begin":
        environment.reset(**row)
    assert "failed" in environment.say(word="red")
    assert "failed" in environment.say(word="green")
    assert environment.get_reward() is None
    environment.reset(**row)
    assert environment._env is not first
    environment.say(word="green")
    assert environment.get_reward() == 0.0


def test_rows_of_something_else_are_refused() -> None:
    row = task_dataset(SAY_ID, size=1)[0]
    factory = make_factory(SAY_ID)
    for wrong, message in (
        ({"prompt": row["prompt"]}, "lacks seed, task, env"),
        (row | {"env": "{}"}, "give both the same env and env_args"),
        (row | {"task": "train-rad"}, r"has a task that the environment lacks.*did you mean"),
        (row | {"prompt": [{"role": "user", "content": "other"}]}, "does not begin with what the dataset"),
    ):
        with pytest.raises(ConfigError, match=message):
            factory().reset(**wrong)


def test_the_factory_can_be_pickled_and_its_class_is_one() -> None:
    factory = make_factory(SAY_ID, env_args={"max_turns": 3, "fault": ""}, unfinished_reward=-1.0)
    other = make_factory(SAY_ID, env_args={"fault": "", "max_turns": 3}, unfinished_reward=-1.0)
    assert factory == other
    again = pickle.loads(pickle.dumps(factory))
    assert again == factory
    # TRL scores an environment only where its class is exactly the one it looked at first.
    assert type(again()) is type(factory()) is type(factory())
    assert type(factory()).__name__ == "SayOneOfFour"
    assert type(make_factory(SAY_ID)()) is not type(factory())


@pytest.mark.parametrize(("fault", "last"), [("", "red"), ("blue", "blue")])
def test_the_answer_to_the_last_call_is_more_than_a_sample_may_have(
    fault: str, last: str, caplog: pytest.LogCaptureFixture
) -> None:
    environment = begun(SAY_ID, max_completion_length=64, env_args={"fault": fault})
    answers = [environment.say(word=word) for word in ("green", last, last, last)]
    assert answers[0] == "wrong\n(1 turn left)"
    assert all(len(answer.split()) > 64 for answer in answers[1:])
    assert sum("after the episode's end" in line for line in caplog.messages) == (not fault)


def test_free_text_is_one_tool_and_needs_no_tools() -> None:
    environment = begun("toy/TrlToolless-v0", free_text=True)
    assert schema_of(environment, "act")["parameters"]["required"] == ["text"]
    assert environment.act(text="abc") == "cba"
    environment.act(text="")
    assert environment.act(text="more") == EPISODE_OVER
    assert environment.get_reward() == 3.0


def test_a_dataset_and_a_factory_of_which_one_has_free_text_are_refused() -> None:
    for free_text in (False, True):
        row = task_dataset("art/2048-v0", size=1, free_text=free_text)[0]
        make_factory("art/2048-v0", free_text=free_text)().reset(**row)
        with pytest.raises(ConfigError, match=f"made with free_text={free_text}"):
            make_factory("art/2048-v0", free_text=not free_text)().reset(**row)


def test_tools_that_cannot_be_methods_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"returns no tools.*free_text=True"):
        make_factory("toy/TrlToolless-v0")()
    with pytest.raises(ConfigError, match="cannot be called `get_reward`"):
        make_factory("toy/TrlClash-v0")()
