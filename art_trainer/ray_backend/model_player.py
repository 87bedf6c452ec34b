"""Who plays in an actor of a training run: a model of its own, with the weights the learner published."""

from __future__ import annotations

import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import torch

from art_trainer.commands.policies import env_maker
from art_trainer.env_pool import EnvPool
from art_trainer.ray_backend.actor import OnPlayed
from art_trainer.ray_backend.parcels import Parcel, WeightParcel
from art_trainer.remote.messages import Lease, RunDescription
from art_trainer.remote.player import Player
from art_trainer.remote.weights import apply_weights
from art_trainer.remote.worker_model import load_tokenizer, make_model, make_policy, take_types


@dataclass(frozen=True, slots=True)
class PlayerRecipe:
    """What makes a player, anywhere in the cluster; calling it does."""

    run: RunDescription
    files: tuple[Parcel, ...]
    """What weights stand on: configuration, tokenizer, weights below an adapter."""
    max_batch: int
    """Most conversations the model holds at one time."""
    max_concurrent: int
    """Most episodes under way at one time."""
    env_threads: int

    def __call__(self) -> ModelPlayer:
        """Make the player."""
        return ModelPlayer(self)


class ModelPlayer:
    """Implements :class:`art_trainer.ray_backend.actor.Player`.

    Args:
        recipe: What makes it.

    Raises:
        ConfigError: Where there is no such environment here.
        RefusedError: Where the files make no model here.
        WeightError: Where a file does not arrive, or is damaged.
    """

    def __init__(self, recipe: PlayerRecipe) -> None:
        run = recipe.run
        self._max_concurrent = recipe.max_concurrent
        self._pool = EnvPool(env_maker(run.env, run.env_args))
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with tempfile.TemporaryDirectory(prefix="art-model-") as name:
            folder = Path(name)
            for parcel in recipe.files:
                parcel.unpack(folder)
            model, tokenizer = make_model(folder, run, device), load_tokenizer(folder)
        self._policy = make_policy(model, tokenizer, run, recipe.max_batch, "ray")
        self._player = Player(
            self._policy, self._pool, record_states=run.record_states, env_threads=recipe.env_threads
        )

    def update(self, weights: WeightParcel) -> None:
        """Play with other weights from now on; where it raises, the old ones stay.

        Raises:
            WeightError: Where they do not arrive, are damaged or another model's.
        """
        with tempfile.TemporaryDirectory(prefix="art-weights-") as folder:
            file = weights.file.unpack(Path(folder))
            if weights.manifest.kind == "full":
                take_types(self._policy.model, file)
            apply_weights(self._policy.model, file, weights.manifest)
        self._policy.version = weights.manifest.policy_version

    def play(self, leases: tuple[Lease, ...], on_played: OnPlayed, stop: threading.Event) -> None:
        """Play each lease once, telling of each episode as it ends.

        Raises:
            MemoryError: Where fewer at a time may do.
            PlayStopped: Where ``stop`` is set.
        """
        try:
            self._player.play(leases, self._max_concurrent, on_played, stop)
        except torch.OutOfMemoryError as fault:
            raise MemoryError(str(fault)) from fault

    def close(self) -> None:
        """Close the environments."""
        self._pool.close()
