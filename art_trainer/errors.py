"""What can go wrong in training, each error also being the standard type it refines."""

from __future__ import annotations


class TrainerError(Exception):
    """Any error this package raises on purpose."""


class ConfigError(TrainerError, ValueError):
    """A setting that is unknown, of a wrong type or out of range; the message says what to set instead."""


class CheckpointError(TrainerError, RuntimeError):
    """A checkpoint that is incomplete, damaged or of another run; the message names the file."""


class UnsupportedModelError(TrainerError, TypeError):
    """A model the learner cannot train; the message says why."""


class DivergedError(TrainerError, ArithmeticError):
    """Too many updates in a row had a loss or gradient that is not finite."""
