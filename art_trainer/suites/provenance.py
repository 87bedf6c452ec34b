"""What made a result, for whoever wants to make it again: versions, commit, machine, model files."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import art_trainer

PACKAGES = ("art-gym", "gymnasium", "numpy", "torch", "transformers", "tokenizers", "peft", "numba")
"""Whose versions are told, where they are installed."""

_MODEL_FILES = (".safetensors", ".json", ".jinja", ".model", ".txt")
_PATIENCE = 30  # seconds for git


def made_with() -> dict[str, Any]:
    """The versions, the commit, the machine and the CPU threads, JSON-able.

    ``git`` is ``None`` where the package does not lie in a git checkout; ``dirty`` says that tracked files
    were changed. ``threads`` is ``None`` where nothing loaded PyTorch.
    """
    torch = sys.modules.get("torch")
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": None if torch is None else torch.get_num_threads(),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "git": git_state(Path(art_trainer.__file__).parents[1]),
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit of a checkout and whether tracked files were changed; ``None`` for any other folder."""
    if not (folder / ".git").exists():
        return None
    commit, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", "-uno")
    return None if commit is None or changes is None else {"commit": commit, "dirty": bool(changes)}


def model_files(folder: Path) -> dict[str, str]:
    """The sha256 of each file that a model is loaded from: weights, config, tokenizer; by name.

    The digests are those of ``sha256sum``.
    """
    digests = {}
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix in _MODEL_FILES:
            with file.open("rb") as stream:
                digests[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return digests


def what_differs(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What of :func:`made_with` is another, one line each; empty where nothing is."""
    old, new = _flat(before), _flat(now)
    return [
        f"{name}: {_said(old.get(name))} then, {_said(new.get(name))} now"
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]


def _flat(told: Mapping[str, Any]) -> dict[str, Any]:
    git = told.get("git") or {}
    rest = {name: value for name, value in told.items() if name not in ("packages", "git")}
    commit = {"git commit": git.get("commit"), "uncommitted changes": git.get("dirty")}
    return {**rest, **told.get("packages", {}), **commit}


def _said(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path, *words: str) -> str | None:
    """What git prints; ``None`` where there is no git, or it fails."""
    command = ["git", "-C", str(folder), *words]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip()
