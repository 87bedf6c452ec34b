"""Environments and policies that a command line names."""

from __future__ import annotations

from pathlib import Path

import art_gym  # noqa: F401 (registers the project's environments)
from art_gym.errors import did_you_mean
from art_gym.wrappers.judging.http_client import parse_openai
from art_trainer.errors import ConfigError, EngineError
from art_trainer.inference.engine_policy import EnginePolicy
from art_trainer.inference.policy import Policy
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.models.loading import ModelOptions
from art_trainer.rollout.envs import MakeEnv, baseline_names
from art_trainer.tracking.env_vars import env_var
from art_trainer.training.run_setup import connect_engine, local_policy

_BASELINE = "baseline:"


def load_policy(
    name: str,
    make_env: MakeEnv,
    *,
    temperature: float,
    max_tokens: int,
    max_batch: int = 256,
    device: str | None = None,
) -> Policy:
    """Load the policy that a command line names.

    Args:
        name: ``baseline:NAME`` or a baseline's bare name, ``openai:MODEL@URL``, ``vllm:MODEL@URL``,
            a name in :data:`.KNOWN_MODELS`, a folder with a model, checkpoint or run,
            or the name of a Hugging Face model.
        make_env: Makes the environment, for its baselines.
        temperature: Sampling temperature of a model; 0 is greedy.
        max_tokens: Largest number of tokens in one reply of a model.
        max_batch: Largest number of conversations that a local model holds at the same time.
        device: Device of a local model; by default a GPU if there is one.

    Raises:
        ConfigError: If nothing has that name.
    """
    baselines = baseline_names(make_env)
    baseline = name.removeprefix(_BASELINE)
    if baseline in baselines and (baseline != name or not Path(name).exists()):
        return ScriptedPolicy(baseline)
    if baseline != name:
        raise ConfigError(f"the environment has no baseline `{baseline}`{did_you_mean(baseline, baselines)}")
    sampling = SamplingParams(temperature=temperature, max_new_tokens=max_tokens)
    if name.startswith("openai:"):
        return _openai_policy(name, sampling)
    if name.startswith("vllm:"):
        return served_policy(name, sampling)
    options = ModelOptions(device=device)
    return local_policy(name, options, sampling=sampling, max_batch=max_batch, baselines=baselines)


# ----------------------------------------------------------------------
# Models behind an OpenAI-compatible server.


def _openai_policy(name: str, sampling: SamplingParams) -> Policy:
    model, url = parse_openai(name)
    try:
        from openai import OpenAIError

        from art_trainer.inference.openai_policy import OpenAIPolicy
    except ModuleNotFoundError as error:
        raise ConfigError(f'{name} needs the package {error.name}: pip install "art-gym[openai]"') from error
    key, tokens = env_var("OPENAI_API_KEY"), sampling.max_new_tokens
    try:
        return OpenAIPolicy(
            model, url, api_key=key, temperature=sampling.temperature, max_new_tokens=tokens, name=name
        )
    except OpenAIError as error:
        raise ConfigError(f"{name}: {error}") from error


# ----------------------------------------------------------------------
# Models that vLLM serves.


def served_policy(name: str, sampling: SamplingParams) -> EnginePolicy:
    """The model that ``vllm:MODEL@URL`` names; without ``MODEL@`` the server's own.

    Raises:
        ConfigError: If the server or its model does not answer, or this machine cannot load its tokenizer.
    """
    engine = connect_engine(name, f"{name!r} names no served model: write vllm:MODEL@URL")
    try:
        return EnginePolicy(engine, None, None, sampling=sampling, name=name)
    except EngineError as error:
        raise ConfigError(f"{name}: {error}") from error
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{name}: this machine cannot load its tokenizer: {reason}") from error
