"""Compile functions with Numba, cached on disk if possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Compile on the first call, and keep the machine code on disk if a place can be written."""
    try:
        return cast(_Function, numba.njit(cache=True)(function))
    except RuntimeError:  # neither beside the function's file nor in the user's cache folder
        return cast(_Function, numba.njit(function))
