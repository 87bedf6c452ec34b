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
of them, to the result of one process: see :mod:`art_trainer.processes`. The main process writes and tells.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from art_gym.wrappers.judging import JudgeFailed
from art_trainer.backends import EnvlessBackend, LocalBackend, PlaysEvaluations, RolloutBackend
from art_trainer.best_model import best_model_for
from art_trainer.callbacks import HearsRun, TrainerCallback
from art_trainer.checkpoint import checkpoint_path, prune_checkpoints, read_checkpoint, write_checkpoint
from art_trainer.config import GRPOConfig
from art_trainer.episodes import Episode, Group
from art_trainer.errors import ConfigError, DivergedError, EngineError
from art_trainer.evaluation import Evaluation
from art_trainer.guards import EventLog, HearsWarnings, Watch
from art_trainer.interrupt import Interruptible
from art_trainer.judging import RewardModel
from art_trainer.learner import Learner
from art_trainer.metrics import staleness
from art_trainer.policy import TrainablePolicy
from art_trainer.processes import Processes, current_processes, jointly
from art_trainer.records.weights import weights_digest
from art_trainer.result_checkpoint import load_weights
from art_trainer.run_envs import EnvSource, RunEnvs
from art_trainer.run_log import RunLog
from art_trainer.selection import replace_without_signal
from art_trainer.shared_rollouts import SharedRollouts
from art_trainer.starts import GroupTask
from art_trainer.timings import Timings

_TASKS, _SAMPLING, _FRESH_TASKS, _FRESH_SAMPLING = 2, 3, 4, 5
"""Streams of randomness below ``config.seed``; the learner's own is 1."""
_EVALUATION_SEED = 1_000_003
"""Added to ``config.seed`` for evaluations, whose episodes no training step draws."""


class GRPOTrainer:
    """Trains a policy on an environment with text in and text out.

    Args:
        policy: The policy; its sampling follows the config (temperature, filters, length of a reply).
        env: An environment's id, a callable that makes one, or one made by ``gym.make``; ``None`` where the
            backend needs none, such as :class:`~art_trainer.backends.agents.AgentBackend`.
        config: The settings.
        eval_env: Where evaluations are played, such as whole games where training cuts them short; by
            default the same as ``env``.
        callbacks: Told of each step and episode.
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
        reward: RewardModel | None = None,
        processes: Processes | None = None,
        backend: RolloutBackend | None = None,
    ) -> None:
        self.config = config or GRPOConfig()
        self.policy = policy
        self.policy.sampling = dataclasses.replace(
            policy.sampling,
            temperature=self.config.temperature,
            top_p=self.config.top_p,
            top_k=self.config.top_k,
            min_p=self.config.min_p or 0.0,
            repetition_penalty=self.config.repetition_penalty,
            stop_strings=self.config.stop_strings,
            max_new_tokens=self.config.max_completion_length,
        )
        self.callbacks = tuple(callbacks)
        self.reward = reward
        self.processes = processes or current_processes()
        self.learner = Learner(policy.model, self.config, self.processes)
        self.log = RunLog(Path(self.config.output_dir))
        self._events = EventLog(self.log.folder)
        self._watch = Watch(self.config)
        self._best = best_model_for(self.config)
        self._interruptible = Interruptible()
        self.collected = 0
        self._replaced: list[Group] = []
        self._timings = Timings()
        self._envs = None if env is None else RunEnvs(env, eval_env, policy, self.config)
        self._options: Mapping[str, Any] | None = None
        if self._envs is not None:
            self._options = self._envs.training_options()
            self._evaluations: PlaysEvaluations = self._envs
            self.backend = backend or LocalBackend(policy, self._envs.pool, self.config)
        elif isinstance(backend, EnvlessBackend):
            _refuse_settings_of_env(eval_env, self.config)
            self.backend = self._evaluations = backend
        else:
            raise ConfigError(
                "env is None: name an environment, or give a backend that needs none, such as AgentBackend"
            )
        self._rollouts = SharedRollouts(
            self.backend,
            self.processes,
            reward=reward,
            on_episode=self._tell_episode,
            timings=self._timings,
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
        """
        start = time.perf_counter()
        self._timings.clear()
        jointly(self.processes, self._publish)
        groups = self._play(self._tasks(self.collected))
        rounds = itertools.count()

        def play_fresh(count: int) -> list[Group]:
            return self._play(self._fresh_tasks(next(rounds), count))

        groups, self._replaced = replace_without_signal(groups, play_fresh, self.config)
        self.collected += 1
        self._rollout_seconds = time.perf_counter() - start
        return groups

    def update_policy(self, groups: Sequence[Group]) -> dict[str, float]:
        """Learn from a batch.

        Returns:
            ``policy_loss``, ``kl``, ``reward`` and the rest of :mod:`art_trainer.metrics`, with ``step``
            (from 1), ``time/rollout``, ``time/update`` (seconds) and ``tokens_per_second`` (sampled ones);
            with ``max_staleness`` also ``staleness``.

        Raises:
            DivergedError: Where updates keep failing.
        """
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
        found: dict[str, float] = jointly(self.processes, self._evaluate_here)[0]
        return dict(found)

    def _evaluate_here(self) -> dict[str, float] | None:
        if not self.processes.is_main:
            return None
        config = self.config
        training = self.policy.sampling
        self.policy.sampling = training.unfiltered(config.eval_temperature)
        try:
            result = self._evaluations.evaluate(
                episodes=config.eval_episodes, seed=config.seed + _EVALUATION_SEED
            )
        finally:
            self.policy.sampling = training
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
            JudgeFailed: Where the judge's budget is spent or it fails for good; a checkpoint is written too.
            EngineError: Where the engine that samples is lost; a checkpoint is written too.
            DivergedError: Where updates keep failing; a checkpoint of the last finite weights is written.
            ProcessLostError: Where another process is gone.
        """
        config = self.config
        self._stopping = self._best.impatient
        if self.processes.is_main:
            weights = weights_digest(self.policy.model) if self.step == 0 else None
            self.log.begin(config.to_mapping(), self.step, weights)
            self._events.begin(self.step)
        for watcher in self._watchers:
            watcher.on_begin(self.step)
        outcome: Literal["finished", "interrupted", "failed"] = "failed"
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
                with self._interruptible.shielded():
                    self._train_on()
            except (KeyboardInterrupt, JudgeFailed, EngineError):
                if not self._interruptible.forced:
                    self._save_what_was_learned()
                raise
            except DivergedError as error:
                saved = self._save_what_was_learned()
                raise DivergedError(f"{error}. They are in {saved}") from error
        self._save()
        self._load_best()

    def _train_on(self) -> None:
        """Train up to ``max_steps``, letting Ctrl-C through only where no process waits for this one."""
        config = self.config
        if config.eval_steps and self.step == 0:
            metrics = {"step": 0.0, **self._evaluate_and_keep()}
            if self.processes.is_main:
                self.log.write_metrics(metrics)
            for watcher in self._watchers:
                watcher.on_logged(metrics)
            if self._hear(metrics):
                self._save()
        while self.step < config.max_steps and not any(self.processes.gather(self._stopping)):
            self._learn_and_log(self.collect_episodes())
        jointly(self.processes, self._let_through)

    def _let_through(self) -> None:
        """Raise the Ctrl-C that has come meanwhile."""
        with self._interruptible.exposed():
            pass

    def stop(self) -> None:
        """Ask a :meth:`train` that runs in another thread to return after its step, as after the last."""
        self._stopping = True

    def save_checkpoint(self, path: str | Path) -> Path:
        """Write everything needed to go on into a folder, whole or not at all; return the folder."""
        state = {
            "collected": self.collected,
            "learner": self.learner.state(),
            "policy_version": self.policy.version,
            "watch": self._watch.state(),
            "best": self._best.state(),
            "config": self.config.to_mapping(),
        }
        optimizer = self.learner.whole_optimizer()
        if self.processes.is_main:
            write_checkpoint(
                Path(path),
                model=self.policy.model,
                tokenizer=self.policy.tokenizer,
                optimizer=optimizer,
                reference=self.learner.reference,
                critic=self.learner.critic,
                state=state,
            )
        self.processes.gather(None)  # nobody reads it before it is whole
        return Path(path)

    def load_checkpoint(self, path: str | Path) -> None:
        """Go on from a checkpoint: with the same config, to the same numbers as if never stopped.

        Raises:
            CheckpointError: Where it is incomplete, damaged or of another model.
        """
        optimizer = self.learner.whole_optimizer()
        state = read_checkpoint(
            Path(path),
            model=self.policy.model,
            optimizer=optimizer,
            reference=self.learner.reference,
            critic=self.learner.critic,
        )
        self.learner.take_over(optimizer)
        self.learner.restore(state["learner"])
        if "watch" in state:  # checkpoints of earlier versions have none
            self._watch.restore(state["watch"])
        if "best" in state:
            self._best.restore(state["best"])
        self.collected = self._learned_from = int(state["collected"])
        self.policy.version = int(state["policy_version"])

    def close(self) -> None:
        """Close the environments, of which new ones are made where the trainer goes on, and the backend."""
        if self._envs is not None:
            self._envs.close()
        self.backend.close()

    @property
    def _has_backend(self) -> bool:
        return self.backend.per_process or self.processes.is_main

    def _publish(self) -> None:
        """Let the backend play with the weights as they are now, and play ahead."""
        if self._has_backend:
            self.backend.publish(self.policy.version)
            self.backend.prefetch(self._coming_tasks())

    def _tasks(self, batch: int) -> list[GroupTask]:
        """The groups of a batch."""
        return self._drawn(batch, self.config.groups_per_step, (_TASKS, batch), (_SAMPLING, batch))

    def _fresh_tasks(self, place: int, count: int) -> list[GroupTask]:
        """Groups in place of some of the present batch."""
        batch = self.collected
        return self._drawn(batch, count, (_FRESH_TASKS, batch, place), (_FRESH_SAMPLING, batch, place))

    def _coming_tasks(self) -> list[GroupTask]:
        """The groups of batches after the present one that may be played with weights as old as these."""
        coming = range(self.collected + 1, self.collected + 1 + self.config.max_staleness)
        left = self.collected + self.config.max_steps - self.step
        return [task for batch in coming if batch < left for task in self._tasks(batch)]

    def _drawn(
        self, batch: int, count: int, tasks: tuple[int, ...], sampling: tuple[int, ...]
    ) -> list[GroupTask]:
        """So many groups of a batch, from the streams of randomness of their tasks and of their sampling."""
        seed = self.config.seed
        drawn = np.random.SeedSequence(seed, spawn_key=tasks).generate_state(count)
        return [
            GroupTask(int(start), self.config.num_generations, (seed, *sampling, place), self._options, batch)
            for place, start in enumerate(drawn)
        ]

    def _play(self, tasks: Sequence[GroupTask]) -> list[Group]:
        return self._rollouts.play(tasks, self._interruptible.exposed)

    def _learn_and_log(self, groups: Sequence[Group]) -> None:
        config = self.config
        replaced = self._replaced
        metrics = self.update_policy(groups)
        last = self.step == config.max_steps
        improved = False
        if config.eval_steps and (last or self.step % config.eval_steps == 0):
            metrics |= self._evaluate_and_keep()
            improved = self._hear(metrics)
        if self.processes.is_main:
            self.log.write_episodes(self.step, groups, config.log_episodes, replaced)
            if last or self.step % config.logging_steps == 0:
                self.log.write_metrics(metrics)
                for watcher in self._watchers:
                    watcher.on_logged(metrics, groups, self._timings.of(groups))
            for callback in self.callbacks:
                callback.on_step(metrics)
        self._warn(metrics)
        due = config.save_steps > 0 and self.step % config.save_steps == 0
        if (due or improved) and not last:
            self._save()

    def _evaluate_and_keep(self) -> dict[str, float]:
        """Evaluate, and write how each episode came out."""
        metrics = self.evaluate()
        if self._evaluated is not None:
            self.log.write_evaluation(self.step, self._evaluated)
        return metrics

    def _hear(self, metrics: Mapping[str, float]) -> bool:
        """Take in an evaluation, the same in every process; return whether its weights are worth keeping."""
        verdict = self._best.hear(self.step, metrics)
        self._stopping |= verdict.stop
        return verdict.improved

    def _load_best(self) -> None:
        """End with the weights of the best evaluation, where the settings say so."""
        best = self._best.best_step
        if self.config.load_best_model_at_end and best is not None and best != self.step:
            load_weights(checkpoint_path(self.log.checkpoints, best), self.policy.model)
            self.policy.version += 1

    def _warn(self, metrics: Mapping[str, float]) -> None:
        for warning in self._watch.check(self.step, metrics):
            if self.processes.is_main:
                self._events.write(warning)
                for callback in self.callbacks:
                    if isinstance(callback, HearsWarnings):
                        callback.on_warning(warning)

    def _save_what_was_learned(self) -> Path:
        """Write a checkpoint of a run that is broken off.

        Episodes that nothing was learned from are played again by a resumed run.
        """
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
    def _watchers(self) -> list[HearsRun]:
        """Callbacks that are told of the run; those of the main process only."""
        callbacks = self.callbacks if self.processes.is_main else ()
        return [callback for callback in callbacks if isinstance(callback, HearsRun)]

    def _tell_episode(self, episode: Episode) -> None:
        if not self.processes.is_main:
            return
        for callback in self.callbacks:
            callback.on_episode(episode)


def _refuse_settings_of_env(eval_env: EnvSource | None, config: GRPOConfig) -> None:
    """Raise where a setting is about the environment that a run does not have."""
    given = {
        "eval_env": eval_env is not None,
        "train_split": config.train_split is not None,
        "eval_split": config.eval_split is not None,
        'step_states="snapshot"': config.records_states,
    }
    for name in (name for name, is_set in given.items() if is_set):
        raise ConfigError(f"{name} is about an environment, and env is None: leave one of the two out")
