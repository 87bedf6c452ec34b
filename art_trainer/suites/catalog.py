"""The suites that come with the package, and those of one's own."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import gymnasium as gym
import yaml

from art_gym.errors import did_you_mean
from art_trainer.errors import ConfigError
from art_trainer.evaluation_starts import evaluation_split, evaluation_starts
from art_trainer.run_folder import read_yaml, write_text
from art_trainer.suites.suite import Suite

_ENDING = ".yaml"


def suite_names() -> tuple[str, ...]:
    """The names of the suites in the package, in order."""
    folder = resources.files("art_trainer.suites") / "files"
    names = (file.name.removesuffix(_ENDING) for file in folder.iterdir() if file.name.endswith(_ENDING))
    return tuple(sorted(names))


def load_suite(words: str) -> Suite:
    """The suite of a name, or in a file of one's own.

    Args:
        words: A name of :func:`suite_names`, or a path that ends in ``.yaml``, ``.yml`` or ``.json``.

    Raises:
        ConfigError: Where there is none, or it is no suite.
    """
    if words.endswith((_ENDING, ".yml", ".json")):
        file = Path(words)
        try:
            mapping = read_yaml(file)  # JSON is YAML too
        except (ValueError, OSError) as error:
            raise ConfigError(f"--suite: {error}") from error
        suite = Suite.from_mapping({"name": file.stem, **mapping}, str(file))
        if len(set(suite.starts)) != len(suite.starts):
            twice = next(start for start in suite.starts if suite.starts.count(start) > 1)
            raise ConfigError(f"{file}: the start {list(twice)} is listed twice: ask for samples instead")
        return suite
    known = suite_names()
    if words not in known:
        raise ConfigError(f"no suite `{words}`{did_you_mean(words, known)} A file of your own ends in .yaml")
    text = (resources.files("art_trainer.suites") / "files" / f"{words}{_ENDING}").read_text("utf-8")
    return Suite.from_mapping({"name": words, **yaml.safe_load(text)}, f"suite {words}")


def write_suite(file: Path, suite: Suite) -> None:
    """Write a suite for :func:`load_suite`, one line a start; its name becomes the file's."""
    mapping = suite.to_mapping()
    starts = mapping.pop("starts")
    mapping.pop("name", None)
    head = yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True, width=100)
    lines = [f"- {json.dumps(start, ensure_ascii=False)}\n" for start in starts]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, f"{head}starts:\n{''.join(lines)}")


def starts_of(
    env: gym.Env[str, str], *, split: str | None, episodes: int | None, seed: int
) -> tuple[str | None, tuple[tuple[str | None, int], ...]]:
    """The split and the starts that :func:`~art_trainer.evaluation.evaluate` would play.

    Raises:
        UnknownTask: Where the environment has tasks but no such split.
    """
    starts = evaluation_starts(env, split=split, episodes=episodes, seed=seed)
    listed = tuple(((start.options or {}).get("task"), start.seed) for start in starts)
    return evaluation_split(env, split), listed
