"""Reading an environment's docstring: its summary, and what stands below each of Gymnasium's headings."""

from __future__ import annotations

import inspect
import re

__all__ = ["sections", "summary"]

_HEADING = re.compile(r"^#+[ \t]*(.+?)[ \t]*$", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")


def summary(made: object) -> str:
    """The first sentence of a docstring on one line; empty without one."""
    first = (inspect.getdoc(made) or "").strip().split("\n\n")[0]
    return _plain(" ".join(first.split()))


def sections(made: object) -> dict[str, str]:
    """The text below each heading of a docstring, by heading and in its order; none without headings."""
    parts = _HEADING.split(inspect.getdoc(made) or "")
    return {title: _plain(text).strip("\n") for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def _plain(text: str) -> str:
    """Text without reStructuredText's roles."""
    return _ROLE.sub(r"``\1``", text)
