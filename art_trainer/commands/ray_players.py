"""``art-trainer train --backend ray``: actors of a Ray cluster play the groups of training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from rich.console import Console

from art_trainer.backends.elsewhere import PlayedElsewhere
from art_trainer.commands.settings import RunSettings, Settings
from art_trainer.commands.training import Hired, Players
from art_trainer.errors import ConfigError
from art_trainer.processes import current_processes
from art_trainer.ray_backend.backend import RayBackend
from art_trainer.ray_backend.cluster import ActorResources, require_ray
from art_trainer.run_folder import RunFolder
from art_trainer.transformers_policy import TransformersPolicy


def ray_players(settings: Settings) -> Hired:
    """Players in the cluster that a run's settings name.

    Raises:
        ConfigError: Where Ray is not installed, or settings do not go with it.
    """
    require_ray()
    _check(settings)
    return Hired(_find, lambda: Players(PlayedElsewhere()))


@contextmanager
def _find(
    settings: Settings, folder: RunFolder, policy: TransformersPolicy, console: Console
) -> Iterator[Players]:
    """A backend that is connected within.

    Raises:
        ConfigError: For an address that cannot be used.
        ClusterError: Where the cluster is not there.
    """
    run = settings.run

    def say(words: str) -> None:
        console.print(f"ray: {words}", style="yellow", markup=False, highlight=False, soft_wrap=True)

    backend = RayBackend(
        policy,
        run.env,
        {**run.env_args, **run.train_env_args},
        settings.config,
        address=run.ray_address,
        actors=run.ray_actors,
        resources=_resources(run),
        say=say,
    )
    with closing(backend):
        backend.connect()
        where = "of this run's own" if run.ray_address is None else f"at {run.ray_address}"
        console.print(f"Ray actors that play: {run.ray_actors}, in a cluster {where}.", highlight=False)
        yield Players(backend)


def _check(settings: Settings) -> None:
    run = settings.run
    _resources(run)
    if run.engine is not None:
        raise ConfigError("backend is ray, whose actors sample themselves: leave engine out")
    if run.load_in_4bit:
        raise ConfigError("backend is ray, whose actors hold no 4-bit weights: leave load_in_4bit out")
    if settings.config.sharding != "none" and current_processes().size > 1:
        raise ConfigError("backend is ray, and whole weights go to its actors: set sharding=none")


def _resources(run: RunSettings) -> ActorResources:
    return ActorResources(run.ray_actor_cpus, run.ray_actor_gpus)
