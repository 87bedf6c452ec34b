"""Where the settings of a run come from: defaults, a recipe, a resumed run, a YAML file and flags.

Imports no PyTorch.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shlex
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from art_gym.errors import did_you_mean
from art_trainer.config import field_docs, field_types
from art_trainer.errors import ConfigError
from art_trainer.recipes import DEFAULT_RECIPE
from art_trainer.rollout.envs import find_env
from art_trainer.tracking.run_dir import RunFolder, parse_yaml, private_folder, read_yaml, require_writable
from art_trainer.training.run_settings import (
    AUTO,
    DEFAULT,
    RESUMED,
    SCRATCH,
    SETTINGS,
    Layer,
    Settings,
    merge_settings,
)

_SMALL = {"lr_final_ratio": 0.1, "max_completion_length": 24, "eval_temperature": 1.0}
SMALL_MODELS: Mapping[str, Mapping[str, Any]] = {
    "art-tiny": {**_SMALL, "learning_rate": 3e-4},
    SCRATCH: {
        **_SMALL,
        "learning_rate": 1e-3,
        "warmup_steps": 4,
        "steps_per_generation": 4,
        "max_steps": 160,
        "truncation_penalty": 0.1,
        "warm_start": AUTO,
        "warm_start_epochs": 4,
        "warm_start_learning_rate": 2e-3,
    },
}
"""Defaults for the two small models; those of ``GRPOConfig`` suit models of billions of parameters."""

LORA: Mapping[str, Any] = {"learning_rate": 2e-5}
"""Defaults with an adapter, whose matrices start at zero and take larger steps than weights."""
KEPT = ("env", "env_args", "eval_tasks", "seed", "eval_episodes", "eval_temperature", "test_split")
"""Settings that a resume cannot change: it keeps the evaluation before training, which could then not be
compared with the one after."""


def setting_type(name: str) -> Any:
    """The declared type of a setting."""
    return field_types(SETTINGS[name])[name]


def setting_doc(name: str) -> str:
    """What a setting means."""
    return field_docs(SETTINGS[name])[name]


def setting_default(name: str) -> Any:
    """The declared default of a setting; ``None`` for a mapping."""
    default = SETTINGS[name].__dataclass_fields__[name].default  # type: ignore[attr-defined]
    return None if default is dataclasses.MISSING else default


def parse_pairs(pairs: Iterable[str], flag: str, *, as_yaml: bool = False) -> dict[str, Any]:
    """Read ``key=value`` arguments; a value is JSON or text, with ``as_yaml`` YAML as in a config file.

    Raises:
        ConfigError: If an argument of ``flag`` has no ``=``, no key before it, or a value that is not YAML.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{flag} takes key=value, as in `{flag} seed=1`, not {pair!r}")
        try:
            values[key.strip()] = parse_yaml(text) if as_yaml else json.loads(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{flag} {pair}: the value is not YAML ({error})") from error
        except ValueError:
            values[key.strip()] = text
    return values


# ----------------------------------------------------------------------
# Recipes: the YAML files of the package ``art_trainer.recipes``.


def recipe_names() -> tuple[str, ...]:
    """The names of the recipes."""
    folder = resources.files("art_trainer.recipes")
    return tuple(sorted(file.name[:-5] for file in folder.iterdir() if file.name.endswith(".yaml")))


def read_recipe(name: str) -> dict[str, Any]:
    """The settings of a recipe; a ConfigError with the near miss if there is none."""
    if name not in recipe_names():
        raise ConfigError(f"no recipe `{name}`{did_you_mean(name, recipe_names())}")
    text = (resources.files("art_trainer.recipes") / f"{name}.yaml").read_text(encoding="utf-8")
    values: dict[str, Any] = parse_yaml(text)
    return values


def recipes_for(env: str) -> list[str]:
    """The recipes that train on an environment; its id may be without the module that registers it."""
    short = env.split(":")[-1]
    return [name for name in recipe_names() if read_recipe(name)["env"].split(":")[-1] == short]


def default_env() -> str:
    """The environment of the default recipe, for commands that get no ``--env``."""
    return str(read_recipe(DEFAULT_RECIPE)["env"])


def env_of_policies(policies: Iterable[str]) -> tuple[str, dict[str, Any]]:
    """The environment and its arguments of the first policy that is a run or a checkpoint; else the default.

    Raises:
        ConfigError: If the settings of that run name no environment.
    """
    for path in map(Path, policies):
        folder = RunFolder(path.resolve().parents[1] if (path / "manifest.json").exists() else path)
        if folder.holds_run:
            saved = folder.settings()
            if not saved.get("env"):
                raise ConfigError(f"{folder.settings_file} names no environment: give --env")
            return str(saved["env"]), dict(saved.get("env_args") or {})
    return default_env(), {}


# ----------------------------------------------------------------------


def gather_settings(
    flags: Mapping[str, Any],
    *,
    overrides: Mapping[str, Any],
    config: Path | None = None,
    recipe: str | None = None,
    resume: Path | None = None,
    resume_step: int | None = None,
    verbose: bool | None = None,
    quiet: bool | None = None,
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
    default_recipe: str = DEFAULT_RECIPE,
) -> Settings:
    """Merge the command's defaults, the recipe, the resumed run, the YAML file and the flags.

    Args:
        flags: Settings given as flags of their own.
        overrides: Settings given with ``--set``.
        config: A YAML file of settings.
        recipe: Name of a recipe.
        resume: Folder of the run to resume.
        resume_step: The checkpoint to resume from; ``None``: the newest.
        verbose: Whether to show all settings.
        quiet: Whether to show only warnings, errors and results.
        defaults: What the command sets if nobody else does.
        default_recipe: The recipe if no environment is named. If a model is named, only its environment.

    Raises:
        ConfigError: For a wrong setting, or a folder that already holds a run.
    """
    if resume_step is not None and resume is None:
        raise ConfigError("--resume-step needs a run to resume: add --resume RUN")
    if verbose and quiet:
        raise ConfigError("--verbose and --quiet are both set: leave one out")
    layers = [Layer("--set", overrides), Layer("flag", flags)]
    if config is not None:
        try:
            layers.insert(0, Layer(config.name, read_yaml(config)))
        except (ConfigError, OSError) as error:
            raise ConfigError(f"--config: {error}") from error
    if resume is not None:
        saved = Layer(RESUMED, _saved_settings(resume))
        layers = [saved, *layers, Layer("--resume", {"output_dir": str(resume)})]
    # The tasks of an agent take the place of an environment.
    has_env = _values(layers).get("tasks") is None
    if recipe is not None or (has_env and "env" not in _values(layers)):
        name = recipe or default_recipe
        values = read_recipe(name)
        # Those of the default recipe suit its model.
        other_model = recipe is None and "model" in _values(layers)
        layers.insert(0, Layer(f"recipe {name}", {"env": values["env"]} if other_model else values))
    chosen = {"model": SCRATCH, **_values(layers)}
    model = str(chosen["model"])
    if not has_env and chosen.get("env"):
        raise ConfigError("env and tasks are both set: an agent has an environment or a file of tasks")
    env = find_env(str(chosen["env"])).name if has_env else ""
    below = {"output_dir": str(free_folder(env or Path(str(chosen["tasks"])).stem, model)), **defaults}
    small = dict(SMALL_MODELS.get(model, {}))
    if isinstance(groups := chosen.get("groups_per_step"), int) and "steps_per_generation" in small:
        small["steps_per_generation"] = max(1, min(small["steps_per_generation"], groups))
    lora = Layer("default of lora", LORA if chosen.get("lora") is not None else {})
    layers = [Layer(DEFAULT, below), lora, Layer(f"default of {model}", small), *layers]
    settings = merge_settings(layers)
    # Whole paths of files, for a resume from another folder.
    run = dataclasses.replace(settings.run, env=env, env_args=_with_whole_paths(settings.run.env_args))
    files = _with_whole_paths({"tasks": run.tasks, "eval_tasks": run.eval_tasks, "reward": run.reward})
    run = dataclasses.replace(run, train_env_args=_with_whole_paths(run.train_env_args), **files)
    settings = dataclasses.replace(
        settings, run=run, resume=resume, resume_step=resume_step, verbose=bool(verbose), quiet=bool(quiet)
    )
    if resume is not None:
        _check_resumed(_with_whole_paths(saved.values), settings)
    if has_env:
        find_env(env, run.all_env_args)
    folder = settings.folder
    require_writable(folder.path, folder=True)
    if resume is None and (folder.settings_file.exists() or folder.metrics_file.exists()):
        raise ConfigError(
            f"{folder.path} already holds a run: resume it with --resume {shlex.quote(str(folder.path))}, "
            "or give another --output-dir"
        )
    return settings


def _with_whole_paths(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name; a text with a suffix that names a file here becomes its whole path."""
    texts = {name: text for name, text in arguments.items() if isinstance(text, str)}
    files = {name: text for name, text in texts.items() if Path(text).suffix and Path(text).is_file()}
    return {**arguments, **{name: os.path.abspath(text) for name, text in files.items()}}


def _values(layers: Iterable[Layer]) -> dict[str, Any]:
    return {name: value for layer in layers for name, value in layer.values.items()}


def _saved_settings(resume: Path) -> dict[str, Any]:
    """The settings of a run that a command can resume."""
    folder = RunFolder(resume)
    if not folder.settings_file.exists():
        raise ConfigError(f"--resume: {resume} holds no run (it has no {folder.settings_file.name})")
    saved = folder.settings()
    if not (saved.get("env") or saved.get("tasks")):
        raise ConfigError(f"--resume: {folder.settings_file} names no environment: no command started it")
    return saved


def _check_resumed(saved: Mapping[str, Any], settings: Settings) -> None:
    """Refuse an adapter on another model, and evaluations that could not be compared with the one before."""
    before, model = Path(str(saved.get("model"))), Path(settings.run.model)
    moved = model.is_dir() and not before.is_dir()  # a folder in place of what is no folder here
    if settings.run.lora is not None and not moved and model.resolve() != before.resolve():
        raise ConfigError(f"--resume: the run's adapter is of the model {before}, not of {model}")
    now, kept = settings.to_mapping(), list(KEPT)
    if settings.run.tasks is not None and settings.run.eval_tasks is None:
        kept.append("tasks")  # their last fifth is evaluated on
    if str(saved.get("reward")).endswith(".py"):
        kept.append("reward")  # the function scores evaluations too
    for name in kept:
        if not _means_same(was := saved.get(name, now[name]), now[name]):
            raise ConfigError(
                f"--resume: {name} was {was}, not {now[name]}: the evaluations before and after could "
                "not be compared. Leave it out, or start a new run"
            )


def _means_same(was: Any, now: Any) -> bool:
    """Whether two values of a setting are equal, or name a file of one name that has moved."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        return was.keys() == now.keys() and all(_means_same(was[name], now[name]) for name in now)
    if not (isinstance(was, str) and isinstance(now, str)):
        return bool(was == now)
    (old, _, old_id), (new, _, new_id) = was.rpartition(":"), now.rpartition(":")
    if new.endswith(".py") and old_id == new_id:
        was, now = old, new
    moved = Path(was).is_absolute() and not Path(was).is_file() and Path(now).is_file()
    return was == now or (moved and Path(was).name == Path(now).name)


@contextmanager
def claimed_folder(settings: Settings) -> Iterator[Settings]:
    """Make the run's folder, and keep other commands from it; if nobody named it, the first that is free.

    A folder that was made goes again at the end if it is empty, because the run was refused.

    Raises:
        ConfigError: If another command trains the run.
    """
    path = settings.folder.path
    if os.environ.get("RANK", "0") != "0":
        yield settings  # of several processes the main one names the folder
        return
    is_named = settings.sources["output_dir"] != DEFAULT
    existed = is_named and path.exists()
    private_folder(path.parent)
    while True:
        with suppress(FileExistsError):
            path.mkdir(0o700, exist_ok=is_named)
            break
        path = free_folder(settings.run.env or Path(str(settings.run.tasks)).stem, settings.run.model)
    lock = FileLock(path / ".lock", timeout=0, mode=0o600)
    try:
        try:
            lock.acquire()  # it ends with the process, also with one that is killed
        except Timeout:
            raise ConfigError(f"{path}: another process trains this run, end that one first") from None
        except (OSError, NotImplementedError):
            pass  # a read-only folder, of which more is said later, or a file system without locks
        yield dataclasses.replace(settings, config=dataclasses.replace(settings.config, output_dir=str(path)))
    finally:
        lock.release()
        with suppress(OSError):
            if not existed and all(file.name == ".lock" for file in path.iterdir()):
                Path(lock.lock_file).unlink(missing_ok=True)
                os.removedirs(path)


def free_folder(env: str, model: str) -> Path:
    """The first of ``runs/ENV-MODEL-1``, ``-2``, … that does not exist."""
    stem = f"{env.split('/')[-1].split(':')[-1]}-{Path(model).name}"
    candidates = (Path("runs") / f"{stem}-{number}" for number in itertools.count(1))
    return next(path for path in candidates if not path.exists())
