"""Who plays the groups that a trainer learns from: this process, remote workers, a Ray cluster, agents."""

from art_trainer.backends.backend import EnvlessBackend, PlaysEvaluations, RolloutBackend
from art_trainer.backends.local import LocalBackend

__all__ = ["EnvlessBackend", "LocalBackend", "PlaysEvaluations", "RolloutBackend"]
