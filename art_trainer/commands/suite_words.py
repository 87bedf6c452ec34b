"""From an evaluation back to words: the command that makes it again, and the files of its model."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from art_trainer.policy import Policy
from art_trainer.scripted_policy import ScriptedPolicy
from art_trainer.suites.provenance import model_files
from art_trainer.suites.suite import Suite

_SERVED = ("openai:", "vllm:", "sglang:")
_DEFAULT_BATCH = 256


def command_for(
    suite: Suite | str,
    policy: str,
    *,
    samples: int | None = None,
    temperature: float | None = None,
    max_completion_length: int | None = None,
    max_batch: int = _DEFAULT_BATCH,
    device: str | None = None,
) -> str:
    """The command line that evaluates a policy.

    Args:
        suite: The name of a suite, or one that flags are to say.
        policy: The policy's words.
        samples: Where it is not the suite's own.
        temperature: Where it is not the suite's own.
        max_completion_length: Where it is not the suite's own.
        max_batch: Most conversations that a local model holds at once.
        device: Where a local model runs; ``None`` for the default.
    """
    given: list[tuple[str, Any]] = []
    if isinstance(suite, str):
        given.append(("--suite", suite))
    else:
        given += [("--env", suite.env), *(("--env-args", _pair(*item)) for item in suite.env_args.items())]
        given += [("--split", suite.split), ("--episodes", len(suite.starts)), ("--seed", suite.seed)]
        samples, temperature = suite.samples, suite.temperature
        max_completion_length = suite.max_completion_length
    given += [("--samples", samples), ("--temperature", temperature)]
    given += [("--max-completion-length", max_completion_length), ("--device", device)]
    given += [("--max-batch", None if max_batch == _DEFAULT_BATCH else max_batch), ("--policy", policy)]
    words = [str(word) for flag, value in given if value is not None for word in (flag, value)]
    return shlex.join(["art-trainer", "eval", *words])


def files_of(words: str, policy: Policy) -> dict[str, str]:
    """The sha256 of the files of a local model, by name; empty for a policy without.

    Args:
        words: The policy, as the command line names it.
        policy: What was loaded for these words.
    """
    if isinstance(policy, ScriptedPolicy) or words.startswith(_SERVED):
        return {}
    # Apart from the others, because it takes seconds to import.
    from art_trainer.commands.models import model_path

    folder = Path(model_path(words))
    return model_files(folder if folder.is_dir() else _cached(str(folder)))


def _cached(name: str) -> Path:
    """Where Hugging Face keeps a model that was loaded by its name."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, local_files_only=True))


def _pair(name: str, value: object) -> str:
    """``KEY=VALUE`` as ``--env-args`` reads it: JSON, and text where that is no JSON."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return f"{name}={value}"
    return f"{name}={json.dumps(value)}"
