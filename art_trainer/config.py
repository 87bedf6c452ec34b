"""Every setting of a training run, in one dataclass.

Names and defaults are those of TRL's ``GRPOConfig`` where it has the field. Different, for multi-turn agents:
``scale_rewards="none"``, ``epsilon_high=0.28`` (evidence under each field), ``drop_zero_variance_groups``, a
schedule in steps, ``max_completion_length`` of one reply, not of an episode, and when to log and save.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from art_gym.errors import did_you_mean
from art_trainer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Check:
    """The range of a setting, in its type; :func:`check_fields` checks it."""

    wanted: str
    """What to set, for the error message."""
    holds: Callable[[Any], bool]


Count = Annotated[int, Check("at least 1", lambda value: value >= 1)]
Whole = Annotated[int, Check("0 or more", lambda value: value >= 0)]
Amount = Annotated[float, Check("a finite number, 0 or more", lambda value: 0 <= value < math.inf)]
Positive = Annotated[float, Check("a finite number above 0", lambda value: 0 < value < math.inf)]
Fraction = Annotated[float, Check("a number from 0 to 1", lambda value: 0 <= value <= 1)]
TopP = Annotated[float, Check("above 0 and at most 1; 1 switches it off", lambda value: 0 < value <= 1)]
BelowOne = Annotated[float, Check("a number from 0 to below 1", lambda value: 0 <= value < 1)]
Texts = Annotated[
    tuple[str, ...],
    Check("a list of texts, none empty", lambda value: all(value) and not isinstance(value, str)),
]

AdvantageEstimator = Literal[
    "group",
    "leave_one_out",
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
BestMetric = Literal["eval_success", "eval_reward", "eval_turns", "eval_invalid_actions"]
"""Metrics of an evaluation in training."""
PROCESS_TIMEOUT = 1800.0
"""Seconds that one of several processes waits for the others: longer than a rollout or an evaluation."""


@dataclass(frozen=True, slots=True)
class GRPOConfig:
    """Settings of :class:`~art_trainer.training.trainer.GRPOTrainer`.

    Raises:
        ConfigError: If a value is out of range or two settings contradict each other.
    """

    output_dir: str = "runs/grpo"
    """Folder of the run: settings, metrics, episodes, checkpoints."""
    seed: Whole = 42
    """Random seed of tasks, sampling and shuffling."""
    max_steps: Count = 100
    """Training steps; one step is one rollout and the update from it."""

    num_generations: Count = 8
    """Attempts at one task: the group size. The group's mean reward is the baseline."""
    groups_per_step: Count = 32
    """Groups per step. A step's batch has ``groups_per_step * num_generations`` episodes."""
    max_completion_length: Count = 512
    """Largest number of tokens in one reply. (TRL bounds the whole episode, observations included.)"""
    max_concurrent: Count | None = None
    """Largest number of episodes played at the same time; ``None``: 256."""
    env_threads: Whole = 0
    """Threads that step environments while the policy samples for other episodes; 0: no threads. It helps if
    environments wait for something; they must allow steps from any thread."""
    max_staleness: Whole = 0
    """Largest age, in updates, of the weights that sampled an attempt when it is trained on. Above 0 workers
    play ahead while the learner trains, which needs ``importance_sampling_correction``. A single process
    never plays ahead."""
    temperature: Positive = 1.0
    """Sampling temperature, also of the learner's log-probs; above 0, since greedy attempts are all alike."""
    top_p: TopP = 1.0
    """Nucleus sampling; 1 switches it off. Any filter costs a second pass for the old log-probs."""
    top_k: Whole = 0
    """Sample among the k most likely tokens; 0 switches it off."""
    min_p: BelowOne | None = None
    """Drop tokens less likely than this fraction of the most likely one; ``None`` switches it off."""
    repetition_penalty: Positive = 1.0
    """Above 1 makes tokens of the context less likely, see
    :func:`art_trainer.inference.sampling.penalize_repetition`; 1 switches it off. It counts as a filter."""
    stop_strings: Texts = ()
    """Texts that end a reply, such as ``</tool_call>``; they stay in it."""
    train_split: str | None = None
    """Split of the training tasks; ``None``: ``"train"`` if the environment has it."""

    learning_rate: Amount = 1e-6
    """Peak learning rate of AdamW. Right for models of billions; from random weights use 1e-3 to 2e-3."""
    lr_scheduler_type: Schedule = "linear"
    """How the learning rate falls from its peak to ``learning_rate * lr_final_ratio`` at ``max_steps``."""
    lr_final_ratio: Fraction = 0.0
    """Final learning rate as a fraction of the peak (0 as in TRL)."""
    warmup_steps: Whole = 0
    """Training steps over which the learning rate rises linearly to its peak."""
    weight_decay: Amount = 0.0
    """AdamW's decoupled weight decay; not applied to vectors (norms, biases)."""
    optim: Optim = "adamw"
    """``"adamw"``, or ``"adamw_8bit"``: moments of 8 bits, a quarter of the memory; needs
    bitsandbytes."""
    adam_beta1: BelowOne = 0.9
    """AdamW's decay of the mean gradient."""
    adam_beta2: BelowOne = 0.999
    """AdamW's decay of the mean squared gradient."""
    adam_epsilon: Amount = 1e-8
    """AdamW's term against division by zero."""
    max_grad_norm: Amount = 1.0
    """Largest gradient norm (L2, over all weights); longer gradients are clipped. 0 switches clipping off."""
    num_iterations: Count = 1
    """Passes over a step's batch (μ in the GRPO paper)."""
    steps_per_generation: Count = 1
    """Optimizer steps in one pass, each over its share of the groups."""
    max_skipped_updates: Count = 10
    """Largest number of consecutive optimizer steps skipped for a loss or gradient that is not finite."""
    tokens_per_microbatch: Count = 4096
    """Largest number of tokens in one forward and backward pass, shared ones counted once. It bounds memory
    and does not change the result. ``art-trainer train`` lowers it to what fits, if nobody sets it."""
    sharding: Sharding = "none"
    """How weights and optimizer lie on several processes: each has all of them, or with ``"fsdp2"`` its piece
    of those that are trained, see :mod:`art_trainer.training.fsdp`. One process has all in any case."""
    share_prefixes: bool = True
    """Compute a group's common prompt once, if the model allows it exactly and it saves tokens."""

    loss_type: LossType = "dapo"
    """How token losses are added up, see :func:`art_trainer.algorithms.losses.token_weights`; ``"cispo"``
    also clips the weight of a token instead of its loss, see
    :func:`art_trainer.algorithms.losses.cispo_surrogate`."""
    importance_sampling_level: ImportanceLevel = "token"
    """Whether a probability ratio is a token's or a sequence's (GSPO, arXiv:2507.18071). A sequence's is far
    closer to 1: set ``epsilon`` 3e-4, ``epsilon_high`` 4e-4 and ``loss_type="grpo"``, as its paper does."""
    epsilon: BelowOne = 0.2
    """The probability ratio is clipped below at ``1 - epsilon``."""
    epsilon_high: Amount | None = 0.28
    """The ratio is clipped above at ``1 + epsilon_high``; ``None``: ``epsilon``, TRL's default. Clip-higher
    keeps rare good tokens growing: DAPO (arXiv:2503.14476) reports higher entropy and accuracy with 0.28.
    For ``"cispo"`` it is the highest ratio itself, as in TRL; 5 in ScaleRL (arXiv:2510.13786)."""
    delta: Positive | None = None
    """Highest ratio that a token with a negative advantage counts with (two-sided clipping, INTELLECT-2,
    arXiv:2505.07291), above ``1 + epsilon_high``; ``None``: no limit."""
    beta: Amount = 0.0
    """KL coefficient against the initial policy; 0: no reference."""
    reference_dtype: ReferenceDtype = "model"
    """Dtype of the reference's weights, if it is a second model: the model's own, or ``"bfloat16"`` for
    half of float32's memory and a KL that is off by the rounding."""
    use_bias_correction_kl: bool = True
    """Multiply the KL estimate by the probability ratio, so that its gradient is the true one off-policy."""
    entropy_coef: Amount = 0.0
    """Coefficient of the entropy bonus, per nat and token."""
    importance_sampling_correction: bool = False
    """Weigh tokens by the learner's probability over the sampler's, for a sampler that is another program
    (TRL's ``vllm_importance_sampling_correction``). Both are taken under the sampling filters. Costs a second
    pass for the old log-probs, and a third if there are filters. The embedded sampler computes as the learner
    does and needs none."""
    importance_sampling_mode: CorrectionMode = "sequence_mask"
    """Whether that weight is a token's or a whole sequence's, and whether one out of bounds is clipped or
    makes 0, see :func:`art_trainer.algorithms.losses.sampler_correction`."""
    importance_sampling_clip_max: Positive | None = 3.0
    """Upper bound of that weight; ``None``: none."""
    importance_sampling_clip_min: Positive | None = None
    """Lower bound of that weight; ``None``: none."""
    advantage_estimator: AdvantageEstimator = "group"
    """``"group"``: one advantage an attempt, its summed reward against the group's mean (GRPO).
    ``"leave_one_out"``: against the mean of the others (RLOO).
    ``"reward_to_go"``: one a turn, what came after it against the group's mean at that turn; for tasks with
    a reward at every turn, where one number an attempt says little about 500 moves.
    ``"gigpo"``: the attempt's, plus what came after the turn against the other turns that met the same
    state. ``"gae"``: one a turn, against what a value head expected; that is PPO, which needs no groups
    (``num_generations`` may be 1), see :mod:`art_trainer.training.critic`. Equations in
    :mod:`art_trainer.algorithms.advantages`."""
    gamma: Fraction = 1.0
    """Discount of ``"reward_to_go"``, ``"gigpo"`` and ``"gae"``: the value of a reward one turn later."""
    lam: Fraction = 0.95
    """λ of ``"gae"``: 1 for the observed return after a turn, 0 for the value head's estimate."""
    vf_coef: Amount = 0.1
    """Coefficient of the value loss of ``"gae"`` in the model's own weights; 0: the head learns from the
    model's features and does not change them."""
    cliprange_value: Positive | None = 0.2
    """How far a value moves in one update before its gradient is clipped, in standard deviations of the
    returns; ``null``: no clip."""
    value_learning_rate: Positive | None = None
    """Peak learning rate of the value head, on the policy's schedule; ``null``: ``learning_rate``."""
    step_advantage_weight: Amount = 1.0
    """Weight of the turns' part in ``"gigpo"`` (ω in its paper)."""
    step_states: StepStates = "snapshot"
    """What makes two states equal for ``"gigpo"``: the environment's whole state, if it has snapshots, or its
    observation, see :mod:`art_trainer.rollout.envs`."""
    scale_rewards: ScaleRewards = "none"
    """Divide advantages by the rewards' standard deviation in the group or batch, or not at all. TRL divides
    by the group's; that gives nearly constant groups the largest weight (Dr. GRPO, arXiv:2503.20783) and
    collapsed on guess-the-number (16 groups, learning rate 3e-3), which learns without it. For ``"gae"``
    ``"batch"`` also takes off the mean, PPO's usual whitening."""
    drop_zero_variance_groups: bool = True
    """Leave out groups whose rewards are all equal: their policy gradient is zero, and they cost a full pass
    (DAPO's dynamic sampling without the resampling). KL, entropy and the mean over tokens lack them too."""
    dynamic_sampling: bool = False
    """Resample groups without a training signal, because a member failed or all advantages are zero, until
    the step is full (DAPO, arXiv:2503.14476, section 3.2)."""
    max_resampled_groups: Count | None = None
    """Largest number of groups that a step resamples; ``None``: ``groups_per_step``, so that a step costs at
    most twice its rollout."""
    truncation_penalty: Amount = 0.0
    """Taken off the reward in training, as its term ``truncated``, for each reply that
    ``max_completion_length`` cut off: the overlong penalty of DAPO (arXiv:2503.14476, section 3.4) without
    its soft part. Else a reply that holds a valid call and goes on costs nothing."""
    mask_truncated_completions: bool = False
    """Leave episodes out of the loss (not out of the baseline) in which tokens were cut off: a reply by
    ``max_completion_length``, or the rest of the episode by a full context. A turn limit cuts off none."""

    logging_steps: Count = 1
    """Write metrics every N steps."""
    save_steps: Whole = 0
    """Write a checkpoint every N steps; 0: only at the end."""
    save_total_limit: Count | None = 2
    """Number of newest checkpoints to keep; ``None``: all."""
    eval_steps: Whole = 0
    """Evaluate every N steps, before the first and after the last; 0: never."""
    eval_episodes: Count = 128
    """Episodes in each evaluation: always the same seeds and held-out tasks, part of a larger split."""
    eval_split: str | None = None
    """Split of the evaluation tasks; ``None``: ``"validation"``, else ``"test"`` if there is one."""
    eval_temperature: Amount = 0.0
    """Sampling temperature in evaluation; 0 is greedy."""
    metric_for_best_model: BestMetric | None = None
    """Metric that decides which evaluation is best; ``None``: success if the environment reports it, else the
    reward. The checkpoint of the best evaluation is kept, whatever ``save_total_limit`` says."""
    greater_is_better: bool | None = None
    """Whether a larger ``metric_for_best_model`` is better; ``None``: yes, except for turns and invalid
    actions."""
    early_stopping_patience: Count | None = None
    """Stop after N evaluations in a row that do not improve on the best; ``None``: never."""
    early_stopping_threshold: Amount = 0.0
    """Smallest improvement that counts for ``early_stopping_patience``, in the metric's unit."""
    load_best_model_at_end: bool = False
    """End with the weights of the best evaluation; ``eval`` and ``export`` then use them."""
    kl_warning: Amount = 0.2
    """Warn if the KL divergence of an update from the sampling policy exceeds this, in nats per token; 0:
    never. Good updates stay below 0.1, mostly far below."""
    ratio_warning: Amount = 100.0
    """Warn if a token's probability changes by more than this factor within an update; 0: never."""
    entropy_warning: Fraction = 0.05
    """Warn if the entropy falls below this share of its value in the first steps; 0: never."""
    grad_norm_warning: Amount = 10.0
    """Warn if the gradient norm exceeds this many times the median of the last steps; 0: never."""
    keep_going: bool = False
    """Train on after ten steps in a row without a gradient, which otherwise end the run, see
    :mod:`art_trainer.tracking.stalls`."""
    log_episodes: Whole | None = None
    """Episodes of each step that are saved with their tokens, from the first groups; ``None``: all;
    0: none."""
    log_observations: bool = True
    """Save and log what the environment showed. ``False``, for private data, leaves observations, prompt
    tokens, facts and judges' explanations out of episodes, transcripts, reports and loggers. Replies stay,
    and may quote. ``art-trainer export-data`` cannot use such a run."""

    def __post_init__(self) -> None:
        check_fields(self)
        for check in (
            _check_needs,
            _check_clipping,
            _check_correction,
            _check_estimator,
            _check_groups,
            _check_evaluation,
        ):
            check(self)

    @property
    def clip_high(self) -> float:
        """The upper clipping distance, ``epsilon`` if ``epsilon_high`` is not set."""
        return self.epsilon if self.epsilon_high is None else self.epsilon_high

    @property
    def filters_sampling(self) -> bool:
        """Whether tokens are sampled from another distribution than the model's at the temperature."""
        return self.top_p < 1 or self.top_k > 0 or bool(self.min_p) or self.repetition_penalty != 1

    @property
    def has_critic(self) -> bool:
        """Whether a value head is trained and gives the baseline."""
        return self.advantage_estimator == "gae"

    @property
    def records_states(self) -> bool:
        """Whether a rollout records the environment's state before each reply."""
        return self.advantage_estimator == "gigpo" and self.step_states == "snapshot"

    @property
    def resampling_budget(self) -> int:
        """Largest number of groups that a step resamples; 0 without dynamic sampling."""
        if not self.dynamic_sampling:
            return 0
        return self.groups_per_step if self.max_resampled_groups is None else self.max_resampled_groups

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> GRPOConfig:
        """Build a config from a mapping, such as a YAML file's, see :func:`read_settings`."""
        return read_settings(cls, data)

    def to_mapping(self) -> dict[str, Any]:
        """All settings as a JSON-able dict, from which :meth:`from_mapping` rebuilds the config."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


# ----------------------------------------------------------------------
# Settings that are each in range but contradict each other.

DISCOUNTED = ("reward_to_go", "gigpo", "gae")
"""Estimators that use when a reward came."""
_USED_BY = {
    "gamma": DISCOUNTED,
    **dict.fromkeys(("step_advantage_weight", "step_states"), ("gigpo",)),
    **dict.fromkeys(("lam", "vf_coef", "cliprange_value", "value_learning_rate"), ("gae",)),
}
"""The estimators that use a setting, if not all do."""


def _refuse(condition: object, message: str) -> None:
    if condition:
        raise ConfigError(message)


_NEEDS = {
    **dict.fromkeys(
        ("importance_sampling_mode", "importance_sampling_clip_max", "importance_sampling_clip_min"),
        "importance_sampling_correction",
    ),
    "max_resampled_groups": "dynamic_sampling",
}
"""Settings that have no effect without another."""


def _check_needs(config: GRPOConfig) -> None:
    defaults = GRPOConfig.__dataclass_fields__
    for name, needed in _NEEDS.items():
        value = getattr(config, name)
        _refuse(
            value != defaults[name].default and not getattr(config, needed),
            f"{name} is {value!r}, but has no effect without {needed}: set {needed} too, or leave {name} out",
        )

    # https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1633
    _refuse(
        config.sharding == "fsdp2" and config.optim == "adamw_8bit",
        "optim is 'adamw_8bit', but bitsandbytes cannot step the pieces of weights that sharding 'fsdp2' "
        "makes: set optim to 'adamw', or sharding to 'none'",
    )


def _check_clipping(config: GRPOConfig) -> None:
    cispo = config.loss_type == "cispo"
    _refuse(
        cispo and config.clip_high < 1,
        f"epsilon_high is {config.clip_high}, but for loss_type 'cispo' it is the highest ratio a token is "
        "weighed with (TRL's meaning), and fresh tokens have 1: set it above 1 (5.0)",
    )
    _refuse(
        cispo and config.delta is not None,
        f"delta is {config.delta}, but loss_type 'cispo' bounds ratios by epsilon_high: set delta to null",
    )
    _refuse(
        config.delta is not None and config.delta <= 1 + config.clip_high,
        f"delta is {config.delta}, but ratios up to 1 + epsilon_high = {1 + config.clip_high:g} are not "
        "clipped: set it above that, or null for no bound",
    )


def _check_correction(config: GRPOConfig) -> None:
    low, high = config.importance_sampling_clip_min, config.importance_sampling_clip_max
    mode, corrects = config.importance_sampling_mode, config.importance_sampling_correction
    _refuse(
        low is not None and high is not None and low >= high,
        f"importance_sampling_clip_min ({low}) is not below importance_sampling_clip_max ({high})",
    )
    _refuse(
        config.max_staleness and not corrects,
        f"max_staleness is {config.max_staleness}, so attempts are sampled by older weights than learn from "
        "them: set importance_sampling_correction to true, which weighs them by how far the weights have "
        "moved, or max_staleness to 0",
    )
    _refuse(
        corrects and mode.endswith("truncate") and low is None and high is None,
        f"importance_sampling_mode is {mode!r}, but there is nothing to truncate at: set "
        "importance_sampling_clip_max (3.0)",
    )


def _check_estimator(config: GRPOConfig) -> None:
    estimator, scale = config.advantage_estimator, config.scale_rewards
    for field in dataclasses.fields(config):
        value, users = getattr(config, field.name), _USED_BY.get(field.name, (estimator,))
        _refuse(
            value != field.default and estimator not in users,
            f"{field.name} is {value}, but advantage_estimator {estimator!r} does not use it: set "
            f"advantage_estimator to {' or '.join(map(repr, users))}, or {field.name} to {field.default}",
        )
    _refuse(
        scale == "batch" and estimator == "gigpo",
        "scale_rewards is 'batch', but 'gigpo' compares within groups: set 'none', or 'group' to divide by "
        "each group's standard deviation",
    )
    _refuse(
        scale == "group" and estimator == "gae",
        "scale_rewards is 'group', but advantage_estimator 'gae' compares with a value head and not with a "
        "group: set 'batch' to whiten advantages over the batch, or 'none'",
    )


def _check_groups(config: GRPOConfig) -> None:
    _refuse(
        config.num_generations < 2 and not config.has_critic,
        "num_generations is 1, but GRPO's baseline is the mean over a group: set at least 2, or "
        "advantage_estimator to 'gae', whose baseline is a value head",
    )
    _refuse(
        config.steps_per_generation > config.groups_per_step,
        f"steps_per_generation ({config.steps_per_generation}) is above groups_per_step "
        f"({config.groups_per_step}): an optimizer step needs at least one group",
    )
    _refuse(
        config.dynamic_sampling and config.has_critic,
        f"dynamic_sampling is on, but with advantage_estimator {config.advantage_estimator!r} a group of "
        "equal rewards teaches too: switch it off",
    )


def _check_evaluation(config: GRPOConfig) -> None:
    for name in ("early_stopping_patience", "load_best_model_at_end", "metric_for_best_model"):
        value = getattr(config, name)
        _refuse(
            value and not config.eval_steps,
            f"{name} is {value!r}, but nothing is evaluated in training: set eval_steps too, such as 10",
        )


# ----------------------------------------------------------------------
# Reading settings classes from mappings.

T = TypeVar("T")


@functools.cache
def field_types(settings_class: Any) -> dict[str, Any]:
    """The type of each field of a settings class, by name, with its :class:`Check`."""
    return get_type_hints(settings_class, include_extras=True)


@functools.cache
def field_docs(settings_class: type) -> dict[str, str]:
    """The text under each field of a settings class, by name."""
    found = re.findall(
        r'^    (\w+): .*\n    """((?:.|\n)*?)"""', inspect.getsource(settings_class), re.MULTILINE
    )
    return {name: inspect.cleandoc(text) for name, text in found}


def read_settings(settings_class: type[T], data: Mapping[str, Any]) -> T:
    """Build a settings class from a mapping, such as a YAML file's.

    Raises:
        ConfigError: If a key is unknown (the near miss is named), or of a value, see :func:`check_fields`.
    """
    known = field_types(cast(Any, settings_class))
    for key in data:
        if key not in known:
            raise ConfigError(f"unknown key {key!r}{did_you_mean(str(key), known)}")
    return settings_class(**data)


def check_fields(settings: object) -> None:
    """Check each field's type and its range (a :class:`Check` in its type) or choices (a ``Literal``).

    A number written as text becomes a number: YAML takes ``1e-3`` for text.

    Raises:
        ConfigError: Names the setting, its value and what to set.
    """
    for name, field_type in field_types(cast(Any, type(settings))).items():
        value, kinds = _converted(name, field_type, getattr(settings, name)), _alternatives(field_type)
        object.__setattr__(settings, name, value)  # the settings are frozen
        for kind in kinds if value is not None else ():
            if get_origin(kind) is Literal and value not in get_args(kind):
                choices = get_args(kind)
                wanted = f"one of {', '.join(map(repr, choices))}{did_you_mean(str(value), choices)}"
                raise ConfigError(f"{name} is {value!r}: set {wanted}")
            for check in getattr(kind, "__metadata__", ()):
                none = ", or null" if types.NoneType in kinds else ""
                _refuse(not check.holds(value), f"{name} is {value!r}: set {check.wanted}{none}")


def _alternatives(field_type: Any) -> tuple[Any, ...]:
    return get_args(field_type) if get_origin(field_type) in (Union, types.UnionType) else (field_type,)


def _converted(key: str, field_type: Any, value: Any) -> Any:
    """Return ``value`` as ``field_type``, or raise naming the type that is wanted."""
    plain = (
        get_args(kind)[0] if hasattr(kind, "__metadata__") else kind for kind in _alternatives(field_type)
    )
    kinds = [get_origin(kind) or kind for kind in plain]
    if (value is None and types.NoneType in kinds) or Literal in kinds:
        return value
    if tuple in kinds and isinstance(value, str):
        return (value,)
    if tuple in kinds and isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if float in kinds and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            pass
    elif int in kinds and isinstance(value, float) and value.is_integer():
        return int(value)
    elif type(value) in kinds:
        return value
    words = {types.NoneType: "null", tuple: "list of texts"}
    names = " or ".join(words.get(kind, kind.__name__) for kind in kinds)
    raise ConfigError(f"{key} is {value!r} ({type(value).__name__}): set a value of type {names}")


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """Timeouts and retries of leases."""

    lease_seconds: float = 60.0
    """A lease that is not renewed for this long expires."""
    max_lease_seconds: float = 3600.0
    """A lease expires after this long even if it is renewed: an environment may hang in a live worker."""
    max_attempts: int = 3
    """An attempt that fails or expires this often ends as ``POLICY_ERROR``."""
