"""Result files of evaluations: every episode, and what is needed to reproduce and verify them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import art_trainer
from art_trainer.analysis.suites import Suite
from art_trainer.errors import RecordError
from art_trainer.formatting import finite
from art_trainer.rollout.evaluate import EpisodeResult, Evaluation
from art_trainer.tracking.run_dir import write_text

FORMAT = 1


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """Results of one policy.

    Attributes:
        name: The policy as named on the command line.
        command: The command that reproduces the result.
        evaluation: The results, episode by episode.
        files: The sha256 of each file of a local model, by name; empty for any other policy.
    """

    name: str
    command: str
    evaluation: Evaluation
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """Results of policies on a suite.

    Attributes:
        suite: What they played, with the hash of the tasks at that time.
        policies: One record each.
        made_with: Versions, commit and machine, see :func:`made_with`.
        max_batch: Largest batch of conversations of a local model.
        device: Device of a local model; ``None``: the first GPU, else the CPU.
    """

    suite: Suite
    policies: tuple[PolicyRecord, ...]
    made_with: Mapping[str, Any]
    max_batch: int
    device: str | None

    @property
    def metric(self) -> str:
        """The metric that policies are ranked by."""
        return self.suite.metric_of(policy.evaluation for policy in self.policies)

    def to_json(self) -> dict[str, Any]:
        """A JSON-able copy; ``summary`` is for readers."""
        return {
            "format": FORMAT,
            "made_with": dict(self.made_with),
            "max_batch": self.max_batch,
            "device": self.device,
            "suite": self.suite.to_mapping(),
            "policies": [
                {
                    "policy": policy.name,
                    "command": policy.command,
                    "files_sha256": dict(policy.files),
                    "summary": self.summary(policy),
                    "evaluation": policy.evaluation.to_json(),
                }
                for policy in self.policies
            ],
        }

    def summary(self, policy: PolicyRecord) -> dict[str, Any]:
        """A policy's figure with its interval, JSON-able; without ``value`` if it has none."""
        measured = policy.evaluation.measured(self.metric)
        figures = {} if measured is None else finite(dataclasses.asdict(measured))
        return {"metric": self.metric, **figures, "faults": policy.evaluation.faults}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EvaluationRecord:
        """Rebuild a record from :meth:`to_json`'s result.

        Raises:
            KeyError, TypeError, ValueError: If it is malformed.
        """
        policies = tuple(
            PolicyRecord(
                name=one["policy"],
                command=one["command"],
                evaluation=Evaluation.from_json(one["evaluation"]),
                files=one["files_sha256"],
            )
            for one in data["policies"]
        )
        if not policies:
            raise ValueError("it has no policies")
        suite = Suite.from_mapping(data["suite"])
        return cls(suite, policies, data["made_with"], int(data["max_batch"]), data["device"])

    def write(self, file: Path) -> None:
        """Write the whole file or nothing."""
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(self.to_json(), ensure_ascii=False, indent=1) + "\n")


def read_record(file: Path) -> EvaluationRecord:
    """Read a file of :meth:`EvaluationRecord.write`.

    Raises:
        RecordError: If it does not exist, is damaged or of a newer version.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(data, dict) and data.get("format", FORMAT) > FORMAT:
            raise RecordError(f"{file} is of format {data['format']}, this version reads up to {FORMAT}")
        return EvaluationRecord.from_json(data)
    except RecordError:
        raise
    except OSError as error:
        raise RecordError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise RecordError(f"{file} is not a result of `art-trainer eval --json`: {reason}") from error


# What a result depends on besides the suite and the policy.

_PACKAGES = ("art-gym", "gymnasium", "numpy", "torch", "transformers", "tokenizers", "peft", "numba")
_MODEL_FILES = (".safetensors", ".json", ".jinja", ".model", ".txt")
_GIT_TIMEOUT = 30  # seconds


def made_with() -> dict[str, Any]:
    """Versions, commit, machine and CPU threads, JSON-able.

    ``git`` is ``None`` outside a git checkout; ``dirty`` means that tracked files were changed. ``threads``
    is ``None`` if PyTorch is not loaded.
    """
    torch = sys.modules.get("torch")
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": None if torch is None else torch.get_num_threads(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
        "git": git_state(Path(art_trainer.__file__).parents[1]),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit of a checkout and whether tracked files were changed; ``None`` for any other folder."""
    if not (folder / ".git").exists():
        return None
    commands = (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
    try:
        commit, changes = (
            subprocess.check_output(
                ["git", "-C", str(folder), *words], text=True, stderr=subprocess.DEVNULL, timeout=_GIT_TIMEOUT
            ).strip()
            for words in commands
        )
    except (OSError, subprocess.SubprocessError):  # git is missing, or nothing is committed
        return None
    return {"commit": commit, "dirty": bool(changes)}


def model_files(folder: Path) -> dict[str, str]:
    """The sha256 of each file of a model (weights, config, tokenizer), by name."""
    digests = {}
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix in _MODEL_FILES:
            with file.open("rb") as stream:
                digests[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return digests


def what_differs(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Differences between two results of :func:`made_with`, one line each."""
    old, new = _flat(before), _flat(now)
    return [
        f"{name}: {old.get(name)} then, {new.get(name)} now"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]


def _flat(made: Mapping[str, Any]) -> dict[str, Any]:
    git = made.get("git") or {}
    rest = {name: value for name, value in made.items() if name not in ("packages", "git")}
    commit = {"git commit": git.get("commit"), "uncommitted changes": git.get("dirty")}
    return {**rest, **made.get("packages", {}), **commit}


def differences(then: Evaluation, now: Evaluation) -> list[str]:
    """Describe the episodes whose results are not bit for bit equal, one line each.

    Raises:
        ValueError: If the numbers of episodes differ.
    """
    if len(then.results) != len(now.results):
        raise ValueError(
            f"the file has {len(then.results)} episodes of {then.policy}, but its suite asks for "
            f"{len(now.results)}: it is incomplete"
        )
    found = []
    for place, (old, new) in enumerate(zip(then.results, now.results, strict=True)):
        # As JSON: then a result from a file equals one in memory, and NaN equals NaN.
        pairs = zip(_as_json(old).items(), _as_json(new).values(), strict=True)
        changed = [f"{name} {before} → {after}" for (name, before), after in pairs if before != after]
        if changed:
            found.append(f"episode {place} ({old.task_id}): {', '.join(changed)}")
    return found


def _as_json(result: EpisodeResult) -> dict[str, str]:
    fields = dataclasses.asdict(result).items()
    return {name: json.dumps(value, sort_keys=True, ensure_ascii=False) for name, value in fields}
