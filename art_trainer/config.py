"""Every setting of a training run, in one dataclass.

Names and defaults are those of TRL's ``GRPOConfig`` where it has the field. Different, for
multi-turn agents: ``scale_rewards="none"`` and ``epsilon_high=0.28`` (evidence under each field); the
schedule counts training steps (rollout and update); ``max_completion_length`` bounds one reply, not a whole
episode.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from art_trainer.config_checks import check_together
from art_trainer.errors import ConfigError

AdvantageEstimator = Literal[
    "group",
    "leave_one_out",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "reward_to_go",
    "gigpo",
    "gae",
]
ScaleRewards = Literal["none", "group", "batch"]
LossType = Literal["dapo", "grpo", "dr_grpo", "bnpo", "cispo"]
ImportanceLevel = Literal["token", "sequence"]
CorrectionMode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
StepStates = Literal["snapshot", "observation"]
Schedule = Literal["linear", "cosine", "constant"]
ReferenceDtype = Literal["model", "bfloat16", "float32"]
Sharding = Literal["none", "fsdp2"]
Optim = Literal["adamw", "adamw_8bit"]
"""Which AdamW: PyTorch's, or bitsandbytes' with moments of 8 bits (arXiv:2110.02861)."""
PROCESS_TIMEOUT = 1800.0
"""Seconds that one of several processes waits for the others: more than a rollout or an evaluation takes."""


@dataclass(frozen=True, slots=True)
class GRPOConfig:
    """Settings of :class:`~art_trainer.trainer.GRPOTrainer`.

    Raises:
        ConfigError: Where a value is out of range or two settings contradict each other.
    """

    output_dir: str = "runs/grpo"
    """Folder of the run: config, metrics, transcripts, checkpoints."""
    seed: int = 42
    """Where all randomness of the run starts: tasks, sampling, shuffling."""
    max_steps: int = 100
    """Training steps; one step is one rollout and the update from it."""

    num_generations: int = 8
    """Attempts at one task, the group's size; the group's mean reward is the baseline."""
    groups_per_step: int = 32
    """Groups rolled out per step; a step's batch has ``groups_per_step * num_generations`` episodes."""
    max_completion_length: int = 512
    """Most tokens of one reply. (TRL bounds the whole episode, observations included.)"""
    max_concurrent: int | None = None
    """Most episodes played at the same moment; ``None``: as many as the policy's batch takes."""
    env_threads: int = 0
    """Threads that step environments while the policy samples for other episodes; 0 steps them in between.
    Pays where environments wait for something; they must allow to be stepped from any thread."""
    max_staleness: int = 0
    """By how many updates the weights that sampled an attempt may be older than those that learn from it.
    Above 0 workers play ahead while the learner learns, which needs ``importance_sampling_correction``. This
    process alone never plays ahead."""
    temperature: float = 1.0
    """Sampling temperature; the learner's log-probs are taken at the same temperature."""
    top_p: float = 1.0
    """Nucleus sampling; 1 switches it off. Any filter costs a second pass for the old log-probs."""
    top_k: int = 0
    """Sample among the k most likely tokens; 0 switches it off."""
    min_p: float | None = None
    """Drop tokens less likely than this fraction of the likeliest; ``None`` switches it off."""
    repetition_penalty: float = 1.0
    """Above 1 makes tokens of the context less likely, see
    :func:`art_trainer.sampler.penalize_repetition`; 1 switches it off. It counts as a filter."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a reply, such as ``</tool_call>``; they stay in it."""
    train_split: str | None = None
    """Split the training tasks come from; ``None``: ``"train"`` where the environment has it."""

    learning_rate: float = 1e-6
    """Peak learning rate of AdamW. Right for models of billions; from random weights use 1e-3 to 2e-3."""
    lr_scheduler_type: Schedule = "linear"
    """How the learning rate falls from its peak to ``learning_rate * lr_final_ratio`` at ``max_steps``."""
    lr_final_ratio: float = 0.0
    """What is left of the learning rate at the end, as a fraction of the peak (0 as in TRL)."""
    warmup_steps: int = 0
    """Training steps over which the learning rate rises linearly to its peak."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay; not applied to vectors (norms, biases)."""
    optim: Optim = "adamw"
    """``"adamw"``, or ``"adamw_8bit"``: moments of 8 bits, a quarter of the memory, where bitsandbytes is
    installed."""
    adam_beta1: float = 0.9
    """AdamW's decay of the mean gradient."""
    adam_beta2: float = 0.999
    """AdamW's decay of the mean squared gradient."""
    adam_epsilon: float = 1e-8
    """AdamW's term against division by zero."""
    max_grad_norm: float = 1.0
    """Longest gradient (L2 norm over all weights) an optimizer step takes; 0 switches clipping off."""
    num_iterations: int = 1
    """Passes over a step's batch (μ in the GRPO paper)."""
    steps_per_generation: int = 1
    """Optimizer steps one pass is cut into, each over its share of the groups."""
    max_skipped_updates: int = 10
    """Optimizer steps in a row that may be skipped for a loss or gradient that is not finite."""
    tokens_per_microbatch: int = 4096
    """Most tokens in one forward and backward, shared ones counted once; bounds memory, not the result."""
    sharding: Sharding = "none"
    """How weights and optimizer lie on several processes: each has all of them, or with ``"fsdp2"`` its piece
    of those that are trained, see :mod:`art_trainer.sharding`. One process has all in any case."""
    share_prefixes: bool = True
    """Compute a group's common prompt once where the model allows it exactly and it saves tokens."""

    loss_type: LossType = "dapo"
    """How token losses are added up, see :func:`art_trainer.loss_weights.token_weights`; ``"cispo"`` also
    clips the weight of a token instead of its loss, see :func:`art_trainer.losses.cispo_surrogate`."""
    importance_sampling_level: ImportanceLevel = "token"
    """Whether a probability ratio is a token's or a sequence's (GSPO, arXiv:2507.18071). A sequence's is far
    closer to 1: set ``epsilon`` 3e-4, ``epsilon_high`` 4e-4 and ``loss_type="grpo"``, as its paper does."""
    epsilon: float = 0.2
    """The probability ratio is clipped below at ``1 - epsilon``."""
    epsilon_high: float | None = 0.28
    """The ratio is clipped above at ``1 + epsilon_high``; ``None``: ``epsilon``, TRL's default. Clip-higher
    keeps rare good tokens growing: DAPO (arXiv:2503.14476) reports higher entropy and accuracy with 0.28.
    For ``"cispo"`` it is the highest ratio itself, as in TRL; 5 in ScaleRL (arXiv:2510.13786)."""
    delta: float | None = None
    """Highest ratio that a token with a negative advantage counts with (two-sided clipping, INTELLECT-2,
    arXiv:2505.07291), above ``1 + epsilon_high``; ``None``: no limit."""
    beta: float = 0.0
    """Weight of the KL divergence to the reference, the policy as it was at the start; 0: no reference."""
    reference_dtype: ReferenceDtype = "model"
    """Type of the reference's weights, where it is a second model: the model's own, or ``"bfloat16"`` for
    half of float32's memory and a KL that is off by the rounding."""
    use_bias_correction_kl: bool = True
    """Multiply the KL estimate by the probability ratio, so that its gradient is the true one off-policy."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus, nats per token."""
    importance_sampling_correction: bool = False
    """Weigh tokens by the learner's probability over the sampler's, for a sampler that is another program
    (TRL's ``vllm_importance_sampling_correction``). Costs a second pass for the old log-probs. The embedded
    sampler computes as the learner does and needs none."""
    importance_sampling_mode: CorrectionMode = "sequence_mask"
    """Whether that weight is a token's or a whole sequence's, and whether one out of bounds is clipped or
    makes 0, see :func:`art_trainer.importance.sampler_correction`."""
    importance_sampling_clip_max: float | None = 3.0
    """Upper bound of that weight; ``None``: none."""
    importance_sampling_clip_min: float | None = None
    """Lower bound of that weight; ``None``: none."""
    advantage_estimator: AdvantageEstimator = "group"
    """``"group"``: one advantage an attempt, its summed reward against the group's mean (GRPO).
    ``"leave_one_out"``: against the mean of the others (RLOO). ``"reinforce_plus_plus"``: against the mean of
    the batch, divided by the batch's standard deviation; with ``"_baseline"`` against the group's first.
    ``"reward_to_go"``: one a turn, what came after it against the group's mean at that turn; for tasks with
    a reward at every turn, where one number an attempt says little about 500 moves.
    ``"gigpo"``: the attempt's, plus what came after the turn against the other turns that met the same
    state. ``"gae"``: one a turn, against what a value head expected; that is PPO, which needs no groups
    (``num_generations`` may be 1), see :mod:`art_trainer.critic`. Equations in
    :mod:`art_trainer.advantages`, :mod:`art_trainer.estimators` and :mod:`art_trainer.gae`."""
    gamma: float = 1.0
    """Discount of ``"reward_to_go"``, ``"gigpo"`` and ``"gae"``: what a reward one turn later is worth."""
    lam: float = 0.95
    """λ of ``"gae"``: 1 for what truly came after a turn, 0 for what the value head says came."""
    vf_coef: float = 0.1
    """Weight of the value loss of ``"gae"`` where it reaches the model's own weights; 0: the head learns from
    the model's features and does not change them."""
    cliprange_value: float | None = 0.2
    """How far a value moves in one update before its gradient is clipped, in standard deviations of the
    returns; ``null``: no clip."""
    value_learning_rate: float | None = None
    """Peak learning rate of the value head, on the policy's schedule; ``null``: ``learning_rate``."""
    step_advantage_weight: float = 1.0
    """Weight of the turns' part in ``"gigpo"`` (ω in its paper)."""
    step_states: StepStates = "snapshot"
    """What makes two states equal for ``"gigpo"``: the environment's whole state, where it has snapshots, or
    what it shows, see :mod:`art_trainer.states`."""
    scale_rewards: ScaleRewards = "none"
    """Divide advantages by the rewards' standard deviation in the group or batch, or not at all. TRL divides
    by the group's; that gives nearly constant groups the loudest say (Dr. GRPO, arXiv:2503.20783) and
    collapsed on guess-the-number (16 groups, learning rate 3e-3), which learns without it. For ``"gae"``
    ``"batch"`` also takes off the mean, PPO's usual whitening."""
    drop_zero_variance_groups: bool = True
    """Leave out groups whose rewards are all equal: their policy gradient is zero and they cost a full pass
    (DAPO's dynamic sampling without the resampling). Their KL and entropy terms are left out with them."""
    dynamic_sampling: bool = False
    """Play fresh groups in place of those that teach nothing, because a member failed or no advantage is
    left, until a step is full of groups that do (DAPO, arXiv:2503.14476, section 3.2)."""
    max_resampled_groups: int | None = None
    """Most groups a step plays in place of others; ``None``: ``groups_per_step``, so that a step costs at
    most twice its rollout."""
    mask_truncated_completions: bool = False
    """Leave episodes out of the loss (not out of the baseline) that were cut off by a turn limit or a full
    context, or had a reply cut off by ``max_completion_length``."""

    logging_steps: int = 1
    """Write metrics every so many steps."""
    save_steps: int = 0
    """Write a checkpoint every so many steps; 0: only at the end."""
    save_total_limit: int | None = 2
    """How many checkpoints to keep, the newest; ``None``: all."""
    eval_steps: int = 0
    """Evaluate every so many steps, before the first and after the last; 0: never."""
    eval_episodes: int = 128
    """Episodes of one evaluation; always the same tasks and seeds, none of them drawn in training."""
    eval_split: str | None = None
    """Split of the evaluation tasks; ``None``: ``"validation"``, else ``"test"``, where there is one."""
    eval_temperature: float = 0.0
    """Sampling temperature in evaluation; 0 is greedy."""
    metric_for_best_model: str | None = None
    """What evaluations in training compare: ``"eval_success"``, ``"eval_reward"``, ``"eval_turns"`` or
    ``"eval_invalid_actions"``, also without ``eval_``; ``None``: success where it is told, else the reward.
    The checkpoint of the best evaluation is kept, whatever ``save_total_limit`` says."""
    greater_is_better: bool | None = None
    """Which way is up in ``metric_for_best_model``; ``None``: up, but for turns and invalid actions."""
    early_stopping_patience: int | None = None
    """Stop after so many evaluations in a row that are not better than the best; ``None``: never."""
    early_stopping_threshold: float = 0.0
    """How much better is better for ``early_stopping_patience``, in the metric's unit."""
    load_best_model_at_end: bool = False
    """End with the weights of the best evaluation; ``eval`` and ``export`` then take them for the run's."""
    kl_warning: float = 0.2
    """Warn where the divergence of an update from the policy that sampled is above so many nats per token;
    0: never. Updates that go well stay below 0.1, mostly far below."""
    ratio_warning: float = 100.0
    """Warn where a token's probability changed by more than this factor, up or down, within an update;
    0: never."""
    entropy_warning: float = 0.05
    """Warn where the entropy is below this share of what it was in the run's first steps; 0: never."""
    grad_norm_warning: float = 10.0
    """Warn where the gradient is longer than so many times the median of the last steps'; 0: never."""
    log_episodes: int | None = None
    """Episodes of a step that are kept with their tokens, those of the first groups; ``None``: all, which
    ``art-trainer replay`` needs; 0: none."""

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            _require(math.isfinite(value) and value >= 0, name, value, "a finite number, 0 or more")
        for name in _FRACTIONS:
            _require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "between 0 and 1")
        for name in ("max_concurrent", "save_total_limit"):
            value = getattr(self, name)
            _require(value is None or value >= 1, name, value, "at least 1, or null for no limit")
        kept = self.log_episodes
        _require(kept is None or kept >= 0, "log_episodes", kept, "0 or more, or null for all")
        for name in _ABOVE_ZERO_OR_NONE:
            value = getattr(self, name)
            _require(value is None or value > 0, name, value, "above 0, or null for no bound")
        for name, field_type in _TYPES.items():
            _require_choice(name, field_type, getattr(self, name))
        check_together(self)

    @property
    def clip_high(self) -> float:
        """The upper clipping distance, ``epsilon`` where ``epsilon_high`` is not set."""
        return self.epsilon if self.epsilon_high is None else self.epsilon_high

    @property
    def filters_sampling(self) -> bool:
        """Whether tokens are sampled from another distribution than the model's at the temperature."""
        return self.top_p < 1 or self.top_k > 0 or bool(self.min_p) or self.repetition_penalty != 1

    @property
    def has_critic(self) -> bool:
        """Whether advantages are against a value head's expectation, which is trained along."""
        return self.advantage_estimator == "gae"

    @property
    def records_states(self) -> bool:
        """Whether a rollout notes the environment's state before each reply."""
        return self.advantage_estimator == "gigpo" and self.step_states == "snapshot"

    @property
    def resampling_budget(self) -> int:
        """Most groups a step plays in place of others, 0 where it does not."""
        if not self.dynamic_sampling:
            return 0
        return self.groups_per_step if self.max_resampled_groups is None else self.max_resampled_groups

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> GRPOConfig:
        """Build a config from a mapping, such as a YAML file's.

        A number written as text is read as a number: YAML takes ``1e-3`` for text.

        Raises:
            ConfigError: Where a key is unknown (the near miss is named), or a value has a wrong type or is
                out of range.
        """
        values: dict[str, Any] = {}
        for key, value in data.items():
            if key not in _TYPES:
                close = difflib.get_close_matches(str(key), _TYPES, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(sorted(_TYPES))}"
                raise ConfigError(f"unknown key {key!r}: {hint}")
            values[key] = _converted(key, _TYPES[key], value)
        return cls(**values)

    def to_mapping(self) -> dict[str, Any]:
        """All settings as a JSON-able dict, from which :meth:`from_mapping` rebuilds the config."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


_TYPES: dict[str, Any] = get_type_hints(GRPOConfig)
_AT_LEAST_ONE = (
    "max_steps", "num_generations", "groups_per_step", "max_completion_length", "num_iterations",
    "steps_per_generation", "max_skipped_updates", "tokens_per_microbatch", "logging_steps", "eval_episodes",
)  # fmt: skip
_NOT_NEGATIVE = (
    "seed", "env_threads", "max_staleness", "temperature", "top_k", "learning_rate", "warmup_steps",
    "weight_decay", "max_grad_norm", "epsilon", "adam_epsilon", "beta", "entropy_coef", "save_steps",
    "eval_steps", "eval_temperature",
    "step_advantage_weight", "vf_coef", "kl_warning", "ratio_warning", "grad_norm_warning",
)  # fmt: skip
_FRACTIONS = ("lr_final_ratio", "adam_beta1", "adam_beta2", "gamma", "lam", "entropy_warning")
_ABOVE_ZERO_OR_NONE = (
    "delta", "importance_sampling_clip_max", "importance_sampling_clip_min", "cliprange_value",
    "value_learning_rate",
)  # fmt: skip


def _require(condition: bool, name: str, value: object, wanted: str) -> None:
    if not condition:
        raise ConfigError(f"{name} is {value!r}: set {wanted}")


def _require_choice(name: str, field_type: Any, value: object) -> None:
    if get_origin(field_type) is Literal and value not in get_args(field_type):
        choices = get_args(field_type)
        close = difflib.get_close_matches(str(value), choices, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ConfigError(f"{name} is {value!r}: set one of {', '.join(map(repr, choices))}{hint}")


def _converted(key: str, field_type: Any, value: object) -> object:
    """Return ``value`` as ``field_type``, or raise naming the type that is wanted."""
    if get_origin(field_type) is tuple:
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts):
            return tuple(texts)
        raise ConfigError(f"{key} is {value!r}, a {type(value).__name__}: set a text or a list of texts")
    wanted = get_args(field_type) if get_origin(field_type) in (Union, types.UnionType) else (field_type,)
    if value is None and types.NoneType in wanted:
        return None
    if get_origin(field_type) is Literal:
        return value
    if float in wanted and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            pass
    elif int in wanted and isinstance(value, float) and value.is_integer():
        return int(value)
    elif any(type(value) is kind for kind in wanted):
        return value
    names = " or ".join("null" if kind is types.NoneType else kind.__name__ for kind in wanted)
    raise ConfigError(f"{key} is {value!r}, a {type(value).__name__}: set a value of type {names}")
