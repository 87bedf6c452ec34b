"""What has to be installed, said in words where it is not."""

from __future__ import annotations

import importlib
import inspect

from art_trainer.errors import ConfigError

OLDEST_TRL = "1.12"
"""The oldest release in which both ways were tried and worked."""


def require_trl(hook: str) -> None:
    """Check that TRL is there and its ``GRPOTrainer`` has a way to plug environments in.

    Args:
        hook: The argument of ``GRPOTrainer`` that is needed.

    Raises:
        ModuleNotFoundError: Without TRL.
        ConfigError: Where the installed TRL has no such argument.
    """
    try:
        trl = importlib.import_module("trl")
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError('TRL is not installed: pip install "art-gym[trl]"') from missing
    if hook not in inspect.signature(trl.GRPOTrainer.__init__).parameters:
        raise ConfigError(
            f'GRPOTrainer of TRL {trl.__version__} takes no {hook}: pip install --upgrade "trl>={OLDEST_TRL}"'
        )
