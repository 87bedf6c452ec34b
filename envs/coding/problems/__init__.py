"""The built-in problems, written for this project: three levels, each with a reference and mutants of it."""

from __future__ import annotations

import importlib
from functools import lru_cache

from art_gym.envs.coding.problem import Problem

_THEMES = (
    "text",
    "numbers",
    "lists",
    "records",
    "times",
    "grids",
    "graphs",
    "parsing",
    "simulations",
    "scripts",
)


@lru_cache
def load() -> tuple[Problem, ...]:
    """The built-in problems of levels 1 to 3, in both splits; those of level 0 are in :mod:`.grammar`."""
    modules = (importlib.import_module(f"{__name__}.{theme}") for theme in _THEMES)
    return tuple(problem for module in modules for problem in module.THEME.problems)
