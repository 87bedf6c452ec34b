"""Whose results a journal holds: those of one run, played with its settings and no others."""

from __future__ import annotations

import json
import os
from typing import Any

from art_trainer.disk import fsync
from art_trainer.remote.journal import Journal, JournalError
from art_trainer.remote.messages import RunDescription

_FILE = "run.json"


def claim(journal: Journal, run: RunDescription) -> None:
    """Note in a journal what its results are played with, or hold it against what was noted.

    Groups are named by the run's seed and their place, so that those of another run have the same names: what
    was played in another environment, or sampled at another temperature, would be learned from as if it had
    been played here.

    Args:
        journal: The journal; of an empty one, and of one that notes nothing yet, this is the run.
        run: What workers are told of the run.

    Raises:
        JournalError: Where it holds results of another run, or cannot be read or written.
    """
    file = journal.folder / _FILE
    told = _flat(run.model_dump(mode="json"))
    try:
        known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (OSError, ValueError) as error:
        raise JournalError(
            f"{file} cannot be read: {error}. Delete it: the journal is then this run's"
        ) from error
    # A setting that only one of two versions of this program knows says nothing.
    other = [name for name in known if name in told and known[name] != told[name]]
    if other and not journal.empty:
        name = other[0]
        raise JournalError(
            f"{journal.folder} holds results of another run: there {name} is {known[name]!r}, in this run "
            f"{told[name]!r}. Go on with the settings that the run had, or delete that folder: what it holds "
            "is then played again"
        )
    if known != told:
        _write(journal, told)


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with those of ``sampling`` among them, as JSON has them."""
    sampling = {f"sampling.{name}": value for name, value in settings.pop("sampling").items()}
    flat: dict[str, Any] = json.loads(json.dumps(settings | sampling))
    return flat


def _write(journal: Journal, told: dict[str, Any]) -> None:
    file = journal.folder / _FILE
    partial = file.with_name(f".{_FILE}.partial")
    try:
        partial.write_text(json.dumps(told, indent=1), encoding="utf-8")
        fsync(partial)
        os.replace(partial, file)
        fsync(journal.folder)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise JournalError(f"{file} cannot be written: {error.strerror}") from error
