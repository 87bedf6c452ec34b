"""TRL's ``environment_factory``: an environment whose tools are methods, one instance a rollout.

TRL inspects the class: every public method except ``reset`` and ``get_reward`` is a tool, its type hints and
docstring are the schema. So a class is created for each environment, from the schemas that its ``reset``
returns. A call is passed to ``step`` as a reply in the Hermes format, unchecked: the environment answers
wrong calls, and charges for them, as it does outside TRL.

TRL cannot be told that an episode is over. But its ``GRPOTrainer`` drops an answer that would exceed
``max_completion_length``, and the sample ends there: an episode's last answer is such a text.
"""

from __future__ import annotations

import inspect
import json
import keyword
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import gymnasium as gym

from art_gym.env import truncate
from art_gym.errors import UnknownTaskError
from art_gym.parsing.formats import write_call
from art_gym.wrappers.judging import Attempt, AttemptRecorder
from art_trainer.errors import ConfigError
from art_trainer.rollout.episodes import last_line
from art_trainer.trl.dataset import check_start, env_json, make_env, reset_options

EPISODE_OVER = "The episode is over. Nothing you do now has an effect."
"""The answer to calls after the episode's end."""

_COLUMNS = ("prompt", "seed", "task", "env")
_TYPES: dict[Any, Any] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict,
}  # fmt: skip
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EnvironmentFactory:
    """Creates environments for TRL; see :func:`environment_factory`. ``AsyncGRPOTrainer`` pickles it."""

    env_spec: str
    max_completion_length: int | None
    free_text: bool = False
    unfinished_reward: float = 0.0

    def __call__(self) -> ToolEnvironment:
        """Create an environment; a ConfigError if its tools cannot be methods of a class."""
        return _class_for(self)()


def environment_factory(
    env: str,
    *,
    max_completion_length: int | None,
    env_args: Mapping[str, Any] | None = None,
    free_text: bool = False,
    unfinished_reward: float = 0.0,
) -> EnvironmentFactory:
    """Return a factory for ``GRPOTrainer(environment_factory=…)``.

    The rows come from :func:`~art_trainer.trl.task_dataset` with the same ``env`` and ``env_args``; their
    prompts already hold the first observation. An instance's reward is the environment's, or ``None`` (which
    TRL leaves out of the update) if the environment failed.

    Args:
        env: An id for ``gym.make``; ``"module:id"`` imports the module first, which trainers that start
            further processes need for environments of other packages.
        max_completion_length: The trainer's own, in tokens. The answer to the call that ends the episode has
            more, so that TRL drops it and ends the sample; a larger one in the trainer is logged as a
            warning. ``None`` answers with the last observation, for ``AsyncGRPOTrainer``, which cannot end a
            sample: what the model says after the end is trained on as if it were of the episode.
        env_args: Arguments of the environment, JSON-serialisable.
        free_text: Offer one tool, ``act(text)``, whose text is the reply, instead of the environment's own
            tools. With a tokenizer from :func:`~art_trainer.trl.free_text` every turn is a call of it.
        unfinished_reward: Added if the model stopped calling tools, or had no tokens left, before the
            episode's end, to what a ``TextEnv`` then pays as if its turns had run out. Other environments
            pay nothing, so with the default of 0 a model can avoid the costs of playing on by saying nothing.

    Raises:
        ConfigError: If ``env_args`` cannot be written as JSON.
    """
    return EnvironmentFactory(env_json(env, env_args), max_completion_length, free_text, unfinished_reward)


class ToolEnvironment:
    """Base of environments for TRL; :func:`environment_factory` creates subclasses that have the tools."""

    _factory: ClassVar[EnvironmentFactory]

    def __init__(self) -> None:
        self._env: gym.Env[Any, Any] | None = None
        self._recorder = AttemptRecorder()
        self._reward = 0.0
        self._playing = False
        self._fault: str | None = None

    def reset(self, **row: Any) -> None:
        """Begin the episode of a dataset's row.

        Raises:
            ConfigError: If the row is of a dataset for another environment, or the environment does not begin
                as it did when the dataset was made.
        """
        self._check(row)
        self._reward, self._playing, self._fault = 0.0, False, None
        try:
            if self._env is None:
                self._env = make_env(self._factory.env_spec)
            observation, info = self._env.reset(seed=int(row["seed"]), options=reset_options(row["task"]))
        except UnknownTaskError as error:
            raise ConfigError(f"the dataset has a task that the environment lacks: {error}") from error
        except Exception:  # an environment is its author's code; what it raises is this episode's outcome
            self._fail()
            return
        start = (row["seed"], row["task"], observation, row["prompt"])
        check_start(self._factory.env_spec, *start, free_text=self._factory.free_text)
        self._recorder.begin(observation, info)
        self._playing = True

    def get_reward(self) -> float | None:
        """End the episode and return its reward; ``None`` if the environment failed."""
        if self._playing and self._env is not None:
            self._playing = False
            try:
                terms = truncate(self._env).get("score_terms", {})
                self._reward += sum(terms.values(), self._factory.unfinished_reward)
            except Exception:  # an environment is its author's code; what it raises is this episode's outcome
                self._fail()
        return None if self._fault is not None else self._reward

    def _attempt(self) -> Attempt | None:
        """Return the episode played, for judges, without an id; ``None`` if it failed."""
        return None if self._fault is not None else self._recorder.attempt("")

    def _check(self, row: Mapping[str, Any]) -> None:
        missing = [name for name in _COLUMNS if name not in row]
        if missing:
            raise ConfigError(
                f"a row of the dataset lacks {', '.join(missing)}: make the dataset with "
                "art_trainer.trl.task_dataset and keep its columns"
            )
        if row["env"] != self._factory.env_spec:
            raise ConfigError(
                f"the dataset was made for {row['env']} and the factory for {self._factory.env_spec}: give "
                "both the same env and env_args"
            )

    def _act(self, reply: str) -> str:
        """Play a reply and return the observation, or a text that ends the sample with the episode."""
        if self._fault is not None:
            return self._ending(f"The environment failed and cannot answer: {self._fault}")
        if not self._playing or self._env is None:
            _warn_of_a_late_call(self._factory)
            return self._ending(EPISODE_OVER)
        try:
            observation, reward, terminated, truncated, info = self._env.step(reply)
            self._recorder.add(reply, observation, reward, terminated, truncated, info)
            self._reward += float(reward)
        except Exception:  # an environment is its author's code; what it raises is this episode's outcome
            self._fail()
            return self._act(reply)
        self._playing = not (terminated or truncated)
        return str(observation) if self._playing else self._ending(str(observation))

    def _ending(self, text: str) -> str:
        """Return a text of more tokens than a sample may have, if TRL ends samples by that."""
        # A word is at least one token.
        longest = self._factory.max_completion_length
        return text if longest is None else EPISODE_OVER + " over" * longest

    def _fail(self) -> None:
        """Abandon the episode; the environment's state is unknown, so the next episode creates a new one."""
        self._fault, self._playing = last_line(), False
        _log.warning("%s failed, its episode is left out: %s", self._factory.env_spec, self._fault)
        if self._env is not None:
            self._env.close()
            self._env = None


class _FreeTextEnvironment(ToolEnvironment):
    """An environment with one tool that takes any text."""

    def act(self, text: str) -> str:
        """Say something to the environment.

        Args:
            text: What to say.

        Returns:
            What comes back.
        """
        return self._act(text)


@lru_cache(maxsize=64)
def _warn_of_a_late_call(factory: EnvironmentFactory) -> None:
    """Log once that a sample went on after its episode's end."""
    if factory.max_completion_length is not None:
        _log.warning(
            "%s was called after the episode's end. Unless one turn made several calls, the trainer's "
            "max_completion_length is larger than the factory's: what follows the end is trained on",
            factory.env_spec,
        )


@lru_cache(maxsize=64)
def _class_for(factory: EnvironmentFactory) -> type[ToolEnvironment]:
    """Return the class of a factory's environments; TRL tells environments apart by their class."""
    with closing(make_env(factory.env_spec)) as env:
        name = type(env.unwrapped).__name__
        tools = env.reset(seed=0)[1].get("tools") or ()
    members: dict[str, Any] = {"_factory": factory, "__doc__": f"{factory.env_spec} as TRL takes it."}
    if factory.free_text:
        return type(name, (_FreeTextEnvironment,), members)
    if not tools:
        raise ConfigError(
            f"{factory.env_spec} returns no tools in the info of reset: give environment_factory "
            "free_text=True, and the trainer art_trainer.trl.free_text(tokenizer)"
        )
    for function in (schema["function"] for schema in tools):
        if not function["name"].isidentifier() or hasattr(ToolEnvironment, function["name"]):
            raise ConfigError(f"a tool cannot be called `{function['name']}` in TRL: give free_text=True")
        members[function["name"]] = _tool_method(function)
    return type(name, (ToolEnvironment,), members)


def _tool_method(function: Mapping[str, Any]) -> Callable[..., str]:
    """Return a method with the signature and docstring that TRL reads the tool's schema from.

    It takes any arguments: the environment reports what is wrong with them.
    """
    name, parameters = function["name"], function["parameters"]

    def call(self: ToolEnvironment, /, **arguments: Any) -> str:
        return self._act(write_call(name, arguments))

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
    """Return the type hint from which TRL derives this JSON schema."""
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if schema.get("type") == "array" and "items" in schema:
        return list[_hint(schema["items"])]  # type: ignore[misc]
    return _TYPES.get(schema.get("type"), Any)


def _described(schema: Mapping[str, Any]) -> str:
    """Return an argument's description, with what a type hint cannot express."""
    text = _one_line(schema.get("description") or "An argument.")
    if schema.get("format") == "date":
        text += " A date such as 2024-03-01."
    if schema.get("default") is not None:
        text += f" By default {json.dumps(schema['default'], ensure_ascii=False)}."
    return text


def _one_line(text: str) -> str:
    """Return text on one line that is not read as a section of a docstring."""
    return re.sub(r"\b(Args|Returns|Raises):", r"\1 :", " ".join(text.split()))
