"""The sinks by name: where each lies, and what must be installed for it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from art_gym.errors import did_you_mean
from art_trainer.errors import ConfigError
from art_trainer.monitoring.events import Sink


@dataclass(frozen=True, slots=True)
class _Kind:
    module: str
    class_name: str
    needs: str
    """A module of the package it needs."""
    extra: str


_KINDS: Mapping[str, _Kind] = {
    "wandb": _Kind("wandb_sink", "WandbSink", "wandb", "wandb"),
    "langfuse": _Kind("langfuse_sink", "LangfuseSink", "langfuse", "langfuse"),
    "tensorboard": _Kind("tensorboard_sink", "TensorBoardSink", "tensorboard", "tensorboard"),
    "trackio": _Kind("trackio_sink", "TrackioSink", "trackio", "trackio"),
    "mlflow": _Kind("mlflow_sink", "MlflowSink", "mlflow", "mlflow"),
    "otel": _Kind("otel_sink", "OpenTelemetrySink", "opentelemetry", "otel"),
    "openpipe": _Kind("openpipe_sink", "OpenPipeSink", "art_trainer", "train"),
}
SINK_NAMES = tuple(_KINDS)


def sink_names(given: str | Iterable[str]) -> tuple[str, ...]:
    """Read sinks' names: a list, or words with commas between them; each once, in their order.

    Raises:
        ConfigError: For a name that no sink has; a near miss is named.
    """
    words = given.split(",") if isinstance(given, str) else given
    names = tuple(dict.fromkeys(stripped for word in words if (stripped := word.strip())))
    for name in names:
        if name not in _KINDS:
            raise ConfigError(f"log: no sink `{name}`{did_you_mean(name, SINK_NAMES)}")
    return names


def make_sink(name: str, settings: Mapping[str, str]) -> Sink:
    """Build a sink, without contact to anything.

    Args:
        name: One of :data:`SINK_NAMES`.
        settings: Values that are set, by their environment names.

    Raises:
        ConfigError: Where its package is not installed, or a setting that it needs is missing.
    """
    kind = _KINDS[name]
    if importlib.util.find_spec(kind.needs) is None:
        raise ConfigError(f'--log {name} needs {kind.needs}: pip install "art-gym[{kind.extra}]"')
    module = importlib.import_module(f"art_trainer.monitoring.{kind.module}")
    sink: Sink = getattr(module, kind.class_name).from_settings(settings)
    return sink


def make_sinks(names: Iterable[str], settings: Mapping[str, str]) -> list[Sink]:
    """Build several sinks, see :func:`make_sink`.

    Raises:
        ConfigError: Where one cannot be built; it tells what is missing for all of them.
    """
    sinks, missing = [], []
    for name in names:
        try:
            sinks.append(make_sink(name, settings))
        except ConfigError as error:
            missing.append(str(error))
    if missing:
        raise ConfigError("; ".join(missing))
    return sinks
