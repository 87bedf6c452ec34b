"""TRL's ``rollout_func``: whole episodes, sampled in one batch with a cache that is kept from turn to turn.

TRL passes the prompts of a batch, a group's repeated for each of its members, and its trainer. It expects
tokens with a mask of those to train on; further columns go to the reward functions. Only the prompt of a row
is known, so the prompt holds seed and task, see :func:`~art_trainer.trl.task_dataset`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from art_gym.errors import did_you_mean
from art_trainer.errors import ConfigError, TrainerError
from art_trainer.inference.policy import Conversation, Reply
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.rollout.envs import EnvPool
from art_trainer.rollout.episodes import rollout_episodes
from art_trainer.trl.dataset import Messages, check_start, make_env, reset_options
from art_trainer.trl.response_template import require_chat_template
from art_trainer.types import Ending, Episode, EpisodeSpec, TokenHistory

_log = logging.getLogger(__name__)
_SAMPLING = [field.name for field in fields(SamplingParams) if field.name != "stop_token_ids"]
_GENERATION = [*_SAMPLING, "do_sample"]


class GymRollout:
    """Plays the rows of a :func:`~art_trainer.trl.task_dataset` for ``GRPOTrainer(rollout_func=…)``.

    Sampling follows the fields of the trainer's ``GRPOConfig`` that are named as in
    :class:`~art_trainer.inference.sampling.SamplingParams`; ``generation_kwargs`` overrides them.
    ``max_completion_length`` is, as everywhere in TRL, the token budget of a whole episode after its prompt:
    an episode that has used it up ends, and the excess is cut off; ``generation_kwargs["max_new_tokens"]`` is
    that of one reply. Dropout is off while sampling. The same seeds sample the same episodes, also after
    resuming from a checkpoint.

    Args:
        datasets: The trainer's datasets, to train and to evaluate on; all of one environment.

    Raises:
        ConfigError: If the rows are not of one environment.
    """

    def __init__(self, *datasets: Any) -> None:
        env_spec = _one_environment(datasets)
        self._pool = EnvPool(lambda: make_env(env_spec))
        self._policy: TransformersPolicy | None = None
        self._calls = (0, 0)

    def __call__(self, prompts: Sequence[Messages], trainer: Any) -> dict[str, list[Any]]:
        """Play an episode for each prompt.

        Returns:
            ``prompt_ids``, ``completion_ids``, ``logprobs`` and ``env_mask`` for the trainer; ``env_reward``
            (``None`` if the episode failed), ``success`` and ``episode`` (the
            :class:`~art_trainer.types.Episode`) for reward functions.

        Raises:
            ConfigError: For a prompt that is not of :func:`~art_trainer.trl.task_dataset`, an environment
                that begins otherwise than the prompt says, an unsupported setting of the trainer, or a chat
                template that rewrites earlier turns: TRL trains one sequence an episode.
            TrainerError: If sampling failed.
        """
        policy = self._policy_of(trainer)
        budget = int(trainer.args.max_completion_length)
        episodes = rollout_episodes(_Budgeted(policy, budget), self._pool, self._starts(prompts, trainer))
        columns: dict[str, list[Any]] = {}
        for episode, prompt in zip(episodes, prompts, strict=True):
            _check(episode, prompt)
            row = _tokens(policy, episode, prompt, budget) | {
                "env_reward": None if episode.failed else episode.reward,
                "success": episode.success,
                "episode": episode,
            }
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
        return columns

    def _starts(self, prompts: Sequence[Messages], trainer: Any) -> list[EpisodeSpec]:
        """Return the episodes' seeds and tasks; each draws its own random numbers."""
        keys = [_start_of(prompt) for prompt in prompts]
        groups = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        # Calls are counted within a step, so that a resumed run draws the same numbers.
        step = int(trainer.state.global_step)
        self._calls = (step, self._calls[1] + 1 if self._calls[0] == step else 0)
        root = (int(trainer.args.seed), *self._calls, int(trainer.accelerator.process_index))
        starts = []
        for member, key in enumerate(keys):
            start = json.loads(key)
            options = reset_options(start["task"])
            starts.append(EpisodeSpec(int(start["seed"]), options, groups[key], (*root, member)))
        return starts

    def _policy_of(self, trainer: Any) -> TransformersPolicy:
        model = trainer.accelerator.unwrap_model(trainer.model)
        sampling = _sampling_of(trainer.args)
        if self._policy is None or self._policy.model is not model:
            _check_trainer(trainer)
            self._policy = TransformersPolicy(model, trainer.processing_class, sampling=sampling)
        elif self._policy.sampling != sampling:
            self._policy.sampling = sampling
        return self._policy


class _Budgeted:
    """A policy that gives no further reply in an episode that has used up its token budget."""

    def __init__(self, policy: TransformersPolicy, budget: int) -> None:
        self.name, self.version = policy.name, policy.version
        self._policy = policy
        self._budget = budget
        self._spent: dict[Conversation, int] = {}
        self._full: list[Conversation] = []

    def submit(self, conversation: Conversation) -> None:
        """Ask for the next reply."""
        spent = 0
        if conversation in self._spent:
            observation = str(conversation.messages[-1]["content"])
            spent = self._spent[conversation] + len(self._policy.format.encode(observation))
        self._spent[conversation] = spent
        if spent >= self._budget:
            self._full.append(conversation)
        else:
            self._policy.submit(conversation)

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """Return the replies that are ready."""
        if self._full:
            full, self._full = self._full, []
            return [(conversation, Reply("", stop="length", context_full=True)) for conversation in full]
        replies = self._policy.collect()
        for conversation, reply in replies:
            self._spent[conversation] += reply.token_count
        return replies

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Free the conversation's resources."""
        self._spent.pop(conversation, None)
        if conversation in self._full:
            self._full.remove(conversation)
        return self._policy.release(conversation)


def _one_environment(datasets: Sequence[Any]) -> str:
    """Return the environment of all rows."""
    for dataset in datasets:
        if "env" not in dataset.column_names:
            raise ConfigError("the dataset has no column `env`: make it with art_trainer.trl.task_dataset")
    environments = sorted({env_spec for dataset in datasets for env_spec in dataset["env"]})
    if len(environments) != 1:
        raise ConfigError(f"the rows of a rollout's datasets are of one environment, got {environments}")
    return str(environments[0])


def _start_of(prompt: Messages) -> str:
    """Return seed and task of a prompt as JSON."""
    start = prompt[-1].get("start") if not isinstance(prompt, str) else None
    if start is None:
        raise ConfigError(
            "a prompt's last message has no seed and task under `start`: give "
            "the trainer the dataset as art_trainer.trl.task_dataset makes it"
        )
    return str(start)


def _check(episode: Episode, prompt: Messages) -> None:
    """Log an environment's failure; refuse one that begins otherwise than its prompt."""
    if episode.ending is Ending.POLICY_ERROR:
        raise TrainerError(f"sampling failed in {episode.env_id}: {episode.error}")
    if episode.failed:
        _log.warning("%s failed, its episode is left out: %s", episode.env_id, episode.error)
    if episode.observation:
        check_start(episode.env_id, episode.seed, episode.task_id, episode.observation, prompt)


def _tokens(policy: TransformersPolicy, episode: Episode, prompt: Messages, budget: int) -> dict[str, Any]:
    """Return an episode's columns for TRL, with at most ``budget`` tokens after the prompt."""
    if len(episode.histories) > 1:
        raise ConfigError(
            "the chat template rewrites earlier turns, so this episode is "
            f"{len(episode.histories)} token sequences, and TRL trains one an episode: use a template "
            "that keeps the past, such as trl.get_training_chat_template(tokenizer) returns"
        )
    if not episode.histories:
        # Nothing was sampled: TRL needs a completion, so give it one token that is not trained on.
        end = policy.format.end_of_turn
        tokens = policy.format.prompt(prompt, episode.tools)
        return {"prompt_ids": tokens, "completion_ids": [end], "logprobs": [0.0], "env_mask": [0]}
    history = episode.histories[0]
    start = history.prompt_length
    kept = slice(start, start + budget)
    mask = [int(sampled) for sampled in history.action_mask[kept]]
    logprobs = iter(history.logprobs)
    return {
        "prompt_ids": list(history.token_ids[:start]),
        "completion_ids": list(history.token_ids[kept]),
        "logprobs": [next(logprobs) if sampled else 0.0 for sampled in mask],
        "env_mask": mask,
    }


def _sampling_of(args: Any) -> SamplingParams:
    """Return the sampling parameters of the trainer's configuration."""
    asked = dict(args.generation_kwargs or {})
    for name in asked:
        if name not in _GENERATION:
            raise ConfigError(
                f"GymRollout knows no generation_kwargs `{name}`{did_you_mean(name, _GENERATION)}"
            )
    found: dict[str, Any] = {name: getattr(args, name, None) for name in _SAMPLING}
    found |= {"max_new_tokens": args.max_completion_length, **asked}
    if not found.pop("do_sample", True):
        found["temperature"] = 0.0
    strings = found.get("stop_strings") or ()
    found["stop_strings"] = (strings,) if isinstance(strings, str) else tuple(strings)
    return SamplingParams(**{name: value for name, value in found.items() if value is not None})


def _check_trainer(trainer: Any) -> None:
    """Refuse settings that this rollout does not support."""
    require_chat_template(trainer.processing_class)
    args = trainer.args
    if args.use_vllm:
        raise ConfigError("GymRollout samples from the trainer's own model: set use_vllm=False")
    if args.chat_template_kwargs:
        raise ConfigError(
            f"GymRollout cannot pass chat_template_kwargs={args.chat_template_kwargs} to the chat template: "
            "set the variables in the template itself, as in {% set enable_thinking = false %}"
        )
    zero = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    if trainer.is_fsdp_enabled or (zero is not None and zero.zero_stage == 3):
        raise ConfigError(
            "GymRollout samples on each process by itself, which needs the whole model there: use DDP or "
            "ZeRO up to stage 2, or this project's own trainer"
        )
