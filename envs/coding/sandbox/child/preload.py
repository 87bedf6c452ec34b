"""Import common modules before the fork, so that they cost a run nothing."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import site
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def early(config: Mapping[str, Any]) -> None:
    """Import what programs use, before our own modules, most of which every run executes."""
    _modules(config["preload"])


def _modules(names: Iterable[str]) -> None:
    """Import these modules, leaving out what this interpreter was built without.

    A run can import the rest of the standard library by itself; every module here makes each fork dearer.
    """
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # With -S there are no `exit` and `help`, which programs call.
    site.setquit()
    site.sethelper()


class _Packages:
    """Finds the packages that are offered, so that no directory need be searched or listed for them."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The package of this name, if it is one of those offered."""
        place = self._places.get(name)
        if place is None:
            return None
        return importlib.util.spec_from_file_location(
            name, os.path.join(place, "__init__.py"), submodule_search_locations=[place]
        )


def add_packages(places: Mapping[str, str]) -> None:
    """Let runs import these packages from their directories, though no site directory is on the path."""
    if places:
        sys.meta_path.append(_Packages(places))
