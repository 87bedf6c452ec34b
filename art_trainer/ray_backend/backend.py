"""Groups played by actors of a Ray cluster, each with a model of its own.

A ledger leases episodes to actors and takes each result once; a crew keeps the actors at work. What an actor
was playing when it was lost is played again by another, and an episode that is lost too often becomes one
that says so, so that its group is dropped whole.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from art_trainer.backends.backend import Told
from art_trainer.config import GRPOConfig
from art_trainer.episodes import Group
from art_trainer.errors import ConfigError
from art_trainer.ray_backend.cluster import ActorResources, Cluster, require_ray
from art_trainer.ray_backend.crew import Crew
from art_trainer.ray_backend.hand import ClusterError, Patience
from art_trainer.ray_backend.model_player import PlayerRecipe
from art_trainer.ray_backend.parcels import model_parcels, weight_parcel
from art_trainer.remote.collecting import LedgerGroups
from art_trainer.remote.description import describe_run
from art_trainer.remote.journal import Journal
from art_trainer.remote.ledger import Ledger, LedgerStatus
from art_trainer.remote.tensor_files import WeightError
from art_trainer.remote.weights import WeightStore
from art_trainer.rollout import DEFAULT_MAX_CONCURRENT
from art_trainer.starts import GroupTask
from art_trainer.transformers_policy import TransformersPolicy

_log = logging.getLogger("art_trainer.ray_backend")


class RayBackend:
    """Plays groups in a Ray cluster; implements :class:`art_trainer.backends.RolloutBackend`.

    With ``config.max_staleness`` 0 the actors wait while the learner learns; with 1 they play the next batch
    meanwhile.

    Args:
        policy: Whose model is trained; actors get its files, and its weights with every version.
        env: The environment's id, known on every node; ``module:id`` imports the module first.
        env_args: Its arguments.
        config: The settings of training.
        address: Of a cluster that runs, such as ``auto`` or ``10.0.0.5:6379``; ``None``: a private one on
            this machine. The nodes need this package, of the same version.
        actors: How many actors.
        resources: What each asks the cluster for; with GPUs its model lives on one.
        patience: How long to wait for what.
        max_attempts: How often an episode is tried before it is given up.
        say: Told, in words, what goes wrong and what is done about it, from another thread; by default a
            log's warnings.

    Raises:
        ConfigError: Where Ray is not installed, or a number is out of range.
    """

    per_process = False

    def __init__(
        self,
        policy: TransformersPolicy,
        env: str,
        env_args: Mapping[str, Any],
        config: GRPOConfig,
        *,
        address: str | None = None,
        actors: int = 2,
        resources: ActorResources | None = None,
        patience: Patience | None = None,
        max_attempts: int = 3,
        say: Callable[[str], None] | None = None,
    ) -> None:
        require_ray()
        if actors < 1:
            raise ConfigError(f"ray_actors is {actors}: set at least 1")
        self._policy = policy
        self._env, self._env_args = env, dict(env_args)
        self._config = config
        self._address, self._actors = address, actors
        self._resources = resources or ActorResources()
        self._patience = patience or Patience()
        self._max_attempts = max_attempts
        self._say = say or _log.warning
        self._folder = tempfile.TemporaryDirectory(prefix="art-ray-")
        # Nobody relies on what is in it after this process: a run that goes on plays again what it wants.
        self._journal = Journal(Path(self._folder.name) / "journal")
        self._ledger = Ledger(
            self._journal,
            max_staleness=config.max_staleness,
            lease_seconds=self._patience.lease,
            max_attempts=max_attempts,
            on_work=self._wake,
        )
        self._groups = LedgerGroups(self._ledger, config.max_staleness, self._check)
        self._cluster: Cluster | None = None
        self._store: WeightStore | None = None
        self._crew: Crew | None = None
        self._version: int | None = None

    def connect(self) -> None:
        """Find the cluster, or start one; :meth:`publish` does it too, only later.

        Raises:
            ClusterError: Where it is not there.
        """
        if self._cluster is None:
            self._cluster = Cluster(self._address, actors=self._actors, resources=self._resources)

    def publish(self, version: int) -> None:
        """Play what begins from now on with the policy's present weights.

        Args:
            version: Theirs; nothing happens where it is the one published last.

        Raises:
            ClusterError: Where the cluster is not there, the weights cannot be written, or the model is none
                that an actor could make.
        """
        if version == self._version:
            return
        self.connect()
        assert self._cluster is not None
        try:
            if self._store is None:
                self._store = WeightStore(Path(self._folder.name) / "weights", self._policy, keep=1)
            weights = weight_parcel(self._store, version, self._cluster.put)
        except WeightError as fault:
            raise ClusterError(f"the weights of version {version} cannot be published: {fault}") from fault
        if self._crew is None:
            self._crew = self._assemble(self._cluster, self._store)
        self._crew.publish(version, weights)
        self._groups.publish(version)
        self._version = version

    def prefetch(self, tasks: Sequence[GroupTask]) -> None:
        """Tasks that will be asked for after the next update; the actors begin them when they have time."""
        self._ledger.submit(tasks)

    def collect(self, tasks: Sequence[GroupTask], **told: Unpack[Told]) -> list[Group]:
        """Have groups played, see :meth:`~art_trainer.backends.backend.RolloutBackend.collect`.

        Raises:
            ClusterError: Where no actor can play.
        """
        return self._groups.collect(tasks, **told)

    def saved(self, batch: int) -> None:
        """Batches before this one will never be asked for again."""
        self._ledger.forget(batch)

    def close(self) -> None:
        """Let the actors go; a cluster that was started here ends."""
        self._ledger.close()
        if self._crew is not None:
            self._crew.close()
        if self._cluster is not None:
            self._cluster.close()
        self._journal.close()
        self._folder.cleanup()

    @property
    def losses(self) -> dict[str, int]:
        """How many actors were lost, by how, see :data:`~art_trainer.ray_backend.hand.Loss`."""
        return {} if self._crew is None else dict(self._crew.losses)

    def status(self) -> LedgerStatus:
        """What waits, what is being played, and what became of results."""
        return self._ledger.status()

    def _assemble(self, cluster: Cluster, store: WeightStore) -> Crew:
        config, policy = self._config, self._policy
        recipe = PlayerRecipe(
            describe_run(policy, self._env, self._env_args, config),
            model_parcels(store, cluster.put),
            policy.max_batch,
            config.max_concurrent or DEFAULT_MAX_CONCURRENT,
            config.env_threads,
        )
        return Crew(
            lambda: cluster.hire(recipe),
            self._ledger,
            size=self._actors,
            # So that one step's groups are shared by all.
            capacity=math.ceil(config.groups_per_step / self._actors) * config.num_generations,
            attempts=self._max_attempts,
            patience=self._patience,
            say=self._say,
            room=cluster.room,
        )

    def _wake(self) -> None:
        if self._crew is not None:
            self._crew.wake()

    def _check(self) -> None:
        if self._crew is not None:
            self._crew.check()
