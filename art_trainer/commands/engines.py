"""Engines that command lines name: ``vllm`` and ``sglang``."""

from __future__ import annotations

import re

from art_trainer import scratch
from art_trainer.commands.settings import RunSettings
from art_trainer.engine_policy import EnginePolicy
from art_trainer.engines.engine import Engine
from art_trainer.engines.sglang import SGLangEngine
from art_trainer.engines.vllm import VLLMEngine
from art_trainer.errors import ConfigError, EngineError
from art_trainer.monitoring.settings import value_of
from art_trainer.policy import TrainablePolicy
from art_trainer.sampler import SamplingParams
from art_trainer.transformers_policy import TransformersPolicy

_KINDS: dict[str, type[VLLMEngine] | type[SGLangEngine]] = {"vllm": VLLMEngine, "sglang": SGLangEngine}
_KEYS = {"vllm": "VLLM_API_KEY", "sglang": "SGLANG_API_KEY"}
_PLAYS = re.compile(r"(?P<kind>vllm|sglang):(?:(?P<model>.+?)@)?(?P<url>https?://.+)")
_TRAINS = re.compile(r"(?P<kind>vllm|sglang)@(?P<url>https?://.+)")


def served_policy(words: str, sampling: SamplingParams) -> EnginePolicy:
    """A model that an engine serves, to be played with.

    Args:
        words: ``vllm:MODEL@URL`` or ``sglang:MODEL@URL``, where MODEL is the name it has on the server;
            without ``MODEL@`` the one the server was started with.
        sampling: How replies are sampled.

    Raises:
        ConfigError: Where the server or its model is not there, or the model's tokenizer cannot be had here.
    """
    match = _PLAYS.fullmatch(words)
    if match is None:
        raise ConfigError(
            f"{words!r} names no served model: write vllm:MODEL@URL or sglang:MODEL@URL, as in "
            "vllm:Qwen/Qwen3-8B@http://localhost:8000"
        )
    engine = _engine(match["kind"], match["url"], match["model"])
    try:
        return EnginePolicy(engine, None, None, sampling=sampling, name=words)
    except EngineError as error:
        raise ConfigError(f"{words}: {error}") from error
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{words}: its tokenizer cannot be had on this machine: {reason}") from error


def with_engine(policy: TransformersPolicy, run: RunSettings) -> TrainablePolicy:
    """The policy that plays in training: the model itself, or the engine that the settings name.

    Args:
        policy: Holds the model that is trained.
        run: The settings.

    Raises:
        ConfigError: Where the engine is not there, or cannot take what is trained.
    """
    if run.engine is None:
        return policy
    if run.model == scratch.NAME:
        raise ConfigError("engine is set, but no engine serves a scratch model's weights: leave it out")
    match = _TRAINS.fullmatch(run.engine)
    if match is None:
        raise ConfigError(
            f"engine is {run.engine!r}: write vllm@URL or sglang@URL, as in vllm@http://localhost:8000"
        )
    try:
        return EnginePolicy(
            _engine(match["kind"], match["url"], None),
            policy.model,
            policy.tokenizer,
            sampling=policy.sampling,
            history_window=policy.format.history_window,
            weights_dir=run.engine_weights_dir,
            name=f"{policy.name} on {run.engine}",
        )
    except EngineError as error:
        raise ConfigError(f"engine: {error}") from error


def _engine(kind: str, url: str, model: str | None) -> Engine:
    return _KINDS[kind](url, model, api_key=value_of(_KEYS[kind]))
