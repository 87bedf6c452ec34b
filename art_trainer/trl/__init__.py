"""Our environments inside TRL's ``GRPOTrainer``: TRL samples, and calls the environment's tools.

::

    rows = task_dataset("art/Email-v0", split="train", size=512)
    factory = environment_factory("art/Email-v0", max_completion_length=512)
    GRPOTrainer(model, train_dataset=rows, environment_factory=factory, ...)

:func:`free_text` fits a tokenizer for environments (and models) without tool calls, and :func:`ruler_reward`
has a judge compare the attempts of a group.
"""

from art_trainer.trl.dataset import task_dataset
from art_trainer.trl.environments import EPISODE_OVER, EnvironmentFactory, environment_factory
from art_trainer.trl.response_template import free_text
from art_trainer.trl.rewards import RulerFunction, ruler_reward

__all__ = [
    "EPISODE_OVER",
    "EnvironmentFactory",
    "RulerFunction",
    "environment_factory",
    "free_text",
    "ruler_reward",
    "task_dataset",
]
