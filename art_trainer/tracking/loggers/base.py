"""Loggers show a run in other programs: Weights & Biases, TensorBoard.

The run folder has everything; a logger shows a part of it, and may fail without harm. Queues, repeats and
offline modes are those of the libraries below.
"""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from art_gym.errors import did_you_mean
from art_trainer.errors import ConfigError, TrainerError
from art_trainer.tracking.callbacks import Outcome, RunCallback
from art_trainer.tracking.loggers.redaction import redact
from art_trainer.types import Group

_log = logging.getLogger(__name__)

_MOST_FAILURES = 3
"""So many in a row switch a logger off."""
_LONGEST_PROBLEM = 300  # characters of an exception's message


class LoggerError(TrainerError, RuntimeError):
    """A logger could not show something."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run, as known at its start.

    Attributes:
        folder: The run folder.
        config: All settings; JSON-able, without secrets.
    """

    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)


class RunLogger(RunCallback):
    """Base class of loggers, which have the methods of a :class:`RunCallback`.

    The thread that trains calls them and waits for them, at the end too. What they raise,
    :class:`LoggerCallback` reports. Of a run that resumes a logger may have shown the next steps already.

    Args:
        run: The run.
    """

    name: ClassVar[str]
    """As in ``--log``."""

    def __init__(self, run: RunInfo) -> None:
        self.run = run


class LoggerCallback:
    """Trainer callback that hands a run to loggers, none of which can break it.

    What a logger raises becomes a warning. A logger that cannot begin, or fails three times in a row, is
    switched off.
    """

    def __init__(self, run: RunInfo, loggers: Iterable[RunLogger]) -> None:
        self._run = run
        self._loggers = list(loggers)
        self._failures: Counter[str] = Counter()

    def on_episode(self, *_: object, **__: object) -> None:
        """Ignored, as is each step: both are shown once they are in the run folder, see :meth:`on_logged`."""

    on_step = on_episode

    def on_begin(self, step: int) -> None:
        """The run begins, or resumes after ``step`` steps."""
        self._call("on_begin", step)

    def on_logged(self, metrics: Mapping[str, float], groups: Sequence[Group] = ()) -> None:
        """A step's metrics and episodes are in the run folder."""
        self._call("on_logged", metrics, groups)

    def on_checkpoint(self, step: int, folder: Path, aliases: tuple[str, ...]) -> None:
        """A checkpoint is in the run folder."""
        self._call("on_checkpoint", step, folder, aliases)

    def on_end(self, outcome: Outcome) -> None:
        """The run is over."""
        self._call("on_end", outcome)

    def _call(self, method: str, *arguments: Any) -> None:
        for logger in tuple(self._loggers):
            try:
                getattr(logger, method)(*arguments)
                self._failures[logger.name] = 0
            except Exception as error:  # foreign code may raise anything
                self._report(logger, error, cannot_begin=method == "on_begin")

    def _report(self, logger: RunLogger, error: Exception, *, cannot_begin: bool) -> None:
        text = redact(str(error)) or type(error).__name__
        _log.warning("%s: %s", logger.name, " ".join(text.split())[:_LONGEST_PROBLEM])
        self._failures[logger.name] += 1
        if cannot_begin or self._failures[logger.name] == _MOST_FAILURES:
            self._loggers.remove(logger)
            off = f"{logger.name} is switched off for the rest of the run"
            _log.warning("%s; everything is in %s", off, self._run.folder)


_LOGGERS: Mapping[str, str] = {
    "wandb": "WandbLogger",
    "tensorboard": "TensorBoardLogger",
}
"""The registry: the class by name, which is that of the module and of the extra."""
LOGGER_NAMES = tuple(_LOGGERS)


def logger_names(given: str | Iterable[str]) -> tuple[str, ...]:
    """Parse loggers' names: a list or a comma-separated string; each once, in order.

    Raises:
        ConfigError: For an unknown name.
    """
    parts = given.split(",") if isinstance(given, str) else given
    names = tuple(dict.fromkeys(stripped for part in parts if (stripped := part.strip())))
    for name in names:
        if name not in _LOGGERS:
            raise ConfigError(f"log: no logger `{name}`{did_you_mean(name, LOGGER_NAMES)}")
    return names


def make_logger(name: str, run: RunInfo) -> RunLogger:
    """Build a logger without contacting anything; its library reads its settings from the environment.

    Raises:
        ConfigError: If its package is missing.
    """
    try:
        module = importlib.import_module(f"art_trainer.tracking.loggers.{name}")
        logger: RunLogger = getattr(module, _LOGGERS[name])(run)
    except ImportError as error:
        raise ConfigError(f'--log {name} needs {error.name}: pip install "art-gym[{name}]"') from error
    return logger


_DASHBOARD_NAMES = {
    "clip_ratio": "train/clip_fraction",
    "grad_norm": "train/gradient_norm",
    "reward": "rollout/average_reward",
    "reward_std": "rollout/reward_std",
    "success": "rollout/success_rate",
    "turns": "rollout/average_episode_length",
    "invalid_actions": "rollout/invalid_actions",
    "num_tokens": "rollout/tokens",
    "tokens_per_second": "rollout/tokens_per_second",
}


def dashboard_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """A step's metrics by their names in dashboards, without the step itself.

    Each is in the section train, rollout or eval, or in its own if it has one.
    """
    return {_dashboard_name(name): value for name, value in metrics.items() if name != "step"}


def _dashboard_name(name: str) -> str:
    if name.startswith("eval_"):
        return f"eval/{name.removeprefix('eval_')}"
    return _DASHBOARD_NAMES.get(name) or (name if "/" in name else f"train/{name}")


def episode_id(step: int, index: int) -> str:
    """The id of a step's episode, unique in the run."""
    return f"{step:06d}-{index:04d}"


def well_formed(text: str) -> str:
    """Return the text with ``?`` for what UTF-8 cannot encode: lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
