"""Environments of other packages: imported with ``art_gym``, so that their ids are known where ours are.

A package says so in its ``pyproject.toml``; importing the module it names must register its environments::

    [project.entry-points."art_gym.envs"]
    my_envs = "my_envs"

(Gymnasium itself has had no such entry point since its version 1.0.)
"""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points
from typing import Final

GROUP: Final = "art_gym.envs"
"""The group of entry points whose modules are imported."""


def load_plugins() -> None:
    """Import every module that an installed package names in :data:`GROUP`.

    One that fails is named in a warning: a broken package must not take everybody else's environments away.
    """
    for entry_point in entry_points(group=GROUP):
        try:
            entry_point.load()
        except Exception as error:  # whatever somebody else's module raises
            package = entry_point.dist.name if entry_point.dist is not None else "a package"
            warnings.warn(
                f"{package} announces environments in `{entry_point.value}`, but importing that raised "
                f"{type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
