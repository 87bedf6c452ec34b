"""From the words of a command line to environments and policies."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym

import art_gym  # noqa: F401 (registers the project's environments)
from art_gym.errors import did_you_mean
from art_gym.wrappers.text_adapter import TextAdapter
from art_gym.wrappers.text_parts import reader_of, writer_of
from art_trainer.errors import ConfigError
from art_trainer.monitoring.settings import value_of
from art_trainer.policy import Policy
from art_trainer.scripted_policy import ScriptedPolicy
from art_trainer.splits import TRAIN, choose_split

_OPENAI = re.compile(r"openai:(?P<model>.+?)(?:@(?P<url>https?://.+))?")
_BASELINE = "baseline:"
_ENGINES = ("vllm:", "sglang:")

MakeEnv = Callable[[], gym.Env[str, str]]


def env_maker(env_id: str, env_args: Mapping[str, Any]) -> MakeEnv:
    """What makes the environment; one is made at once, so that wrong words are found before the long work.

    Raises:
        ConfigError: Where there is no such environment, or it does not take these arguments.
    """
    make: MakeEnv = functools.partial(gym.make, env_id, **env_args)
    try:
        env = make()
        env.close()
    except gym.error.Error as error:
        raise ConfigError(f"no environment {env_id!r}: {error}") from error
    except ModuleNotFoundError as error:
        raise ConfigError(f"environment {env_id!r} needs a module that is not installed: {error}") from error
    except (TypeError, ValueError, LookupError, OSError) as error:
        given = ", ".join(f"{name}={value!r}" for name, value in env_args.items()) or "no arguments"
        raise ConfigError(f"{env_id} cannot be made with {given}: {error}") from error
    return functools.partial(_with_texts_taken_out, make) if _texts_in_dictionaries(env, env_id) else make


def _texts_in_dictionaries(env: gym.Env[Any, Any], env_id: str) -> bool:
    """Whether an environment's texts lie in dictionaries, and are to be taken out.

    Raises:
        ConfigError: Where it sees or does something else than texts.
    """
    seen, done = env.observation_space, env.action_space
    for what, space, found in (("observations", seen, reader_of(seen)), ("actions", done, writer_of(done))):
        # A space of another library's own may hold texts all the same.
        if found is None and type(space).__module__.startswith("gymnasium."):
            raise ConfigError(
                f"{env_id} cannot be played in words: its {what} are {space}. Register it in a module of "
                "yours as art_gym.wrappers.TextAdapter(env, observe=..., actions=[...]) and train "
                "--env your_module:your/Id-v0; docs/guides/other-environments.md shows how"
            )
    return isinstance(seen, gym.spaces.Dict) or isinstance(done, gym.spaces.Dict)


def _with_texts_taken_out(make_env: MakeEnv) -> gym.Env[str, str]:
    env = make_env()
    adapter = TextAdapter(env)
    adapter.spec = env.spec  # its name, for reports
    return adapter


def baseline_names(make_env: MakeEnv) -> tuple[str, ...]:
    """The environment's baselines; none for an environment that is not ours."""
    env = make_env()
    try:
        return tuple(getattr(env.unwrapped, "baselines", ()))
    finally:
        env.close()


def player_names(make_env: MakeEnv) -> tuple[str, ...]:
    """The environment's scripted players: baselines, and teachers that look at the answer."""
    env = make_env()
    try:
        teachers = tuple(getattr(env.unwrapped, "teachers", ()))
    finally:
        env.close()
    return (*baseline_names(make_env), *teachers)


def train_split(make_env: MakeEnv, wanted: str | None) -> str | None:
    """The split to train on.

    Raises:
        ConfigError: Where the split asked for does not exist.
    """
    env = make_env()
    try:
        return choose_split(env, wanted, TRAIN)
    finally:
        env.close()


def load_policy(
    words: str,
    make_env: MakeEnv,
    *,
    temperature: float,
    max_tokens: int,
    max_batch: int = 256,
    device: str | None = None,
) -> Policy:
    """The policy that a command line names.

    Args:
        words: ``baseline:NAME`` or a baseline's bare name, ``openai:MODEL@URL``, ``vllm:MODEL@URL``,
            ``sglang:MODEL@URL``, ``art-tiny``, a folder with a model, checkpoint or run, or the name of a
            Hugging Face model.
        make_env: Makes the environment, for its baselines.
        temperature: Sampling temperature of a model; 0 is greedy.
        max_tokens: Most tokens of one reply of a model.
        max_batch: Most conversations a local model holds at one time.
        device: Where a local model lives; by default a GPU where there is one.

    Raises:
        ConfigError: Where nothing has that name.
    """
    baselines = baseline_names(make_env)
    if words.startswith(_BASELINE):
        name = words.removeprefix(_BASELINE)
        if name not in baselines:
            raise ConfigError(f"the environment has no baseline `{name}`{did_you_mean(name, baselines)}")
        return ScriptedPolicy(name)
    if words.startswith("openai:"):
        return _openai_policy(words, temperature, max_tokens)
    if words.startswith(_ENGINES):
        return _engine_policy(words, temperature, max_tokens)
    if words in baselines and not Path(words).exists():
        return ScriptedPolicy(words)
    # Torch takes seconds to import, which a person who plays, or a baseline, need not wait for.
    from art_trainer.commands.models import local_policy
    from art_trainer.sampler import SamplingParams

    sampling = SamplingParams(temperature=temperature, max_new_tokens=max_tokens)
    return local_policy(words, sampling=sampling, max_batch=max_batch, device=device, baselines=baselines)


def openai_words(words: str) -> tuple[str, str | None]:
    """The model and the address of its server that ``openai:MODEL@URL`` names.

    Raises:
        ConfigError: For other words.
    """
    match = _OPENAI.fullmatch(words)
    if match is None:
        raise ConfigError(
            f"{words!r} names no model: write openai:MODEL@URL, as in openai:qwen3@http://localhost:8000/v1"
        )
    return match["model"], match["url"]


def _engine_policy(words: str, temperature: float, max_tokens: int) -> Policy:
    # Torch takes seconds to import, and only a model needs it.
    from art_trainer.commands.engines import served_policy
    from art_trainer.sampler import SamplingParams

    return served_policy(words, SamplingParams(temperature=temperature, max_new_tokens=max_tokens))


def _openai_policy(words: str, temperature: float, max_tokens: int) -> Policy:
    model, url = openai_words(words)
    try:
        from openai import OpenAIError

        from art_trainer.openai_policy import OpenAIPolicy
    except ModuleNotFoundError as error:
        raise ConfigError(f'{words} needs the package {error.name}: pip install "art-gym[openai]"') from error
    try:
        return OpenAIPolicy(
            model,
            url,
            api_key=value_of("OPENAI_API_KEY"),
            temperature=temperature,
            max_new_tokens=max_tokens,
            name=words,
        )
    except OpenAIError as error:
        raise ConfigError(f"{words}: {error}") from error
