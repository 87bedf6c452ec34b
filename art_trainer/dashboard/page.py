"""The dashboard's page: one document with its styles and scripts inside, and the rules a browser holds it to.

It has no build step and loads nothing but the API's answers. Scripts and styles are allowed by their hashes,
so that text which comes from an episode could not run even if it became markup.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

_HERE = Path(__file__).parent
_STYLES = ("vendor/uPlot.min.css", "static/base.css", "static/parts.css", "static/episodes.css")
_LIBRARY = ("vendor/uPlot.iife.min.js",)
_SCRIPTS = tuple(
    f"static/{name}.js"
    for name in (
        "elements",
        "format",
        "api",
        "store",
        "series",
        "zoom",
        "plots",
        "overview",
        "findings",
        "workers",
        "filters",
        "table",
        "tokens",
        "episode",
        "keyboard",
        "main",
    )
)


@lru_cache(maxsize=1)
def page() -> bytes:
    """Return the page: the same for everybody, without any data."""
    return _filled()[0]


def _filled() -> tuple[bytes, str]:
    """Return the page and its Content-Security-Policy."""
    style, library, script = (_joined(files) for files in (_STYLES, _LIBRARY, _SCRIPTS))
    text = (_HERE / "static" / "page.html").read_text(encoding="utf-8")
    for name, part in (("style", style), ("library", library), ("script", script)):
        before, found, after = text.partition(f"/*{name}*/")
        assert found, name
        text = before + part + after
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(library)} {_hash(script)}",
            f"style-src {_hash(style)}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    return text.encode("utf-8"), policy


def _joined(files: tuple[str, ...]) -> str:
    text = "\n".join((_HERE / file).read_text(encoding="utf-8") for file in files)
    assert "</script" not in text.lower(), "this would end the page's own script"
    assert "</style" not in text.lower(), "this would end the page's own style"
    return text


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


PAGE_HEADERS: Mapping[str, str] = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": _filled()[1],
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""What the page is to be sent with."""
