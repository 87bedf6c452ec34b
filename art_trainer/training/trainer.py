"""GRPO from beginning to end, as one call or step by step.

::

    trainer = GRPOTrainer(policy, "art/Email-v0", GRPOConfig(max_steps=100))
    trainer.train()

is the same as ::

    while trainer.step < trainer.config.max_steps:
        groups = trainer.collect_episodes()
        metrics = trainer.update_policy(groups)
    trainer.save_checkpoint("runs/mine")

plus evaluations, logs and checkpoints along the way. It blocks its thread and no other: in a notebook call
it, in asyncio ``await asyncio.to_thread(trainer.train)``.

Started in several processes, by torchrun or ``accelerate launch``, the same program trains one model in all
of them, to the result of one process: see :mod:`art_trainer.training.distributed`. The main process writes
and reports.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from art_gym.wrappers.judging import JudgeFailedError
from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError, DivergedError, EngineError, StalledError
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.trainable_policy import TrainablePolicy
from art_trainer.models.rotary import check_context
from art_trainer.models.weights_io import load_model_weights
from art_trainer.rollout.backend import LocalBackend, RolloutBackend, SelfContainedBackend
from art_trainer.rollout.envs import EnvSource
from art_trainer.rollout.episodes import with_truncation_penalty
from art_trainer.rollout.evaluate import Evaluation
from art_trainer.rollout.judge_rewards import JudgeRewards
from art_trainer.signals import Interruptible
from art_trainer.tracking.callbacks import Outcome, RunCallback, TrainerCallback, WarningCallback
from art_trainer.tracking.episode_schema import episode_from_json, episode_to_json, without_observations
from art_trainer.tracking.health import HealthMonitor, RunWarning
from art_trainer.tracking.run_dir import RunFolder, checkpoint_path
from art_trainer.training.checkpoint import (
    prune_checkpoints,
    read_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)
from art_trainer.training.distributed import ProcessGroup, current_process_group, run_on_all_ranks
from art_trainer.training.early_stopping import EarlyStopping
from art_trainer.training.group_filter import resample_zero_variance_groups
from art_trainer.training.learner import Learner
from art_trainer.training.metrics import staleness
from art_trainer.types import Episode, Group, GroupSpec

_log = logging.getLogger(__name__)
_TASKS, _SAMPLING, _FRESH_TASKS, _FRESH_SAMPLING = 2, 3, 4, 5
"""Streams of randomness below ``config.seed``; the learner's own is 1."""
EVALUATION_SEED = 1_000_003
"""Added to ``config.seed`` for evaluations, whose episodes no training step draws."""


class GRPOTrainer:
    """Trains a policy on an environment with text in and text out.

    Args:
        policy: The policy; its sampling follows the config (temperature, filters, length of a reply).
        env: An environment's id, a callable that makes one, or one made by ``gym.make``; ``None`` if the
            backend needs none, such as :class:`~art_trainer.serving.agents.rollouts.AgentBackend`.
        config: The settings.
        eval_env: Where evaluations are played, such as whole games if training cuts them short; by
            default the same as ``env``.
        callbacks: Called for each step and episode.
        reward: What is paid in training in place of the environment's own reward; evaluations keep that.
        processes: Who else trains; by default the processes of PyTorch's process group, if there is one.
        backend: Who plays the groups of training; by default this process. The trainer closes it.

    Attributes:
        learner: Holds optimizer and schedule.
        log: Where the run's files go, ``config.output_dir``.
        collected: Batches of episodes collected so far; which tasks come next depends on it alone.
    """

    def __init__(
        self,
        policy: TrainablePolicy,
        env: EnvSource | None,
        config: GRPOConfig | None = None,
        *,
        eval_env: EnvSource | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        reward: JudgeRewards | None = None,
        processes: ProcessGroup | None = None,
        backend: RolloutBackend | None = None,
    ) -> None:
        self.config = config or GRPOConfig()
        trained = "one that can be trained, as TransformersPolicy.from_pretrained gives"
        _require("policy", policy, TrainablePolicy, trained)
        _require("config", self.config, GRPOConfig, "a GRPOConfig")
        _require("reward", reward, JudgeRewards | None, "a JudgeRewards, or None for the environment's own")
        for callback in callbacks:
            _require("each callback", callback, TrainerCallback, "an object with on_step and on_episode")
        self.policy = policy
        self.policy.sampling = SamplingParams.for_training(self.config, policy.sampling.stop_token_ids)
        self.callbacks = tuple(callbacks)
        self.reward = reward
        self.processes = processes or current_process_group()
        check_context(policy.model, policy.max_context)
        room, reply = policy.max_context, self.config.max_completion_length
        if room is not None and reply >= room:
            raise ConfigError(
                f"max_completion_length is {reply}, but {policy.name} holds {room} tokens of prompt and "
                f"reply together, so that no reply would begin: set it well below, such as {room // 4}"
            )
        self.learner = Learner(policy.model, self.config, self.processes)
        self.log = RunFolder(Path(self.config.output_dir))
        self._health = HealthMonitor(self.config, policy.name)
        self._warnings: list[RunWarning] = []
        self._best = EarlyStopping(self.config)
        self._interruptible = Interruptible()
        self.collected = 0
        self._replaced: list[Group] = []
        self._options: Mapping[str, Any] | None = None
        if env is not None:
            local = LocalBackend(policy, env, eval_env, self.config)
            self._options = local.training_options()
            self._evaluations: SelfContainedBackend = local
            self.backend = backend or local
        elif isinstance(backend, SelfContainedBackend):
            _refuse_settings_of_env(eval_env, self.config)
            self.backend = self._evaluations = backend
        else:
            raise ConfigError(
                "env is None: name an environment, or give a backend that needs none, such as AgentBackend"
            )
        self._evaluated: Evaluation | None = None
        self._rollout_seconds = 0.0
        self._learned_from = 0
        self._stopping = False

    @property
    def step(self) -> int:
        """Training steps done."""
        return self.learner.step

    def collect_episodes(self) -> list[Group]:
        """Play the next batch: ``groups_per_step`` tasks, ``num_generations`` attempts at each.

        With ``dynamic_sampling`` tasks that teach nothing are replaced by others.

        Raises:
            StalledError: After ten steps in a row without a gradient, unless ``keep_going`` is set.
        """
        self._raise_if_stalled()
        start = time.perf_counter()
        run_on_all_ranks(self.processes, self._publish)
        groups = self._play(self._tasks(self.collected))
        rounds = itertools.count()

        def play_fresh(count: int) -> list[Group]:
            place = self.collected, next(rounds)
            return self._play(
                self._draw(self.collected, count, (_FRESH_TASKS, *place), (_FRESH_SAMPLING, *place))
            )

        groups, self._replaced = resample_zero_variance_groups(groups, play_fresh, self.config)
        self.collected += 1
        self._rollout_seconds = time.perf_counter() - start
        return groups

    def update_policy(self, groups: Sequence[Group]) -> dict[str, float]:
        """Learn from a batch, and warn of what :mod:`art_trainer.tracking.health` finds in its metrics.

        Returns:
            ``policy_loss``, ``kl``, ``reward`` and the rest of :mod:`art_trainer.training.metrics`, with
            ``step`` (from 1), ``time/rollout``, ``time/update`` (seconds) and ``tokens_per_second`` (sampled
            ones); with ``max_staleness`` also ``staleness``.

        Raises:
            DivergedError: If updates keep failing.
        """
        metrics = self._update(groups)
        self._warnings = [*self._health.check(self.step, metrics, groups), *self._shortages()]
        if self.processes.is_main:
            self._warn()
        return metrics

    def _update(self, groups: Sequence[Group]) -> dict[str, float]:
        metrics = self.learner.update(groups, self._replaced)
        self._replaced = []
        if self.config.max_staleness:
            metrics["staleness"] = staleness(groups, self.policy.version)
        self.policy.version += 1
        self._learned_from = self.collected
        metrics["time/rollout"] = self._rollout_seconds
        seconds = self._rollout_seconds + metrics["time/update"]
        metrics["tokens_per_second"] = metrics.get("num_tokens", 0.0) / seconds
        return {"step": float(self.step), **metrics}

    def evaluate(self) -> dict[str, float]:
        """Play the evaluation episodes at ``eval_temperature``; return means, prefixed with ``eval_``.

        The main process plays, the others wait.
        """
        found: dict[str, float] = run_on_all_ranks(self.processes, self._evaluate_on_main)[0]
        return dict(found)

    def _evaluate_on_main(self) -> dict[str, float] | None:
        if not self.processes.is_main:
            return None
        config = self.config
        with self.policy.evaluating(config):
            result = self._evaluations.evaluate(
                episodes=config.eval_episodes, seed=config.seed + EVALUATION_SEED
            )
        self._evaluated = result
        metrics = {"eval_turns": result.turns, "eval_invalid_actions": result.invalid_rate}
        if result.reward is not None:
            metrics["eval_reward"] = result.reward.value
        if result.success is not None:
            metrics["eval_success"] = result.success.value
        return metrics

    def train(self) -> None:
        """Train up to ``max_steps``, from where the trainer stands.

        Ctrl-C ends the run at the next moment at which no update is half done, writes a checkpoint and raises
        ``KeyboardInterrupt`` again; a second Ctrl-C ends it at once, without one.

        SIGINT to one of several processes, or :meth:`stop` in one, stops all of them at the same step.

        Raises:
            JudgeFailedError: If the judge's budget is spent or it fails for good; a checkpoint is saved.
            EngineError: If the engine that samples is lost; a checkpoint is written too.
            DivergedError: If updates keep failing; a checkpoint of the last finite weights is written.
            StalledError: After ten steps in a row without a gradient, unless ``keep_going`` is set; a
                checkpoint is written.
            ProcessLostError: If another process is gone.
        """
        config = self.config
        self._stopping = self._best.should_stop
        if self.processes.is_main:
            ended = self._stopping or self.step >= config.max_steps
            self.log.begin(config.to_mapping(), self.step, keep_after=ended)
        for watcher in self._watchers:
            watcher.on_begin(self.step)
        outcome: Outcome = "failed"
        try:
            self._train_and_save()
            outcome = "finished"
        except KeyboardInterrupt:
            outcome = "interrupted"
            raise
        finally:
            for watcher in self._watchers:
                watcher.on_end(outcome)

    def _train_and_save(self) -> None:
        with Interruptible() as self._interruptible:
            try:
                with self._interruptible.defer_sigint():
                    self._train_on()
            except (KeyboardInterrupt, JudgeFailedError, EngineError):
                if not self._interruptible.forced:
                    self._save_what_was_learned()
                raise
            except (DivergedError, StalledError) as error:
                saved = self._save_what_was_learned()
                raise type(error)(f"{str(error).rstrip('.')}. The checkpoint is {saved}") from error
            with self._interruptible.defer_sigint():
                self._save()
        self._load_best()

    def _train_on(self) -> None:
        """Train up to ``max_steps``; SIGINT is deferred while other ranks wait for this one."""
        config = self.config
        if config.eval_steps and self.step == 0:
            metrics, improved = self._evaluate_and_record()
            metrics = {"step": 0.0, **metrics}
            if self.processes.is_main:
                self.log.write_metrics(metrics)
            for watcher in self._watchers:
                watcher.on_logged(metrics)
            if improved:
                self._save()
        while self.step < config.max_steps and not any(self.processes.gather(self._stopping)):
            self._learn_and_log(self.collect_episodes())
        self._raise_if_stalled()
        run_on_all_ranks(self.processes, self._raise_deferred_interrupt)

    def _raise_deferred_interrupt(self) -> None:
        with self._interruptible.allow_sigint():
            pass

    def stop(self) -> None:
        """Ask a :meth:`train` that runs in another thread to return after its step, as after the last."""
        self._stopping = True

    def save_checkpoint(self, path: str | Path) -> Path:
        """Write everything needed to resume into a folder, whole or not at all; return the folder."""
        state = {
            "collected": self.collected,
            "policy_version": self.policy.version,
            "watch": self._health.state(),
            "best": self._best.state(),
            "config": self.config.to_mapping(),
        }
        return write_checkpoint(Path(path), self.learner, self.policy.tokenizer, state)

    def load_checkpoint(self, path: str | Path) -> None:
        """Continue from a checkpoint: with the same config, to the same numbers as if never stopped.

        Raises:
            CheckpointError: If it is incomplete, damaged or of another model.
        """
        state = read_checkpoint(Path(path), self.learner)
        self._health.restore(state["watch"])
        self._best.restore(state["best"])
        self.collected = self._learned_from = int(state["collected"])
        self.policy.version = int(state["policy_version"])

    def close(self) -> None:
        """Close the backend and the environments; if the trainer continues, it makes new ones."""
        self._evaluations.close()
        if self.backend is not self._evaluations:
            self.backend.close()

    @property
    def _has_backend(self) -> bool:
        return self.backend.per_process or self.processes.is_main

    def _publish(self) -> None:
        """Let the backend play with the weights as they are now, and play ahead."""
        if self._has_backend:
            self.backend.publish(self.policy.version)
            self.backend.prefetch(self._coming_tasks())

    def _tasks(self, batch: int) -> list[GroupSpec]:
        """The groups of a batch."""
        return self._draw(batch, self.config.groups_per_step, (_TASKS, batch), (_SAMPLING, batch))

    def _coming_tasks(self) -> list[GroupSpec]:
        """The groups of batches after the present one that may be played with weights as old as these."""
        coming = range(self.collected + 1, self.collected + 1 + self.config.max_staleness)
        left = self.collected + self.config.max_steps - self.step
        return [task for batch in coming if batch < left for task in self._tasks(batch)]

    def _draw(
        self, batch: int, count: int, tasks: tuple[int, ...], sampling: tuple[int, ...]
    ) -> list[GroupSpec]:
        """Draw a batch's groups from the random streams of their tasks and of their sampling."""
        seed = self.config.seed
        drawn = np.random.SeedSequence(seed, spawn_key=tasks).generate_state(count)
        return [
            GroupSpec(int(start), self.config.num_generations, (seed, *sampling, place), self._options, batch)
            for place, start in enumerate(drawn)
        ]

    def _play(self, tasks: Sequence[GroupSpec]) -> list[Group]:
        """Play groups: each process plays its share, and all get all.

        Tasks and randomness of a group depend on its place in the step alone, not on who plays it. So the
        episodes are those of a single process, if the sampler's numbers do not depend on its batches.
        """
        if self.processes.size == 1:
            with self._interruptible.allow_sigint():
                return self._collect(tasks)
        mine: list[Group] = []

        def play_share() -> list[list[dict[str, Any]]]:
            with self._interruptible.allow_sigint():
                share = [tasks[place] for place in self._places(len(tasks), self.processes.rank)]
                mine.extend(self._collect(share))
            return [[episode_to_json(episode) for episode in group.episodes] for group in mine]

        groups: dict[int, Group] = {}
        for rank, played in enumerate(run_on_all_ranks(self.processes, play_share)):
            found = mine
            if rank != self.processes.rank:
                found = [Group(tuple(map(episode_from_json, group))) for group in played]
                for episode in (episode for group in found for episode in group.episodes):
                    self._on_episode(episode)
            groups |= zip(self._places(len(tasks), rank), found, strict=True)
        return [groups[place] for place in range(len(tasks))]

    def _places(self, count: int, rank: int) -> range:
        """The places of the groups that a process plays."""
        if self.backend.per_process:
            return range(rank, count, self.processes.size)
        return range(count if rank == 0 else 0)

    def _collect(self, tasks: Sequence[GroupSpec]) -> list[Group]:
        """Play groups by this process's backend, judged while others are still being played."""
        if not tasks:
            return []
        groups = self.backend.collect(
            tasks,
            on_episode=self._on_episode,
            on_group=None if self.reward is None else self.reward.submit,
        )
        groups = groups if self.reward is None else self.reward.collect()
        return [with_truncation_penalty(group, self.config.truncation_penalty) for group in groups]

    def _learn_and_log(self, groups: Sequence[Group]) -> None:
        config = self.config
        replaced: Sequence[Group] = self._replaced
        metrics = self.update_policy(groups)
        last = self.step == config.max_steps
        improved = False
        if config.eval_steps and (last or self.step % config.eval_steps == 0):
            found, improved = self._evaluate_and_record()
            metrics |= found
        if self.processes.is_main:
            shown: Sequence[Group] = groups
            if not config.log_observations:
                shown, replaced = without_observations(groups), without_observations(replaced)
            self.log.write_episodes(self.step, shown, config.log_episodes, replaced)
            if last or self.step % config.logging_steps == 0:
                self.log.write_metrics(metrics)
                for watcher in self._watchers:
                    watcher.on_logged(metrics, shown)
            for warning in self._warnings:
                self.log.write_warning(warning)
            for callback in self.callbacks:
                callback.on_step(metrics)
        due = config.save_steps > 0 and self.step % config.save_steps == 0
        if (due or improved) and not last:
            self._save()

    def _raise_if_stalled(self) -> None:
        if (reason := self._health.stop_reason) is not None:  # the same in every process
            raise StalledError(f"stopped, {reason} To train on all the same, set keep_going (--keep-going).")

    def _evaluate_and_record(self) -> tuple[dict[str, float], bool]:
        """Evaluate, write how episodes ended; return the metrics, and whether they are the best so far."""
        metrics = self.evaluate()
        if self._evaluated is not None:
            self.log.write_evaluation(self.step, self._evaluated)
        improved = self._best.update(self.step, metrics)  # the same in every process
        self._stopping |= self._best.should_stop
        return metrics, improved

    def _load_best(self) -> None:
        """End with the weights of the best evaluation, if the settings say so."""
        best = self._best.best_step
        if self.config.load_best_model_at_end and best is not None and best != self.step:
            folder = checkpoint_path(self.log.checkpoints, best)
            verify_checkpoint(folder)
            load_model_weights(self.policy.model, folder)
            self.policy.version += 1

    def _shortages(self) -> list[RunWarning]:
        """Warnings of memory that ran out since the last step."""
        ran_out = [*self.policy.halved, *self.learner.microbatches.halved]
        self.policy.halved.clear()
        self.learner.microbatches.halved.clear()
        return [RunWarning(self.step, "out_of_memory", 0.0, 0.0, sentence) for sentence in ran_out]

    def _warn(self) -> None:
        listeners = [callback for callback in self.callbacks if isinstance(callback, WarningCallback)]
        for warning in self._warnings:
            for callback in listeners:
                callback.on_warning(warning)
            if not listeners:  # logging writes to the terminal, unless the program says otherwise
                _log.warning("%s", warning.message)

    def _save_what_was_learned(self) -> Path:
        """Write a checkpoint of an interrupted run; a resumed run plays the lost batch again."""
        self.collected = self._learned_from
        return self._save()

    def _save(self) -> Path:
        folder = self.log.checkpoints
        if self.processes.is_main:
            self.log.sync()
        saved = self.save_checkpoint(checkpoint_path(folder, self.step))
        if self._has_backend:
            self.backend.saved(self.collected)
        if self.processes.is_main:
            prune_checkpoints(folder, self.config.save_total_limit, self._best.best_step)
        aliases = ("final", "latest") if self.step == self.config.max_steps else ("latest",)
        aliases = ("best", *aliases) if self.step == self._best.best_step else aliases
        for watcher in self._watchers:
            watcher.on_checkpoint(self.step, saved, aliases)
        return saved

    @property
    def _watchers(self) -> list[RunCallback]:
        """Callbacks with the methods of :class:`RunCallback`; none in other processes than the main one."""
        callbacks = self.callbacks if self.processes.is_main else ()
        return [callback for callback in callbacks if isinstance(callback, RunCallback)]

    def _on_episode(self, episode: Episode) -> None:
        for callback in self.callbacks if self.processes.is_main else ():
            callback.on_episode(episode)


def _require(name: str, value: object, kind: Any, what: str) -> None:
    """Raise if an argument is of another kind; a class in place of its object has the methods, too."""
    if isinstance(value, type) or not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}, not {value!r:.60}")


def _refuse_settings_of_env(eval_env: EnvSource | None, config: GRPOConfig) -> None:
    """Raise if a setting is about the environment that a run does not have."""
    given = {
        "eval_env": eval_env is not None,
        "train_split": config.train_split is not None,
        "eval_split": config.eval_split is not None,
        'step_states="snapshot"': config.records_states,
    }
    for name, is_set in given.items():
        if is_set:
            raise ConfigError(f"{name} is about an environment, and env is None: leave one of the two out")
