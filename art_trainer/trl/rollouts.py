"""TRL's ``rollout_func``: whole episodes, sampled in one batch with a cache that is kept from turn to turn.

TRL hands over the prompts of a batch, a group's repeated for each of its members, and its trainer; it takes
back tokens with a mask of those to train on, and whatever else is given per episode goes to the reward
functions. The prompt is all it tells about a row, so the prompt itself says what the environment is reset
with, see :func:`~art_trainer.trl.task_dataset`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from art_gym.errors import did_you_mean
from art_trainer.env_pool import EnvPool
from art_trainer.episodes import Ending, Episode, TokenHistory
from art_trainer.errors import ConfigError, TrainerError
from art_trainer.policy import Conversation, Reply
from art_trainer.rollout import rollout
from art_trainer.sampler import SamplingParams
from art_trainer.starts import Start
from art_trainer.transformers_policy import TransformersPolicy
from art_trainer.trl.dataset import make_env, reset_options
from art_trainer.trl.free_text import require_chat_template
from art_trainer.trl.requirements import require_trl

Messages = Sequence[Mapping[str, Any]]
_log = logging.getLogger(__name__)

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
_GENERATION = (*_SAMPLING, "do_sample", "stop_strings")


class GymRollout:
    """Plays the rows of a :func:`~art_trainer.trl.task_dataset` for ``GRPOTrainer(rollout_func=…)``.

    Sampling follows the trainer's ``GRPOConfig``: ``temperature``, ``top_p``, ``top_k``, ``min_p``,
    ``repetition_penalty``, and ``generation_kwargs`` over them. ``max_completion_length`` is, as everywhere
    in TRL, the budget of a whole episode after its prompt: an episode that has used it up ends, and what it
    has too much is cut off. Dropout is off while sampling. The same seeds sample the same episodes, also
    in a run that was resumed from a checkpoint.

    Args:
        datasets: The rows that the trainer is given, to train and to evaluate on; all of one environment.
        max_new_tokens: Most tokens of one reply; by default what ``generation_kwargs`` says, or else
            ``max_completion_length``.
        max_batch: Most episodes that have a row of the cache at one time.
        env_threads: Threads that step environments while the model samples, see
            :func:`~art_trainer.rollout.rollout`.

    Raises:
        ModuleNotFoundError: Without TRL.
        ConfigError: Where TRL is too old, or the rows are not of one environment.
    """

    def __init__(
        self, *datasets: Any, max_new_tokens: int | None = None, max_batch: int = 256, env_threads: int = 0
    ) -> None:
        require_trl("rollout_func")
        self._pool = EnvPool(lambda: make_env(made_by))
        made_by = _one_environment(datasets)
        self._max_new_tokens = max_new_tokens
        self._max_batch = max_batch
        self._env_threads = env_threads
        self._policy: TransformersPolicy | None = None
        self._calls = (0, 0)

    def __call__(self, prompts: Sequence[Messages], trainer: Any) -> dict[str, list[Any]]:
        """Play an episode for each prompt.

        Returns:
            ``prompt_ids``, ``completion_ids``, ``logprobs`` and ``env_mask`` for the trainer; ``env_reward``
            (``None`` where the episode failed), ``success`` and ``episode`` (the
            :class:`~art_trainer.episodes.Episode`) for reward functions.

        Raises:
            ConfigError: For a prompt that :func:`~art_trainer.trl.task_dataset` did not make, an environment
                that begins otherwise than the prompt says, a setting of the trainer's that this rollout
                cannot follow, or a chat template that rewrites what was said before: TRL trains one sequence
                an episode.
            TrainerError: Where sampling itself failed.
        """
        policy = self._policy_of(trainer)
        budget = int(trainer.args.max_completion_length)
        starts = self._starts(prompts, trainer)
        episodes = rollout(_Budgeted(policy, budget), self._pool, starts, env_threads=self._env_threads)
        columns: dict[str, list[Any]] = {
            name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask")
        }
        for episode, prompt in zip(episodes, prompts, strict=True):
            _check(episode, prompt)
            for name, value in _tokens(policy, episode, prompt, budget).items():
                columns[name].append(value)
        columns["env_reward"] = [None if e.failed else e.reward for e in episodes]
        columns["success"] = [e.success for e in episodes]
        columns["episode"] = list(episodes)
        return columns

    def _starts(self, prompts: Sequence[Messages], trainer: Any) -> list[Start]:
        """Where the episodes start; each draws its own random numbers."""
        keys = [_start_of(prompt) for prompt in prompts]
        groups = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        # Counted within a step of the trainer's, so that a resumed run goes on with the same numbers.
        step = int(trainer.state.global_step)
        self._calls = (step, self._calls[1] + 1 if self._calls[0] == step else 0)
        root = (int(trainer.args.seed), *self._calls, int(trainer.accelerator.process_index))
        starts = []
        for member, key in enumerate(keys):
            start = json.loads(key)
            options = reset_options(start["task"])
            starts.append(Start(int(start["seed"]), options, groups[key], (*root, member)))
        return starts

    def _policy_of(self, trainer: Any) -> TransformersPolicy:
        model = trainer.accelerator.unwrap_model(trainer.model)
        sampling = _sampling_of(trainer.args, self._max_new_tokens)
        if self._policy is None or self._policy.model is not model:
            _check_trainer(trainer)
            self._policy = TransformersPolicy(
                model, trainer.processing_class, sampling=sampling, max_batch=self._max_batch
            )
        elif self._policy.sampling != sampling:
            self._policy.sampling = sampling
        return self._policy


class _Budgeted:
    """A policy that gives no further reply in an episode that is about as long as TRL trains."""

    def __init__(self, policy: TransformersPolicy, budget: int) -> None:
        self.name, self.version = policy.name, policy.version
        self._policy = policy
        self._budget = budget
        self._spent: dict[Conversation, int] = {}
        self._full: list[Conversation] = []

    def submit(self, conversation: Conversation) -> None:
        """Ask for the next reply."""
        if conversation in self._spent:
            observation = str(conversation.messages[-1]["content"])
            self._spent[conversation] += len(self._policy.format.encode(observation))
        else:
            self._spent[conversation] = 0
        if self._spent[conversation] >= self._budget:
            self._full.append(conversation)
        else:
            self._policy.submit(conversation)

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """The replies that are ready, or word that there are no more."""
        if self._full:
            full, self._full = self._full, []
            return [(conversation, Reply("", stop="length", context_full=True)) for conversation in full]
        replies = self._policy.collect()
        for conversation, reply in replies:
            self._spent[conversation] += reply.token_count
        return replies

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Give the conversation up."""
        self._spent.pop(conversation, None)
        if conversation in self._full:
            self._full.remove(conversation)
        return self._policy.release(conversation)


def _one_environment(datasets: Sequence[Any]) -> str:
    """What all rows were made by."""
    for dataset in datasets:
        if "env" not in dataset.column_names:
            raise ConfigError("the dataset has no column `env`: make it with art_trainer.trl.task_dataset")
    environments = sorted({made_by for dataset in datasets for made_by in dataset["env"]})
    if len(environments) != 1:
        raise ConfigError(f"the rows of a rollout's datasets are of one environment, got {environments}")
    return str(environments[0])


def _start_of(prompt: Messages) -> str:
    """What a prompt says about its start."""
    start = prompt[-1].get("start") if not isinstance(prompt, str) else None
    if start is None:
        raise ConfigError(
            "a prompt's last message does not say what the environment is reset with, under `start`: give "
            "the trainer the dataset as art_trainer.trl.task_dataset makes it"
        )
    return str(start)


def _check(episode: Episode, prompt: Messages) -> None:
    """Tell what an environment did wrong; refuse one that begins otherwise than the dataset says."""
    if episode.ending is Ending.POLICY_ERROR:
        raise TrainerError(f"sampling failed in {episode.env_id}: {episode.error}")
    if episode.failed:
        _log.warning("%s failed, its episode is left out: %s", episode.env_id, episode.error)
    asked = "\n\n".join(message["content"] for message in prompt)
    if episode.observation not in (asked, ""):
        raise ConfigError(
            f"{episode.env_id} with seed {episode.seed} and task {episode.task_id!r} does not begin with "
            "what the dataset's prompt says: leave the prompts as task_dataset made them, and check that the "
            "environment draws all its chance from np_random"
        )


def _tokens(
    policy: TransformersPolicy, episode: Episode, prompt: Messages, budget: int
) -> dict[str, list[Any]]:
    """An episode as TRL takes it, with at most ``budget`` tokens after the prompt."""
    if len(episode.histories) > 1:
        raise ConfigError(
            "the chat template rewrites what was said before, so this episode is "
            f"{len(episode.histories)} token sequences, and TRL trains one an episode: use a template "
            "that keeps the past, such as trl.get_training_chat_template(tokenizer) gives"
        )
    if not episode.histories:
        # Nothing was sampled: a token that is not trained on, since TRL takes no empty completion.
        end = policy.format.end_of_turn
        tokens = policy.format.prompt(prompt, episode.tools)
        return {"prompt_ids": tokens, "completion_ids": [end], "logprobs": [0.0], "env_mask": [0]}
    history = episode.histories[0]
    mask = [int(sampled) for sampled in history.action_mask]
    logprobs = iter(history.logprobs)
    start = history.prompt_length
    stop = start + budget
    return {
        "prompt_ids": list(history.token_ids[:start]),
        "completion_ids": list(history.token_ids[start:stop]),
        "logprobs": [next(logprobs) if sampled else 0.0 for sampled in mask[start:stop]],
        "env_mask": mask[start:stop],
    }


def _sampling_of(args: Any, max_new_tokens: int | None) -> SamplingParams:
    """How the trainer's configuration says replies are sampled."""
    asked = dict(args.generation_kwargs or {})
    for name in asked:
        if name not in _GENERATION:
            raise ConfigError(
                f"GymRollout knows no generation_kwargs `{name}`{did_you_mean(name, _GENERATION)}"
            )
    found: dict[str, Any] = {name: getattr(args, name, None) for name in _SAMPLING}
    found["max_new_tokens"] = args.max_completion_length
    found |= asked
    if max_new_tokens is not None:
        found["max_new_tokens"] = max_new_tokens
    if not found.pop("do_sample", True):
        found["temperature"] = 0.0
    strings = found.get("stop_strings") or ()
    found["stop_strings"] = (strings,) if isinstance(strings, str) else tuple(strings)
    return SamplingParams(**{name: value for name, value in found.items() if value is not None})


def _check_trainer(trainer: Any) -> None:
    """Refuse what this rollout cannot follow."""
    require_chat_template(trainer.processing_class)
    args = trainer.args
    if args.use_vllm:
        raise ConfigError("GymRollout samples from the trainer's own model: set use_vllm=False")
    if args.chat_template_kwargs:
        raise ConfigError(
            f"GymRollout cannot hand chat_template_kwargs={args.chat_template_kwargs} to the chat template: "
            "set the variables in the template itself, as in {% set enable_thinking = false %}"
        )
    zero = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    if trainer.is_fsdp_enabled or (zero is not None and zero.zero_stage == 3):
        raise ConfigError(
            "GymRollout samples on each process by itself, which needs the whole model there: use DDP or "
            "ZeRO up to stage 2, or this project's own trainer"
        )
