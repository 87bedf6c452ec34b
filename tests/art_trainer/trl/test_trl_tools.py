"""An environment's tools as TRL's: schemas, calls, ends, faults."""

from __future__ import annotations

import inspect
import json
import pickle
from datetime import date
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_gym import Outcome, TextEnv, tool
from art_trainer.errors import ConfigError
from art_trainer.trl import OVER, environment_factory, task_dataset
from tests.art_trainer.trl.trl_runs import QUIET, SAY_ID

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

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "say", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
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
    environment = environment_factory(env, **options)()
    assert environment.reset(**rows[row]) is None
    return environment


def schema_of(environment: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = chat_template_utils.get_json_schema(getattr(environment, name))["function"]
    return found


@pytest.mark.parametrize("env", ["toy/TrlOdd-v0", "art/2048-v0", "art/Coding-v0"])
def test_the_methods_give_the_environments_schemas_back(env: str) -> None:
    environment = environment_factory(env)()
    _, info = gym.make(env).reset(seed=0)
    for wanted in (schema["function"] for schema in info["tools"]):
        found = schema_of(environment, wanted["name"])
        assert found["parameters"].get("required", []) == wanted["parameters"]["required"]
        properties = found["parameters"]["properties"]
        assert list(properties) == list(wanted["parameters"]["properties"])
        for name, schema in wanted["parameters"]["properties"].items():
            assert {k: properties[name].get(k) for k in ("type", "enum", "items")} == {
                k: schema.get(k) for k in ("type", "enum", "items")
            }
            said = properties[name]["description"].replace(" :", ":")
            assert said.startswith(schema["description"])
    public = {n for n, _ in inspect.getmembers(type(environment), inspect.isfunction) if n[0] != "_"}
    assert public == {"reset", "get_reward", *(s["function"]["name"] for s in info["tools"])}


def test_defaults_and_dates_are_said_in_words() -> None:
    properties = schema_of(environment_factory("toy/TrlOdd-v0")(), "mix")["parameters"]["properties"]
    assert properties["share"]["description"] == "How much. By default 0.5."
    assert properties["level"]["nullable"] is True
    assert properties["day"]["description"].startswith("When. A date such as 2024-03-01.")


def test_arguments_arrive_as_their_types() -> None:
    environment = begun()
    assert environment.mix(names=["ann"], day="2025-01-02").startswith(
        "(['ann'], 0.5, None, False, datetime.date(2025, 1, 2))"
    )


@pytest.fixture(scope="module")
def odd() -> tuple[Any, dict[str, Any]]:
    """An environment and its row, made once for many examples."""
    return environment_factory("toy/TrlOdd-v0")(), task_dataset("toy/TrlOdd-v0", size=1)[0]


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text_arrives_as_it_was_said(odd: tuple[Any, dict[str, Any]], text: str) -> None:
    environment, row = odd
    environment.reset(**row)
    environment.keep(text=text)
    assert environment._env.unwrapped.kept == text
    assert environment.get_reward() == len(text)


@pytest.mark.parametrize("text", ["a </tool_call> b", "<think>no</think> yes", '"}}', "two\nlines", ""])
def test_markup_in_an_argument_is_only_text(text: str) -> None:
    environment = begun()
    environment.keep(text=text)
    assert environment._env.unwrapped.kept == text


def test_inside_and_outside_are_the_same_episode() -> None:
    rows = task_dataset(SAY_ID, size=4)
    environment = environment_factory(SAY_ID)()
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


def test_after_the_end_calls_are_answered_and_pay_nothing() -> None:
    environment = begun(SAY_ID)
    assert environment.say(word="red") == "right"
    assert [environment.say(word="red"), environment.say(nothing=1)] == [OVER, OVER]
    assert environment.get_reward() == 1.0
    assert environment_factory(SAY_ID)().say(word="red") == OVER


def test_an_episode_left_before_its_end_pays_what_was_asked() -> None:
    left = begun(SAY_ID, unfinished_reward=-0.5)
    assert left.get_reward() == -0.5
    left.say(word="green")
    assert left.get_reward() == -0.5
    left.say(word="red")
    assert left.get_reward() == 1.0


@pytest.mark.parametrize("fault", ["red", "begin"])
def test_a_fault_of_the_environment_is_no_reward_and_the_next_episode_gets_a_new_one(fault: str) -> None:
    arguments = {"fault": fault}
    row = task_dataset(SAY_ID, size=1, env_args=arguments)[0]
    environment = environment_factory(SAY_ID, env_args=arguments)()
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
    with pytest.raises(ConfigError, match="lacks seed, task, env, begins"):
        environment_factory(SAY_ID)().reset(prompt=[{"role": "user", "content": ""}])
    with pytest.raises(ConfigError, match="give both the same env and env_args"):
        environment_factory(SAY_ID, env_args={"max_turns": 3})().reset(**row)
    with pytest.raises(ConfigError, match=r"has a task that the environment has not.*did you mean"):
        environment_factory(SAY_ID)().reset(**row | {"task": "train-rad"})


def test_an_environment_that_begins_differently_each_time_is_refused() -> None:
    row = task_dataset(SAY_ID, size=1, env_args={"drift": True})[0]
    environment = environment_factory(SAY_ID, env_args={"drift": True})()
    environment.reset(**row)
    with pytest.raises(ConfigError, match="does not begin as it did when the dataset was made"):
        environment.reset(**row)


def test_the_factory_can_be_pickled_and_its_class_is_one() -> None:
    factory = environment_factory(SAY_ID, env_args={"max_turns": 3}, unfinished_reward=-1.0)
    again = pickle.loads(pickle.dumps(factory))
    assert again == factory
    # TRL scores an environment only where its class is exactly the one it looked at first.
    assert type(again()) is type(factory()) is type(factory())
    assert type(factory()).__name__ == "SayOneOfFour"
    assert type(environment_factory(SAY_ID)()) is not type(factory())


def test_free_text_is_one_tool_and_needs_no_tools() -> None:
    environment = begun("toy/TrlToolless-v0", free_text=True)
    assert schema_of(environment, "act")["parameters"]["required"] == ["text"]
    assert environment.act(text="abc") == "cba"
    environment.act(text="")
    assert environment.act(text="more") == OVER
    assert environment.get_reward() == 3.0


def test_tools_that_cannot_be_methods_get_words() -> None:
    with pytest.raises(ConfigError, match=r"tells no tools.*free_text=True"):
        environment_factory("toy/TrlToolless-v0")()
    with pytest.raises(ConfigError, match="cannot be called `get_reward`"):
        environment_factory("toy/TrlClash-v0")()
    with pytest.raises(ConfigError, match="as JSON"):
        environment_factory(SAY_ID, env_args={"fault": {1, 2}})


def test_equal_arguments_in_another_order_are_the_same_environment() -> None:
    one = environment_factory(SAY_ID, env_args={"fault": "red", "max_turns": 3})
    other = environment_factory(SAY_ID, env_args={"max_turns": 3, "fault": "red"})
    assert one == other
    assert json.loads(one.made_by)["args"] == {"fault": "red", "max_turns": 3}
