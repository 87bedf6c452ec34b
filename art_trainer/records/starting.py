"""The model of a run, made again as ``art-trainer train`` made it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from torch import nn

from art_trainer.commands.policies import env_maker
from art_trainer.commands.preparing import env_texts, prepare_policy, warm_up
from art_trainer.commands.settings import Layer, merge_settings
from art_trainer.errors import ReplayError
from art_trainer.run_folder import RunFolder

BuildModel = Callable[[Path | None], nn.Module]
"""Makes a run's model: that of a checkpoint of the run, or with ``None`` as the run began."""


def builder(folder: RunFolder) -> BuildModel:
    """Return what makes a run's model from its ``run.yaml``, with as many CPU threads as then.

    Raises:
        ReplayError: Where the run has none, because it was not started by ``art-trainer train``.
        ConfigError: Where a setting is none of this version's.
    """
    if not folder.settings_file.exists():
        raise ReplayError(
            f"{folder.path} has no {folder.settings_file.name} that says how its model is made: pass `build`"
        )
    settings = merge_settings([Layer(folder.settings_file.name, folder.settings())])
    run = settings.run

    def build(checkpoint: Path | None) -> nn.Module:
        make_env = env_maker(run.env, run.env_args)
        policy = prepare_policy(settings, lambda: env_texts(settings, make_env), checkpoint=checkpoint)
        if checkpoint is None and run.warm_start is not None:
            warm_up(policy, settings, make_env, Console(quiet=True))
        return policy.model

    return build
