"""The settings of a run, from wherever they come: flags, a YAML file, the run that is gone on with, presets.

Loads no PyTorch: whoever only wants to know what a run would be, or where, has it at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art_trainer.commands.settings import (
    DEFAULT,
    PRESETS,
    Layer,
    RunSettings,
    Settings,
    default_model,
    merge_settings,
)
from art_trainer.errors import ConfigError
from art_trainer.run_folder import RunFolder, read_yaml


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """What ``art-trainer train`` was asked for."""

    flags: Mapping[str, Any]
    """Settings given as flags of their own."""
    overrides: Mapping[str, Any]
    """Settings given with ``--set``."""
    config_file: Path | None
    resume: Path | None
    resume_step: int | None = None
    """Go on from this step's checkpoint, not from the newest; later ones are deleted."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What the command sets where nobody else does."""


def gather_settings(request: TrainRequest) -> Settings:
    """Merge the flags, the YAML file, the resumed run's settings and the model's preset.

    Raises:
        ConfigError: For a wrong setting, or a folder that already holds a run.
    """
    layers = []
    if request.resume_step is not None and request.resume is None:
        raise ConfigError("--resume-step says where to go on, but no run to go on with: add --resume RUN")
    if request.resume is not None:
        layers.append(Layer("the resumed run", _saved(request.resume)))
    if request.config_file is not None:
        layers.append(Layer(request.config_file.name, read_yaml_config(request.config_file)))
    layers += [Layer("--set", request.overrides), Layer("flag", request.flags)]
    if request.resume is not None:
        layers.append(Layer("--resume", {"output_dir": str(request.resume)}))

    def named(name: str, default: str) -> str:
        found = [layer.values[name] for layer in layers if name in layer.values]
        return str(found[-1]) if found else default

    env = named("env", RunSettings().env)
    model = named("model", default_model(env))
    for name in (f"{model} on {env.split(':')[-1]}", model):
        layers.insert(0, Layer(f"preset of {name}", PRESETS.get(name, {})))
    defaults = {"model": model, "output_dir": str(free_folder(env, model)), **request.defaults}
    layers.insert(0, Layer(DEFAULT, defaults))
    settings = merge_settings(layers)
    folder = RunFolder(Path(settings.config.output_dir))
    if request.resume is None and (folder.settings_file.exists() or folder.metrics_file.exists()):
        raise ConfigError(
            f"{folder.path} already holds a run: go on with it by --resume {folder.path}, "
            "or give another --output-dir"
        )
    return settings


def read_yaml_config(file: Path) -> dict[str, Any]:
    """The settings of a YAML file.

    Raises:
        ConfigError: Where the file is missing or is no mapping.
    """
    try:
        return read_yaml(file)
    except (ValueError, OSError) as error:
        raise ConfigError(f"--config: {error}") from error


def _saved(resume: Path) -> dict[str, Any]:
    folder = RunFolder(resume)
    if not folder.settings_file.exists():
        raise ConfigError(f"--resume: {resume} holds no run (it has no {folder.settings_file.name})")
    return folder.settings()


def free_folder(env: str, model: str) -> Path:
    """The first of ``runs/ENV-MODEL-1``, ``-2``, … that does not exist."""
    stem = f"{env.split('/')[-1].split(':')[-1]}-{Path(model).name}"
    candidates = (Path("runs") / f"{stem}-{number}" for number in itertools.count(1))
    return next(path for path in candidates if not path.exists())
