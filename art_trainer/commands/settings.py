"""The settings of ``art-trainer train``: flags, a YAML file and defaults laid over each other."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from art_gym.errors import did_you_mean
from art_trainer.config import PROCESS_TIMEOUT, GRPOConfig
from art_trainer.errors import ConfigError
from art_trainer.monitoring.registry import sink_names

DEFAULT = "default"
"""The source of a value that nobody set."""
LOCAL, RAY = "local", "ray"
BACKENDS = (LOCAL, RAY)
"""Who may play the groups of training."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "art-tiny": {
        "learning_rate": 3e-4,
        "lr_final_ratio": 0.1,
        "max_steps": 60,
        "steps_per_generation": 2,
        "max_completion_length": 24,
        # Before and after are measured as the model is trained: sampled, not greedy.
        "eval_temperature": 1.0,
        "eval_episodes": 256,
    },
    "scratch": {
        "learning_rate": 1e-3,
        "lr_final_ratio": 0.1,
        "max_completion_length": 24,
        "eval_temperature": 1.0,
    },
    "scratch on art/2048-v0": {
        "env_args": {"show_points": True},
        # Short windows of games already under way, begun as the imitated player would have: more starts to
        # compare from than whole games would give, on boards like those that good play leads to.
        "train_env_args": {
            "max_turns": 64,
            "opening_moves": 500,
            "opening_player": "snake",
            "illegal_move_penalty": 16,
        },
        "history_window": 1,
        "max_completion_length": 2,
        "warm_start": "snake",
        "warm_start_episodes": 130,
        "warm_start_noise": 0.5,
        "advantage_estimator": "reward_to_go",
        "gamma": 0.97,
        "scale_rewards": "batch",
        "learning_rate": 3e-4,
        "lr_final_ratio": 0.3,
        "warmup_steps": 3,
        # Near the temperature of the evaluation: what helps at 1, where every tenth move is a slip, need
        # not help there.
        "temperature": 0.5,
        "groups_per_step": 16,
        "steps_per_generation": 8,
        "max_steps": 16,
        "eval_temperature": 0.3,
        "eval_episodes": 192,
        "baselines": ["random", "left-down", "left-down-right-down", "greedy"],
    },
    "scratch on art/Coding-v0": {
        "env_args": {"level": 0, "judge_twice": False},
        "max_completion_length": 16,
        "warm_start": "demonstrator",
        "warm_start_episodes": 4000,
        "warm_start_epochs": 4,
        "warm_start_learning_rate": 2e-3,
        "warmup_steps": 4,
        "steps_per_generation": 2,
        "max_steps": 70,
        "eval_episodes": 200,
    },
    "scratch on toy/FrozenLake-v0": {
        # From the corner random moves almost never reach the goal; from anywhere some do, and there is
        # something to learn from. Evaluations begin in the corner.
        "train_env_args": {"start": "anywhere"},
        "history_window": 1,
        "max_completion_length": 2,
        # The moves that there are; where to go is for the rewards to teach.
        "warm_start": "random",
        "warm_start_episodes": 800,
        "advantage_estimator": "reward_to_go",
        "gamma": 0.9,
        # Once most groups succeed in every attempt, advantages scaled to the batch would be large and of few
        # groups, and the policy would stop exploring before it has learned to look ahead. What holds it open
        # is the random player it began as: unlike an entropy bonus that asks for moves, not for any token.
        "scale_rewards": "none",
        "beta": 0.05,
        "drop_zero_variance_groups": False,
        "learning_rate": 5e-4,
        "num_iterations": 2,
        "warmup_steps": 3,
        "groups_per_step": 32,
        "steps_per_generation": 2,
        "max_steps": 100,
        "eval_temperature": 0.3,
        "eval_episodes": 200,
    },
    "scratch on classic/TicTacToe-v0": {
        "history_window": 1,
        "max_completion_length": 2,
        "warm_start": "random",
        "warm_start_episodes": 1500,
        "advantage_estimator": "reward_to_go",
        "gamma": 0.9,
        # Held near the random player, both seats go on meeting all kinds of positions. With 0.01 they settled
        # on one game that is always a draw, and lost to players that leave it.
        "beta": 0.05,
        "drop_zero_variance_groups": False,
        "learning_rate": 5e-4,
        "num_iterations": 2,
        "warmup_steps": 3,
        "groups_per_step": 16,
        "steps_per_generation": 2,
        "max_steps": 60,
        "eval_temperature": 0.3,
        "eval_episodes": 100,
    },
    "scratch on art/2048Duel-v0": {
        "history_window": 1,
        "max_completion_length": 2,
        # The moves that there are; which are good is for self-play to find out.
        "warm_start": "random",
        "advantage_estimator": "reward_to_go",
    },
}
"""What suits a model, or a model on an environment, below everything that the user sets. The library's own
defaults suit models of billions."""


def default_model(env: str) -> str:
    """The model to train where none is named: the embedded one reads mail, other games start from nothing."""
    return "art-tiny" if env.endswith("art/Email-v0") else "scratch"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a run needs beyond :class:`~art_trainer.config.GRPOConfig`."""

    env: str = "art/Email-v0"
    """The id of a Gymnasium environment with text in and text out; ``module:id`` imports the module first."""
    env_args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""
    train_env_args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment in training alone, over ``env_args``: such as a lower ``max_turns`` where
    evaluations play whole games."""
    model: str = "art-tiny"
    """A Hugging Face name, a folder, ``art-tiny``, or ``scratch``: a small one of random weights, whose words
    are the environment's."""
    scratch: Mapping[str, Any] = field(default_factory=dict)
    """Size of the ``scratch`` model, see :class:`~art_trainer.scratch.ScratchSize`."""
    history_window: int | None = None
    """How many turns the model sees, the present one included; ``None``: all. 1 makes each turn a short
    context of its own, for games whose board says everything."""
    warm_start: str | None = None
    """Scripted player of the environment that the model first learns to imitate; ``None``: nobody."""
    warm_start_episodes: int = 200
    """Episodes of that player."""
    warm_start_noise: float = 0.0
    """Largest share of its replies that random ones are played for, so that the model also learns what to do
    in worse situations than the player's own."""
    warm_start_epochs: int = 1
    """Passes over its replies."""
    warm_start_batch_size: int = 32
    """Episodes an optimizer step of the warm start; turns, where the history window is set."""
    warm_start_learning_rate: float = 1e-3
    """Peak learning rate of the warm start."""
    reward: str = "env"
    """What training pays: ``env``, ``rubric`` (criteria without a model), ``ruler`` (a judge model that
    compares a group's attempts), or a mix such as ``0.7*ruler+0.3*env``. Evaluations keep the
    environment's own reward."""
    rubric: Mapping[str, float] = field(default_factory=dict)
    """Weights of the rubric's criteria by name; empty: the judge's own rubric."""
    judge: str | None = None
    """The judge model of ``ruler``: ``openai:MODEL@URL``, its key from ``OPENAI_API_KEY``."""
    judge_args: Mapping[str, Any] = field(default_factory=dict)
    """Other arguments of :class:`~art_gym.wrappers.judging.llm_judge.LLMJudge`, such as
    ``{budget: {max_cost: 5, prompt_price_per_million: 0.3, completion_price_per_million: 1}}``."""
    log: Sequence[str] | str = ()
    """Where the run can be watched besides its folder: ``wandb``, ``langfuse``, ``tensorboard``, ``trackio``,
    ``mlflow``, ``otel``, ``openpipe``; a list, or words with commas between them."""
    lora: int | None = None
    """Rank of the LoRA adapter to train; ``None`` trains all weights."""
    dtype: str = "auto"
    """What weights are loaded as: ``bfloat16``, ``float32``, or ``auto`` for what they were saved in. A new
    adapter's are float32 in any case."""
    load_in_4bit: bool = False
    """Load the frozen weights below the adapter as 4-bit numbers (QLoRA); needs a GPU and bitsandbytes."""
    gradient_checkpointing: bool = False
    """Compute the layers' insides again in the backward pass: less memory, about a third more computation."""
    engine: str | None = None
    """What samples in training: ``vllm@URL`` or ``sglang@URL``, a server with the same model, which gets the
    trained weights before each rollout; ``None``: the model itself. It rounds otherwise than the learner: set
    ``importance_sampling_correction`` too."""
    engine_weights_dir: str | None = None
    """Folder of this run's own where weights are written for the engine to read; ``None``: a temporary one,
    for an engine of the same user on this machine."""
    backend: str = LOCAL
    """Who plays the groups of training: ``local``, this process, or ``ray``, actors of a Ray cluster."""
    ray_address: str | None = None
    """Of the Ray cluster, such as ``auto`` or ``10.0.0.5:6379``; ``None``: one of this run's own, here."""
    ray_actors: int = 2
    """How many actors play; each has a model of its own."""
    ray_actor_cpus: float = 1.0
    """What each asks the cluster for."""
    ray_actor_gpus: float = 0.0
    """Likewise; above 0 its model lives on a GPU, below 1 several share one."""
    threads: int | None = None
    """CPU threads; ``None``: 2 for small models, all cores for large ones, see :mod:`art_trainer.threads`."""
    process_timeout: float = PROCESS_TIMEOUT
    """Seconds that one of several processes (torchrun) waits for the others before it gives them up: more
    than a rollout takes, or an evaluation, which the main process plays alone."""
    device: str | None = None
    """Where the model lives; ``None``: a GPU where there is one."""
    max_batch: int = 256
    """Most conversations the model holds in memory at one time."""
    test_split: str | None = None
    """Split of the evaluation before and after; ``None``: ``"test"`` where there is one."""
    baselines: Sequence[str] | None = None
    """Baselines of the environment to evaluate too; ``None``: all it has."""

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}: set at least 1")
        if not 0 < self.warm_start_learning_rate < float("inf"):
            raise ConfigError(
                f"warm_start_learning_rate is {self.warm_start_learning_rate}: set a finite number above 0"
            )
        if not 0 < self.process_timeout < float("inf"):
            raise ConfigError(f"process_timeout is {self.process_timeout}: set a finite number above 0")
        if not 0 <= self.warm_start_noise <= 1:
            raise ConfigError(f"warm_start_noise is {self.warm_start_noise}: set a share from 0 to 1")
        if self.backend not in BACKENDS:
            raise ConfigError(f"backend: no `{self.backend}`{did_you_mean(self.backend, BACKENDS)}")
        object.__setattr__(self, "log", list(sink_names(self.log)))
        for name in self.scratch:
            if name not in _SCRATCH:
                raise ConfigError(f"scratch: no `{name}`{did_you_mean(str(name), _SCRATCH)}")


_AT_LEAST_ONE = (
    "lora", "threads", "max_batch", "history_window", "warm_start_episodes",
    "warm_start_epochs", "warm_start_batch_size", "ray_actors",
)  # fmt: skip
_SCRATCH = ("layers", "hidden_size", "heads", "vocabulary_size", "max_context")
_KINDS: Mapping[str, tuple[type, ...]] = {
    "env": (str,),
    "env_args": (dict,),
    "train_env_args": (dict,),
    "model": (str,),
    "scratch": (dict,),
    "history_window": (int, type(None)),
    "warm_start": (str, type(None)),
    "warm_start_episodes": (int,),
    "warm_start_noise": (int, float),
    "warm_start_epochs": (int,),
    "warm_start_batch_size": (int,),
    "warm_start_learning_rate": (int, float),
    "reward": (str,),
    "rubric": (dict,),
    "judge": (str, type(None)),
    "judge_args": (dict,),
    "log": (str, list, tuple),
    "lora": (int, type(None)),
    "dtype": (str,),
    "load_in_4bit": (bool,),
    "gradient_checkpointing": (bool,),
    "engine": (str, type(None)),
    "engine_weights_dir": (str, type(None)),
    "backend": (str,),
    "ray_address": (str, type(None)),
    "ray_actors": (int,),
    "ray_actor_cpus": (int, float),
    "ray_actor_gpus": (int, float),
    "threads": (int, type(None)),
    "process_timeout": (int, float),
    "device": (str, type(None)),
    "max_batch": (int,),
    "test_split": (str, type(None)),
    "baselines": (list, type(None)),
}
_RUN_NAMES = tuple(item.name for item in dataclasses.fields(RunSettings))
_CONFIG_NAMES = tuple(item.name for item in dataclasses.fields(GRPOConfig))


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings from one source."""

    source: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a run, and where each came from."""

    run: RunSettings
    config: GRPOConfig
    sources: Mapping[str, str]

    def to_mapping(self) -> dict[str, Any]:
        """All settings by name; :func:`merge_settings` of them alone gives the same settings."""
        return {**dataclasses.asdict(self.run), **self.config.to_mapping()}


def merge_settings(layers: Iterable[Layer]) -> Settings:
    """Lay settings over each other and over the defaults; a later layer hides an earlier one.

    Raises:
        ConfigError: For a setting that does not exist (the near miss is named), is of a wrong type or out of
            range. The message says which source holds it.
    """
    merged: dict[str, Any] = {}
    sources = dict.fromkeys((*_RUN_NAMES, *_CONFIG_NAMES), DEFAULT)
    for layer in layers:
        for name, given in layer.values.items():
            value = _number(name, given)
            _check(layer.source, name, value)
            # Of settings that are mappings a layer hides single entries.
            merged[name] = {**merged.get(name, {}), **value} if isinstance(value, Mapping) else value
            sources[name] = layer.source
    try:
        run = RunSettings(**{name: value for name, value in merged.items() if name in _RUN_NAMES})
        config = GRPOConfig.from_mapping(
            {name: value for name, value in merged.items() if name in _CONFIG_NAMES}
        )
    except ConfigError as error:
        raise ConfigError(f"{error}{_blame(str(error), sources)}") from error
    return Settings(run, config, sources)


def _number(name: str, value: Any) -> Any:
    """A number written as text, as YAML reads ``2e-3``, as the number; anything else as it is."""
    if isinstance(value, str) and float in _KINDS.get(name, ()):
        try:
            return float(value)
        except ValueError:
            pass
    return value


def _check(source: str, name: str, value: Any) -> None:
    if name not in _RUN_NAMES and name not in _CONFIG_NAMES:
        hint = did_you_mean(name, (*_RUN_NAMES, *_CONFIG_NAMES))
        raise ConfigError(f"{source}: no setting `{name}`{hint}")
    # A bool is an int to Python, but not to a reader.
    if name in _RUN_NAMES and not (
        isinstance(value, _KINDS[name]) and (bool in _KINDS[name] or not isinstance(value, bool))
    ):
        wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in _KINDS[name])
        raise ConfigError(f"{source}: {name} is {value!r}; set a value of type {wanted}")


def _blame(message: str, sources: Mapping[str, str]) -> str:
    """Where the settings that an error speaks of came from."""
    named = [name for name in re.findall(r"\w+", message) if sources.get(name, DEFAULT) != DEFAULT]
    blamed = [f"{name} from {sources[name]}" for name in dict.fromkeys(named)]
    return f" ({', '.join(blamed)})" if blamed else ""


def parse_pairs(pairs: Iterable[str], flag: str, *, as_yaml: bool = False) -> dict[str, Any]:
    """Read ``key=value`` arguments; a value is JSON where it can be read as such, else text.

    Args:
        pairs: The arguments.
        flag: The flag they came with, for the words of an error.
        as_yaml: Read values as YAML, as in a config file.

    Raises:
        ConfigError: Where an argument has no ``=``, or no key before it.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{flag} takes key=value, as in `{flag} seed=1`, not {pair!r}")
        values[key.strip()] = yaml.safe_load(text) if as_yaml else _json_or_text(text)
    return values


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
