"""Docstrings in Markdown: the roles, literal blocks and equations that the sources write as Sphinx does."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import griffe


def markdown(docstring: str) -> str:
    """The text in Markdown."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?([\w.]+)`", r"`\1`", docstring)
    text = re.sub(r"::\n\n((?:[ ]{4}.*\n|\n)*[ ]{4}.*)", _literal_block, text)
    return re.sub(r"\.\. math::[ ]*(.+)|:math:`([^`]+)`", lambda m: f"`{(m[1] or m[2]).strip()}`", text)


def in_line(docstring: str) -> str:
    """The text in Markdown, on one line."""
    return " ".join(markdown(docstring).replace("``", "`").split())


def table(*rows: Sequence[str]) -> str:
    """A table in Markdown, the headings first."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = ["|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in escaped]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _literal_block(match: re.Match[str]) -> str:
    return f":\n\n```python\n{textwrap.dedent(match[1]).strip()}\n```"


class Roles(griffe.Extension):
    """Converts every docstring before mkdocstrings renders it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Convert one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Convert a package's own docstring, which is no object's."""
        self.on_object(obj=pkg)
