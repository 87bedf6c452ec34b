"""The file of an evaluation: the results of each policy, and everything that is needed to make them again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_trainer.errors import RecordError
from art_trainer.evaluation import Evaluation
from art_trainer.run_folder import write_text
from art_trainer.statistics import Interval
from art_trainer.suites.suite import AUTO, Suite

FORMAT = 1


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """What one policy did.

    Attributes:
        words: The policy as the command line named it.
        command: What makes this result again.
        evaluation: The results, episode by episode.
        files: The sha256 of each file of a local model, by name; empty for any other policy.
    """

    words: str
    command: str
    evaluation: Evaluation
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """What policies did on a suite.

    Attributes:
        suite: What they played; ``suite.task_list_sha256`` is what was found when they did.
        policies: One record each.
        made_with: :func:`art_trainer.suites.provenance.made_with` at that time.
        max_batch: Most conversations that a local model held at once.
        device: Where a local model ran; ``None``: the first GPU, else the CPU.
    """

    suite: Suite
    policies: tuple[PolicyRecord, ...]
    made_with: Mapping[str, Any]
    max_batch: int
    device: str | None

    @property
    def metric(self) -> str:
        """What the policies are ranked by."""
        return metric_of(self.suite, [policy.evaluation for policy in self.policies])

    def to_json(self) -> dict[str, Any]:
        """A JSON-able copy; what it says in short besides is for readers."""
        return {
            "format": FORMAT,
            "made_with": dict(self.made_with),
            "max_batch": self.max_batch,
            "device": self.device,
            "suite": self.suite.to_mapping(),
            "policies": [
                {
                    "policy": policy.words,
                    "command": policy.command,
                    "files_sha256": dict(policy.files),
                    "summary": {
                        "metric": self.metric,
                        **interval_json(policy.evaluation.measured(self.metric)),
                        "faults": policy.evaluation.faults,
                    },
                    "evaluation": policy.evaluation.to_json(),
                }
                for policy in self.policies
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EvaluationRecord:
        """Rebuild a record from :meth:`to_json`'s result.

        Raises:
            KeyError, TypeError, ValueError: Where it is none.
        """
        policies = tuple(
            PolicyRecord(
                words=told["policy"],
                command=told["command"],
                evaluation=Evaluation.from_json(told["evaluation"]),
                files=told["files_sha256"],
            )
            for told in data["policies"]
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
        RecordError: Where there is none, it is damaged, or of a newer version.
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
        words = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise RecordError(f"{file} is not a result of `art-trainer eval --json`: {words}") from error


def metric_of(suite: Suite, evaluations: list[Evaluation]) -> str:
    """The metric that a suite's policies are ranked by, ``auto`` resolved."""
    if suite.metric != AUTO:
        return suite.metric
    return "success" if any(evaluation.tells_success for evaluation in evaluations) else "reward"


def interval_json(interval: Interval | None) -> dict[str, float | None]:
    """An interval for JSON, which has no NaN; all ``None`` where there is no interval."""
    if interval is None:
        return {"value": None, "low": None, "high": None}
    ends = {"value": interval.value, "low": interval.low, "high": interval.high}
    return {name: value if math.isfinite(value) else None for name, value in ends.items()}
