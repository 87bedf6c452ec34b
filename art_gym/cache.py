"""Where files are kept that can be made or fetched again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$ART_GYM_CACHE``, else ``art-gym`` in ``$XDG_CACHE_HOME`` or ``~/.cache``; it may not exist yet."""
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("ART_GYM_CACHE") or users / "art-gym")
