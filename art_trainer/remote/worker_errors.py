"""What can go wrong between a worker and its server."""

from __future__ import annotations

from art_trainer.errors import TrainerError


class RefusedError(TrainerError, PermissionError):
    """The server will not have this worker, or the worker not this server: trying again changes nothing."""


class UnreachableError(TrainerError, ConnectionError):
    """The server does not answer now; it may later."""


class DownloadError(TrainerError, ConnectionError):
    """A file that could not be fetched whole; the message names it."""


class ServerChangedError(TrainerError, RuntimeError):
    """The server is another one than this worker was made for: a new worker can play for it."""
