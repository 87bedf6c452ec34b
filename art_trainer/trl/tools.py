"""TRL's ``environment_factory``: an environment whose tools are methods, one instance a rollout.

TRL finds the tools by looking at the class: every public method but ``reset`` and ``get_reward`` is one, its
type hints and its docstring are the schema. So a class is made for each environment, from the schemas that
its ``reset`` gives. What a call says goes to ``step`` as a reply in the Hermes format, unchecked: the
environment answers a wrong one in its own words, and charges for it, as it does outside TRL.
"""

from __future__ import annotations

import inspect
import json
import keyword
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import gymnasium as gym

from art_gym.errors import UnknownTask
from art_gym.wrappers.judging import Attempt, AttemptRecorder
from art_trainer.errors import ConfigError
from art_trainer.rollout import last_line
from art_trainer.trl.dataset import digest, env_json, make_env, reset_options
from art_trainer.trl.requirements import require_trl

OVER = "The episode is over. Nothing you do now has an effect."
"""What a call after the episode's end is answered; TRL has no way to end a rollout."""

_COLUMNS = ("seed", "task", "env", "begins")
_TYPES: dict[Any, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EnvironmentFactory:
    """Makes what TRL plays with; it can be pickled, as ``AsyncGRPOTrainer`` asks.

    Attributes:
        made_by: The environment's id and arguments as JSON.
        free_text: Whether there is one tool, ``act(text)``, instead of the environment's own.
        unfinished_reward: Added to the reward of an episode that was not played to its end.
    """

    made_by: str
    free_text: bool = False
    unfinished_reward: float = 0.0

    def __call__(self) -> ToolEnvironment:
        """Make one environment.

        Raises:
            ConfigError: Where its tools cannot be methods of a class.
        """
        return _class_for(self)()


def environment_factory(
    env: str,
    *,
    env_args: Mapping[str, Any] | None = None,
    free_text: bool = False,
    unfinished_reward: float = 0.0,
) -> EnvironmentFactory:
    """Return a factory for ``GRPOTrainer(environment_factory=…)``.

    The rows come from :func:`~art_trainer.trl.task_dataset` with the same ``env`` and ``env_args``; their
    prompts already hold the first observation. An instance's reward is what the environment paid, or ``None``
    (which TRL leaves out of the update) where the environment failed.

    Args:
        env: An id that ``gym.make`` knows; ``"module:id"`` imports the module first, which a trainer with
            processes of its own needs for an environment that is not ours.
        env_args: Arguments of the environment, as JSON can hold them.
        free_text: Offer one tool, ``act(text)``, whose text is the reply, instead of the environment's own
            tools. With :func:`~art_trainer.trl.free_text` every turn is a call of it.
        unfinished_reward: Added where the model stopped calling tools, or had no tokens left, before the
            episode's end. TRL ends a rollout at the first turn without a call, and with the default of 0 a
            model can escape the costs of playing on by saying nothing.

    Raises:
        ModuleNotFoundError: Without TRL.
        ConfigError: Where TRL is too old, or ``env_args`` cannot be written as JSON.
    """
    require_trl("environment_factory")
    return EnvironmentFactory(env_json(env, env_args), free_text, unfinished_reward)


class ToolEnvironment:
    """An environment as TRL takes it; :func:`environment_factory` makes subclasses that have the tools."""

    _factory: ClassVar[EnvironmentFactory]

    def __init__(self) -> None:
        self._env: gym.Env[Any, Any] | None = None
        self._recorder = AttemptRecorder()
        self._reward = 0.0
        self._over = True
        self._unfinished = False
        self._fault: str | None = None

    def reset(self, **row: Any) -> None:
        """Begin the episode of a dataset's row.

        Raises:
            ConfigError: Where the row is not of a dataset for this environment, or the environment does not
                begin as it did when the dataset was made.
        """
        self._check(row)
        self._reward, self._over, self._unfinished, self._fault = 0.0, True, False, None
        try:
            if self._env is None:
                self._env = make_env(self._factory.made_by)
            options = reset_options(row["task"])
            observation, info = self._env.reset(seed=int(row["seed"]), options=options)
            begins = digest(observation)
        except UnknownTask as error:
            raise ConfigError(f"the dataset has a task that the environment has not: {error}") from error
        except Exception:  # an environment is its author's code; what it raises is this episode's outcome
            self._fail()
            return
        if begins != row["begins"]:
            raise ConfigError(
                f"{self._factory.made_by} with seed {row['seed']} and task {row['task']!r} does not begin as "
                "it did when the dataset was made: make the dataset anew, and check that the environment "
                "draws all its chance from np_random"
            )
        self._recorder.begin(observation, info)
        self._over, self._unfinished = False, True

    def get_reward(self) -> float | None:
        """What the environment paid in the episode; ``None`` where it failed."""
        if self._fault is not None:
            return None
        return self._reward + (self._factory.unfinished_reward if self._unfinished else 0.0)

    def _check(self, row: Mapping[str, Any]) -> None:
        missing = [name for name in _COLUMNS if name not in row]
        if missing:
            raise ConfigError(
                f"a row of the dataset lacks {', '.join(missing)}: make the dataset with "
                "art_trainer.trl.task_dataset and keep its columns"
            )
        if row["env"] != self._factory.made_by:
            raise ConfigError(
                f"the dataset was made for {row['env']} and the factory for {self._factory.made_by}: give "
                "both the same env and env_args"
            )

    def _act(self, reply: str) -> str:
        """Play a reply; the words that come back, in whatever state the episode is."""
        if self._fault is not None:
            return f"The environment failed and can answer no more: {self._fault}"
        if self._over or self._env is None:
            return OVER
        try:
            observation, reward, terminated, truncated, info = self._env.step(reply)
            self._recorder.add(reply, observation, reward, terminated, truncated, info)
            self._reward += float(reward)
        except Exception:  # an environment is its author's code; what it raises is this episode's outcome
            self._fail()
            return self._act(reply)
        if terminated or truncated:
            self._over, self._unfinished = True, False
        return str(observation)

    def _fail(self) -> None:
        """Give the episode up; whatever the environment still holds is unknown, so the next has a new one."""
        self._fault, self._unfinished = last_line(), False
        _log.warning("%s failed, its episode is left out: %s", self._factory.made_by, self._fault)
        if self._env is not None:
            self._env.close()
            self._env = None


class _SpokenTo(ToolEnvironment):
    """An environment with one tool for whatever a model says, see :func:`~art_trainer.trl.free_text`."""

    def act(self, text: str) -> str:
        """Say something to the environment.

        Args:
            text: What to say.

        Returns:
            What comes back.
        """
        return self._act(text)


def played(environment: ToolEnvironment) -> Attempt | None:
    """The episode that an environment has just played, for judges, unnamed; ``None`` where it failed."""
    return None if environment._fault is not None else environment._recorder.attempt("")


@lru_cache(maxsize=64)
def _class_for(factory: EnvironmentFactory) -> type[ToolEnvironment]:
    """The class of a factory's environments: one a factory, since TRL tells environments apart by it."""
    env = make_env(factory.made_by)
    try:
        name = type(env.unwrapped).__name__
        _, info = env.reset(seed=0)
    finally:
        env.close()
    members: dict[str, Any] = {"_factory": factory, "__doc__": f"{factory.made_by} as TRL takes it."}
    if factory.free_text:
        return type(name, (_SpokenTo,), members)
    if not info.get("tools"):
        raise ConfigError(
            f"{factory.made_by} tells no tools in the info of reset: give environment_factory "
            "free_text=True, and the trainer art_trainer.trl.free_text(tokenizer)"
        )
    for schema in info["tools"]:
        function = schema["function"]
        if not function["name"].isidentifier() or hasattr(ToolEnvironment, function["name"]):
            raise ConfigError(f"a tool cannot be called `{function['name']}` in TRL: give free_text=True")
        members[function["name"]] = _tool_method(function)
    return type(name, (ToolEnvironment,), members)


def _tool_method(function: Mapping[str, Any]) -> Callable[..., str]:
    """A method with the signature and docstring that TRL reads the tool's schema from.

    It takes any arguments: the environment says what is wrong with them.
    """
    name, parameters = function["name"], function["parameters"]

    def call(self: ToolEnvironment, /, **arguments: Any) -> str:
        # A reply that holds the end of its own markup, or a piece of thinking, would be read as such.
        said = json.dumps({"name": name, "arguments": arguments}).replace("<", "\\u003c")
        return self._act(f"<tool_call>\n{said}\n</tool_call>")

    signature = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    lines, required = [], parameters.get("required", ())
    for argument, schema in parameters.get("properties", {}).items():
        if keyword.iskeyword(argument) or not argument.isidentifier():
            raise ConfigError(
                f"tool `{name}`: no argument of a method can be `{argument}`: give free_text=True"
            )
        hint, default = _hint(schema), inspect.Parameter.empty
        if argument not in required:
            default = schema.get("default")
            hint = hint | None if default is None else hint
        signature.append(
            inspect.Parameter(argument, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        )
        lines.append(f"    {argument}: {_described(schema)}")
    call.__name__ = call.__qualname__ = name
    call.__signature__ = inspect.Signature(signature, return_annotation=str)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in signature[1:]} | {"return": str}
    summary = _one_line(function.get("description") or name)
    about = "\n\nArgs:\n" + "\n".join(lines) if lines else ""
    call.__doc__ = f"{summary}{about}\n\nReturns:\n    What comes back."
    return call


def _hint(schema: Mapping[str, Any]) -> Any:
    """The type hint that gives a JSON schema back."""
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if schema.get("type") == "array" and "items" in schema:
        return list[_hint(schema["items"])]  # type: ignore[misc]
    return _TYPES.get(schema.get("type"), Any)


def _described(schema: Mapping[str, Any]) -> str:
    """An argument's description, with what a type hint cannot say."""
    words = [_one_line(schema.get("description") or "An argument.")]
    if schema.get("format") == "date":
        words.append("A date such as 2024-03-01.")
    if schema.get("default") is not None:
        words.append(f"By default {json.dumps(schema['default'], ensure_ascii=False)}.")
    return " ".join(words)


def _one_line(text: str) -> str:
    """Text that does not look like a section of a docstring."""
    return re.sub(r"\b(Args|Returns|Raises):", r"\1 :", " ".join(text.split()))
