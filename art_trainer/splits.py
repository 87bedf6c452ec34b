"""Which of an environment's splits is meant."""

from __future__ import annotations

from collections.abc import Sequence

from art_trainer.env_pool import TextEnvironment
from art_trainer.errors import ConfigError

TRAIN = ("train",)
"""The usual names of a split to train on."""
EVALUATION = ("validation", "test")
"""The usual names of a split to watch a training by."""


def choose_split(env: TextEnvironment, wanted: str | None, usual: Sequence[str]) -> str | None:
    """The split to play, ``None`` where the environment has none to choose from.

    Args:
        env: The environment.
        wanted: The split asked for; ``None`` takes the first of the usual ones that it has.
        usual: Names of splits, best first.

    Raises:
        ConfigError: Where the split asked for does not exist.
    """
    splits = tuple(getattr(getattr(env.unwrapped, "tasks", None), "splits", ()))
    if wanted is None:
        return next((name for name in usual if name in splits), None)
    if wanted not in splits:
        known = f"it has {', '.join(map(repr, splits))}" if splits else "it has none: set null"
        raise ConfigError(f"{type(env.unwrapped).__name__} has no split {wanted!r}; {known}")
    return wanted
