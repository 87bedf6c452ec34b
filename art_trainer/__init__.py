"""Train LLM agents in text environments: GRPO and its relatives on any Gymnasium environment.

The names below are the public API; ``docs/reference.md`` has a line for each. They are imported when they are
first used: ``import art_trainer`` loads neither PyTorch nor Transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art_trainer.config import GRPOConfig as GRPOConfig
    from art_trainer.errors import CheckpointError as CheckpointError
    from art_trainer.errors import ConfigError as ConfigError
    from art_trainer.errors import DivergedError as DivergedError
    from art_trainer.errors import EngineError as EngineError
    from art_trainer.errors import TrainerError as TrainerError
    from art_trainer.inference.openai_policy import OpenAIPolicy as OpenAIPolicy
    from art_trainer.inference.policy import Policy as Policy
    from art_trainer.inference.sampling import SamplingParams as SamplingParams
    from art_trainer.inference.scripted_policy import ScriptedPolicy as ScriptedPolicy
    from art_trainer.inference.transformers_policy import TransformersPolicy as TransformersPolicy
    from art_trainer.rollout.backend import RolloutBackend as RolloutBackend
    from art_trainer.rollout.envs import EnvPool as EnvPool
    from art_trainer.rollout.episodes import group_specs as group_specs
    from art_trainer.rollout.episodes import rollout_episodes as rollout_episodes
    from art_trainer.rollout.episodes import rollout_groups as rollout_groups
    from art_trainer.rollout.evaluate import Comparison as Comparison
    from art_trainer.rollout.evaluate import Evaluation as Evaluation
    from art_trainer.rollout.evaluate import compare as compare
    from art_trainer.rollout.evaluate import evaluate as evaluate
    from art_trainer.rollout.games import play_games as play_games
    from art_trainer.rollout.judge_rewards import JudgeRewards as JudgeRewards
    from art_trainer.rollout.judge_rewards import RewardMix as RewardMix
    from art_trainer.tracking.callbacks import TrainerCallback as TrainerCallback
    from art_trainer.tracking.run_dir import RunFolder as RunFolder
    from art_trainer.training.demonstrations import collect_demonstrations as collect_demonstrations
    from art_trainer.training.export import export_model as export_model
    from art_trainer.training.learner import Learner as Learner
    from art_trainer.training.self_play import SelfPlayTrainer as SelfPlayTrainer
    from art_trainer.training.sft import imitate as imitate
    from art_trainer.training.trainer import GRPOTrainer as GRPOTrainer
    from art_trainer.types import Ending as Ending
    from art_trainer.types import Episode as Episode
    from art_trainer.types import EpisodeSpec as EpisodeSpec
    from art_trainer.types import Group as Group
    from art_trainer.types import GroupSpec as GroupSpec
    from art_trainer.types import Interval as Interval
    from art_trainer.types import Judgement as Judgement
    from art_trainer.types import Span as Span
    from art_trainer.types import TokenHistory as TokenHistory
    from art_trainer.types import Turn as Turn

_MODULES = {
    "config": ["GRPOConfig"],
    "errors": ["CheckpointError", "ConfigError", "DivergedError", "EngineError", "TrainerError"],
    "inference.openai_policy": ["OpenAIPolicy"],
    "inference.policy": ["Policy"],
    "inference.sampling": ["SamplingParams"],
    "inference.scripted_policy": ["ScriptedPolicy"],
    "inference.transformers_policy": ["TransformersPolicy"],
    "rollout.backend": ["RolloutBackend"],
    "rollout.envs": ["EnvPool"],
    "rollout.episodes": ["group_specs", "rollout_episodes", "rollout_groups"],
    "rollout.evaluate": ["Comparison", "Evaluation", "compare", "evaluate"],
    "rollout.games": ["play_games"],
    "rollout.judge_rewards": ["JudgeRewards", "RewardMix"],
    "tracking.callbacks": ["TrainerCallback"],
    "tracking.run_dir": ["RunFolder"],
    "training.export": ["export_model"],
    "training.learner": ["Learner"],
    "training.self_play": ["SelfPlayTrainer"],
    "training.demonstrations": ["collect_demonstrations"],
    "training.sft": ["imitate"],
    "training.trainer": ["GRPOTrainer"],
    "types": [
        *("Ending", "Episode", "EpisodeSpec", "Group", "GroupSpec", "Interval", "Judgement", "Span"),
        *("TokenHistory", "Turn"),
    ],
}
"""The module of each public name; the imports above say the same to type checkers."""

_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOME)


if not TYPE_CHECKING:  # type checkers know the names from the imports above, and no others

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
