"""What can go wrong in training, each error also being the standard type it refines."""

from __future__ import annotations

from typing import ClassVar


class TrainerError(Exception):
    """Any error this package raises on purpose.

    Attributes:
        exit_code: What ``art-trainer`` ends with: 2 where it would fail again, 1 where it might not.
    """

    exit_code: ClassVar[int] = 2


class ConfigError(TrainerError, ValueError):
    """A setting that is unknown, of a wrong type or out of range; the message says what to set instead."""


class CheckpointError(TrainerError, RuntimeError):
    """A checkpoint that is incomplete, damaged or of another run; the message names the file."""


class CheckpointWriteError(CheckpointError):
    """A checkpoint that cannot be written, as on a full disk; the message names the newest whole one."""

    exit_code = 1


class ModelFetchError(TrainerError, RuntimeError):
    """A model with a name of its own that cannot be fetched or kept; the message says why."""

    exit_code = 1


class UnsupportedModelError(TrainerError, TypeError):
    """A model the learner cannot train; the message says why."""


class DivergedError(TrainerError, ArithmeticError):
    """Too many updates in a row had a loss or gradient that is not finite."""


class DeviceMemoryError(TrainerError, MemoryError):
    """A device without room for even one context; says what needs less."""

    exit_code = 1


class StalledError(TrainerError, RuntimeError):
    """Too many steps in a row had no gradient; the message says why and what to change."""

    exit_code = 3


class EvaluationFailedError(TrainerError, RuntimeError):
    """Nothing could be evaluated, because a server or environment failed; the message has a fault."""

    exit_code = 1


class RecordError(TrainerError, ValueError):
    """Recorded episodes that are damaged, missing or of a newer version; the message names the file."""


class NotRecordedError(TrainerError, LookupError):
    """An episode or a run that is not recorded; the message says what there is."""


class EngineError(TrainerError, RuntimeError):
    """An engine that cannot give what training needs, or does not take new weights; says what to set."""


class EngineRequestError(TrainerError, ConnectionError):
    """One request to an engine that failed for good.

    Attributes:
        status: The HTTP status the server answered with; ``None`` if it did not answer.
        retry_after: Seconds after which the server says it can be asked again, if it does.
    """

    def __init__(self, message: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
