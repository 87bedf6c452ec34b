"""Bytes that must survive a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def fsync(path: Path) -> None:
    """Force a file to the disk; of a folder, the names in it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
