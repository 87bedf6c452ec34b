"""The settings of a run: one declaration, from which flags, YAML reading and ``run.yaml`` come.

:class:`RunSettings` and :class:`~art_trainer.config.GRPOConfig` declare them; :func:`merge_settings` merges
what several sources set. Imports no PyTorch.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from art_gym.errors import did_you_mean
from art_trainer.config import (
    PROCESS_TIMEOUT,
    Count,
    Fraction,
    GRPOConfig,
    Positive,
    check_fields,
    read_settings,
)
from art_trainer.errors import ConfigError
from art_trainer.tracking.loggers.base import logger_names
from art_trainer.tracking.run_dir import RunFolder

DEFAULT = "default"
"""The source of a value that nobody set."""
RESUMED = "the resumed run"
"""The source of a value that a resumed run had before."""
LOCAL: Literal["local"] = "local"
RAY = "ray"
SELF = "self"
SCRATCH = "scratch"
AUTO = "auto"
"""The warm start of a model of random weights, if nobody sets another."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a run needs beyond :class:`~art_trainer.config.GRPOConfig`."""

    env: str = ""
    """Environment with text observations and actions: its id, ``module:id``, or a Python file."""
    agent: str | None = None
    """Command of your own agent, run once for each attempt: it asks the model by OpenAI's or Anthropic's API.
    ``{task}`` in it becomes the task; without ``tasks`` it plays the environment ``env`` through MCP."""
    tasks: str | None = None
    """File with the agent's tasks, one a line: text or JSON."""
    eval_tasks: str | None = None
    """File with the tasks of evaluations; ``None``: the last fifth of ``tasks``, which is not trained on."""
    agent_timeout: Positive = 600.0
    """Seconds after which an attempt of the agent is killed."""
    agent_concurrency: Count = 8
    """Most attempts of the agent that run at the same time."""
    env_args: dict[str, Any] = field(default_factory=dict)
    """Argument of the environment: a JSON value or text."""
    train_env_args: dict[str, Any] = field(default_factory=dict)
    """Argument of the environment in training only, over ``env_args``. Example: a lower ``max_turns`` when
    evaluations play whole games."""
    model: str = SCRATCH
    """Hugging Face name or folder of a causal language model, a name of ``art-trainer models``, or
    ``scratch``: a small model of random weights whose vocabulary comes from the environment."""
    scratch: dict[str, Any] = field(default_factory=dict)
    """Size of the ``scratch`` model, see :class:`~art_trainer.training.scratch_model.ScratchSize`."""
    history_window: Count | None = None
    """How many turns the model sees, the current one included; ``None``: all. 1 makes each turn a short
    context of its own, for games whose board shows everything."""
    warm_start: str | None = None
    """Scripted policy of the environment that the model first learns to imitate; ``auto``: the best episodes
    of all of them, or of those that ``baselines`` names, until 95% of the model's replies are valid calls;
    ``None``: no imitation."""
    warm_start_episodes: Count = 200
    """Episodes of that policy."""
    warm_start_rounds: Count = 1
    """Rounds of so many episodes. From the second on the model plays, and imitates what that policy would
    have replied (DAgger): it learns what to do in the states that it gets into itself."""
    warm_start_noise: Fraction = 0.0
    """Largest share of the policy's replies that are replaced by random ones in the first round, so that the
    model also learns what to do in states that the policy avoids."""
    warm_start_keep: Literal["all", "successes"] = "all"
    """Which of that policy's episodes are imitated: all, or those that succeeded (rejection sampling)."""
    warm_start_epochs: Count = 1
    """Passes over that policy's replies."""
    warm_start_batch_size: Count = 32
    """Episodes in an optimizer step of the warm start; turns, if ``history_window`` is set."""
    warm_start_learning_rate: Positive = 1e-3
    """Peak learning rate of the warm start."""
    reward: str = "env"
    """Training reward: ``env``, ``rubric`` (criteria without a model), ``ruler`` (a judge model that compares
    a group's attempts) or a weighted sum such as ``0.7*ruler+0.3*env``. Evaluations keep the environment's
    own reward. With ``tasks``: a Python file with a function ``reward(attempt)``."""
    rubric: dict[str, Any] = field(default_factory=dict)
    """Weights of the rubric's criteria by name; empty: the judge's own rubric."""
    judge: str | None = None
    """Judge model of the reward ``ruler``: ``openai:MODEL@URL``. Its key comes from ``OPENAI_API_KEY``."""
    judge_args: dict[str, Any] = field(default_factory=dict)
    """Other arguments of :class:`~art_gym.wrappers.judging.llm_judge.LLMJudge`, such as
    ``{budget: {max_cost: 5, prompt_price_per_million: 0.3, completion_price_per_million: 1}}``."""
    log: tuple[str, ...] = ()
    """Comma-separated loggers: ``wandb``, ``tensorboard``.
    Keys come from the environment or ``.env``, see ``art-trainer config``."""
    lora: Count | None = None
    """Rank of the LoRA adapter to train; ``None``: train all weights. With it the default of
    ``learning_rate`` is 2e-5."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Weight dtype; ``auto``: as saved, but float32 for bfloat16 on a CPU without instructions for it.
    Weights of 16 bits are trained in float32: the optimizer keeps copies (mixed precision). ``float16`` is
    refused."""
    load_in_4bit: bool = False
    """Load the frozen weights below the adapter in 4 bits (QLoRA); needs a GPU and bitsandbytes."""
    gradient_checkpointing: bool = False
    """Enable gradient checkpointing: less memory, about a third more computation."""
    engine: str | None = None
    """Server that samples in training: ``vllm@URL``, with the same model. It gets the
    trained weights before each rollout; ``None``: the model itself samples. A server rounds differently from
    the learner: set ``importance_sampling_correction`` too."""
    engine_weights_dir: str | None = None
    """Folder where this run writes weights for the engine; ``None``: a temporary one, for an engine of the
    same user on this machine."""
    backend: Literal["local", "ray"] = LOCAL
    """Rollout backend: ``local``, this process, or ``ray``, actors of a Ray cluster."""
    ray_address: str | None = None
    """Address of the Ray cluster, such as ``auto`` or ``10.0.0.5:6379``; ``None``: a new one on this
    machine."""
    ray_actors: Count = 2
    """Number of Ray actors that play; each has its own copy of the model."""
    ray_actor_cpus: float = 1.0
    """CPUs that each Ray actor reserves."""
    ray_actor_gpus: float = 0.0
    """GPUs that each Ray actor reserves; below 1 several actors share one."""
    threads: Count | None = None
    """CPU threads; ``None``: 2 for small models, all cores for large ones, see
    :mod:`art_trainer.models.loading`."""
    process_timeout: Positive = PROCESS_TIMEOUT
    """Seconds that one of several processes (torchrun) waits for the others: longer than a rollout or an
    evaluation takes."""
    device: str | None = None
    """Device of the model; ``None``: a GPU if there is one."""
    price_per_hour: Positive | None = None
    """Price of an hour of the machines that the run uses, in any currency: ``--dry-run`` and the report then
    say what the run costs."""
    max_batch: Count = 256
    """Largest number of conversations that the model holds in memory at the same time; if nobody sets it, as
    many of these as the device's free memory has room for."""
    test_split: str | None = None
    """Split of the evaluations before and after training; ``None``: ``"test"`` if there is one."""
    baselines: tuple[str, ...] | None = None
    """Baselines of the environment to evaluate too; ``None``: all."""
    opponent: str = SELF
    """Opponent in ``self-play``. ``self``: the model plays all seats and learns from all; or a scripted
    player or another policy, which does not learn."""
    seat: str | None = None
    """Seat of the model in ``self-play`` against an opponent that does not learn; ``None``: the first."""

    @property
    def all_env_args(self) -> dict[str, Any]:
        """Arguments of the environment in training."""
        return {**self.env_args, **self.train_env_args}

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "log", logger_names(",".join(self.log)))
        for name in self.scratch:
            if name not in _SCRATCH_SIZES:
                raise ConfigError(f"scratch: no `{name}`{did_you_mean(str(name), _SCRATCH_SIZES)}")


_SCRATCH_SIZES = ("layers", "hidden_size", "heads", "vocabulary_size", "max_context")
SETTINGS: Mapping[str, type] = {
    item.name: holder for holder in (RunSettings, GRPOConfig) for item in dataclasses.fields(holder)
}
"""Every setting's name, and the class that declares it."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings from one source."""

    source: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a run, and the source of each."""

    run: RunSettings
    config: GRPOConfig
    sources: Mapping[str, str]
    resume: Path | None = None
    """The run to resume."""
    resume_step: int | None = None
    """Resume from this step's checkpoint, not from the newest; later ones are deleted."""
    verbose: bool = False
    """Show all settings, not only those that were set."""
    quiet: bool = False
    """Show only warnings, errors and results."""

    @property
    def folder(self) -> RunFolder:
        """The run's folder."""
        return RunFolder(Path(self.config.output_dir))

    @property
    def episodes_per_step(self) -> int:
        """Episodes of one step of training."""
        return self.config.groups_per_step * self.config.num_generations

    def to_mapping(self) -> dict[str, Any]:
        """All settings by name; :func:`merge_settings` of them alone gives the same settings."""
        values = {**dataclasses.asdict(self.run), **self.config.to_mapping()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def merge_settings(layers: Iterable[Layer]) -> Settings:
    """Merge settings over the defaults; a later layer overrides an earlier one.

    Raises:
        ConfigError: For a setting that does not exist or is wrong; names its source and the near miss.
    """
    merged: dict[str, Any] = {}
    sources = dict.fromkeys(SETTINGS, DEFAULT)
    for layer in layers:
        for name, value in layer.values.items():
            if name not in SETTINGS:
                raise ConfigError(f"{layer.source}: no setting `{name}`{did_you_mean(name, SETTINGS)}")
            # A layer overrides single entries of settings that are mappings.
            old = merged.get(name)
            both = isinstance(old, Mapping) and isinstance(value, Mapping)
            merged[name] = {**old, **value} if both else value  # type: ignore[dict-item]
            sources[name] = layer.source
    try:
        run, config = (
            read_settings(holder, {name: merged[name] for name in merged if SETTINGS[name] is holder})
            for holder in (RunSettings, GRPOConfig)
        )
    except ConfigError as error:
        raise ConfigError(f"{error}{_sources_named(str(error), sources)}") from error
    assert isinstance(run, RunSettings)
    assert isinstance(config, GRPOConfig)
    return Settings(run, config, sources)


def _sources_named(message: str, sources: Mapping[str, str]) -> str:
    """Where the settings that an error names came from."""
    named = [name for name in re.findall(r"\w+", message) if sources.get(name, DEFAULT) != DEFAULT]
    blamed = [f"{name} from {sources[name]}" for name in dict.fromkeys(named)]
    return f" ({', '.join(blamed)})" if blamed else ""


def saved_settings(folder: RunFolder) -> Settings:
    """The settings in a run's folder."""
    return merge_settings([Layer(folder.settings_file.name, folder.settings())])
