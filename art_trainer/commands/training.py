"""``art-trainer train``: evaluate, train, evaluate again on the same tasks, and report.

Under torchrun or ``accelerate launch`` all processes train, and the main one does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import typer
from rich.console import Console

from art_gym.errors import did_you_mean
from art_trainer.backends import RolloutBackend
from art_trainer.callbacks import TrainerCallback
from art_trainer.checkpoint import checkpoint_to_resume, discard_checkpoints_after, verify_checkpoint
from art_trainer.commands.engines import with_engine
from art_trainer.commands.evaluating import evaluate_shown
from art_trainer.commands.gathering import TrainRequest, gather_settings
from art_trainer.commands.monitoring import make_monitor
from art_trainer.commands.policies import MakeEnv, baseline_names, env_maker, player_names
from art_trainer.commands.preparing import env_texts, prepare_policy, warm_up
from art_trainer.commands.rewards import reward_model
from art_trainer.commands.settings import LOCAL, RAY, Layer, RunSettings, Settings, merge_settings
from art_trainer.commands.tables import results_table, settings_table
from art_trainer.display import number, percent
from art_trainer.episodes import Episode
from art_trainer.errors import ConfigError
from art_trainer.guards import RunWarning
from art_trainer.interrupt import terminated_as_interrupted
from art_trainer.policy import Policy
from art_trainer.processes import Processes, joined
from art_trainer.progress import ProgressWatcher, training_progress
from art_trainer.report import headline, write_report
from art_trainer.run_folder import AFTER, BASELINE, BEFORE, RunFolder
from art_trainer.scripted_policy import ScriptedPolicy
from art_trainer.trainer import GRPOTrainer
from art_trainer.transformers_policy import TransformersPolicy

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it: 128 plus the signal's number."""


@dataclass(frozen=True, slots=True)
class Players:
    """Who plays the groups of training in place of the training process."""

    backend: RolloutBackend
    callbacks: tuple[TrainerCallback, ...] = ()
    on_evaluation: Callable[[], None] = lambda: None
    """Told before each evaluation before and after training."""
    on_trained: Callable[[], None] = lambda: None
    """Told when all steps are done."""


@dataclass(frozen=True, slots=True)
class Hired:
    """How to find other players.

    Attributes:
        main: In the main process: players, given the settings, the run's folder, its policy, and where to
            print; within the context they are there.
        others: What the other processes of the training have instead.
    """

    main: Callable[[Settings, RunFolder, TransformersPolicy, Console], AbstractContextManager[Players]]
    others: Callable[[], Players]


def run_train(request: TrainRequest, console: Console, hired: Hired | None = None) -> RunFolder:
    """Train as asked; the run's folder holds what came of it.

    Args:
        request: What was asked for.
        console: Where to print.
        hired: Who plays in training; by default the training processes themselves.

    Raises:
        ConfigError: Where a setting, the environment or the model does not exist.
        typer.Exit: With code 130 after Ctrl-C, when a checkpoint and a report were written.
    """
    settings = gather_settings(request)
    if settings.run.backend == RAY:
        hired = _hired_in_cluster(settings, hired)
    with joined(settings.run.process_timeout) as processes, terminated_as_interrupted():
        if processes.is_main:
            processes.gather(settings.to_mapping())
            return _run_main(settings, request, processes, console, hired)
        settings = merge_settings([Layer("the main process", processes.gather(None)[0])])
        folder = RunFolder(Path(settings.config.output_dir))
        run = _Run(settings, folder, Console(quiet=True), processes, request)
        run.players = hired.others() if hired is not None else None
        try:
            run.train()
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        return folder


def _run_main(
    settings: Settings, request: TrainRequest, processes: Processes, console: Console, hired: Hired | None
) -> RunFolder:
    """Do what a single process does, and the first of several: write and print too."""
    folder = RunFolder(Path(settings.config.output_dir))
    for part in settings_table(settings):
        console.print(part)
    if processes.size > 1:
        console.print(f"{processes.size} processes train together.", highlight=False)
    run = _Run(settings, folder, console, processes, request)
    # Sums are cut into as many parts as there are threads: who repeats the run wants the same.
    folder.write_settings({**settings.to_mapping(), "threads": torch.get_num_threads()})
    console.print(f"Run folder: {folder.path}", highlight=False, soft_wrap=True)
    try:
        with ExitStack() as stack:
            if hired is not None:
                run.players = stack.enter_context(hired.main(settings, folder, run.policy, console))
            run.evaluate_baselines()
            run.warm_up()
            run.evaluate(BEFORE)
            run.train()
            run.evaluate(AFTER)
    except KeyboardInterrupt:
        command = "serve" if hired is not None and settings.run.backend == LOCAL else "train"
        console.print(
            f"\nStopped. Report so far: {folder.report_file}\n"
            f"Go on with: art-trainer {command} --resume {folder.path}",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    finally:
        # Whatever ended the run, its numbers up to there are worth reading.
        write_report(folder.path)
    run.conclude()
    return folder


def _hired_in_cluster(settings: Settings, hired: Hired | None) -> Hired:
    if hired is not None:
        raise ConfigError("backend is ray, but the server's workers play: leave backend out")
    # Other runs need not have what it takes to play elsewhere.
    from art_trainer.commands.ray_players import ray_players

    return ray_players(settings)


class _Run:
    """One run: its policy, its environment, and where its files and words go.

    Attributes:
        policy: Holds the model that is trained.
        players: Who plays in training, where this process does not.
    """

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        console: Console,
        processes: Processes,
        request: TrainRequest,
    ) -> None:
        self.players: Players | None = None
        self._settings = settings
        self._processes = processes
        self._folder = folder
        self._console = console
        run = settings.run
        self._make_env: MakeEnv = env_maker(run.env, run.env_args)
        self._make_train_env: MakeEnv = env_maker(run.env, {**run.env_args, **run.train_env_args})
        self._reward = reward_model(run, folder.path)
        self._monitor = make_monitor(settings, folder.path, self._make_train_env, console)
        self._baselines = _chosen_baselines(run, self._make_env)
        if run.warm_start is not None:
            _require_player(run.warm_start, self._make_env)
        self._went_back = request.resume_step is not None
        self._checkpoint: Path | None = None
        if request.resume is not None:
            self._checkpoint = checkpoint_to_resume(folder.checkpoints, request.resume_step)
        if self._checkpoint is not None:
            verify_checkpoint(self._checkpoint)
        self.policy = prepare_policy(
            settings, lambda: env_texts(settings, self._make_env), checkpoint=self._checkpoint
        )
        if run.engine is not None and processes.size > 1:
            raise ConfigError(
                f"engine is {run.engine}, but {processes.size} processes would each give it their weights: "
                "start one process, or leave engine out"
            )
        self._player = with_engine(self.policy, run)

    def evaluate_baselines(self) -> None:
        """Evaluate the environment's own players, those that were not yet."""
        for name in self._baselines:
            self._evaluate(BASELINE + name, ScriptedPolicy(name))

    def warm_up(self) -> None:
        """Imitate a scripted player, where the settings ask for it and no checkpoint already has."""
        if self._settings.run.warm_start is not None and self._checkpoint is None:
            warm_up(self.policy, self._settings, self._make_env, self._console)

    def evaluate(self, when: str) -> None:
        """Evaluate the model as it is now, at the evaluation's temperature."""
        config = self._settings.config
        sampling = self._player.sampling
        self._player.sampling = replace(
            sampling.unfiltered(config.eval_temperature), max_new_tokens=config.max_completion_length
        )
        try:
            self._evaluate(when, self._player)
        finally:
            self._player.sampling = sampling

    def _evaluate(self, name: str, policy: Policy) -> None:
        # A resumed run keeps what was evaluated before it was stopped; after training everything is new.
        if name != AFTER and self._folder.evaluation(name) is not None:
            return
        if self.players is not None:
            self.players.on_evaluation()
        config, run = self._settings.config, self._settings.run
        transcripts: list[Episode] = []
        evaluation = evaluate_shown(
            policy,
            self._make_env,
            self._console,
            split=run.test_split,
            episodes=config.eval_episodes,
            seed=config.seed,
            settings={"env_args": dict(run.env_args), "temperature": config.eval_temperature},
            transcripts=transcripts,
        )
        label = name.replace(BASELINE, "baseline ")
        how = f"success {percent(evaluation.success)}, mean reward {number(evaluation.reward)}"
        self._console.print(f"{label}: {how}", highlight=False, soft_wrap=True)
        self._folder.write_evaluation(name, replace(evaluation, policy=label), transcripts)

    def train(self) -> None:
        """Run GRPO, from the latest checkpoint where there is one to resume from."""
        config, players = self._settings.config, self.players
        watcher = _Watcher(self._console)
        callbacks: list[TrainerCallback] = [watcher, *(players.callbacks if players is not None else ())]
        trainer = GRPOTrainer(
            self._player,
            self._make_train_env,
            config,
            eval_env=self._make_env,
            callbacks=[*callbacks, *([self._monitor] if self._monitor is not None else [])],
            reward=self._reward,
            processes=self._processes,
            backend=None if players is None else players.backend,
        )
        if self._checkpoint is not None:
            trainer.load_checkpoint(self._checkpoint)
            if self._went_back and self._processes.is_main:
                discard_checkpoints_after(self._folder.checkpoints, trainer.step)
            self._console.print(f"Going on after step {trainer.step}.", highlight=False)
        episodes = config.groups_per_step * config.num_generations
        with training_progress(
            self._console, config.max_steps, done=trainer.step, episodes_per_step=episodes
        ) as watcher.progress:
            trainer.train()
        if players is not None:
            players.on_trained()

    def conclude(self) -> None:
        """Print the table, the paired difference and where everything lies."""
        before, after = self._folder.evaluation(BEFORE), self._folder.evaluation(AFTER)
        assert before is not None
        assert after is not None
        baselines = [(f"baseline {name}", found) for name, found in self._folder.baselines().items()]
        self._console.print(results_table([*baselines, ("before", before), ("after", after)]))
        self._console.print(headline(before, after), highlight=False, soft_wrap=True)
        self._console.print(f"Report: {self._folder.report_file}", highlight=False, soft_wrap=True)


class _Watcher(ProgressWatcher):
    """Passes on what it is told to the progress being shown, and prints warnings."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def on_warning(self, warning: RunWarning) -> None:
        """A number is beyond its threshold."""
        text = f"warning: {warning.words}"
        self._console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)


def _require_player(name: str, make_env: MakeEnv) -> None:
    known = player_names(make_env)
    if name not in known:
        raise ConfigError(f"warm_start: the environment has no player `{name}`{did_you_mean(name, known)}")


def _chosen_baselines(run: RunSettings, make_env: MakeEnv) -> tuple[str, ...]:
    known = baseline_names(make_env)
    if run.baselines is None:
        return known
    for name in run.baselines:
        if name not in known:
            raise ConfigError(f"the environment has no baseline `{name}`{did_you_mean(name, known)}")
    return tuple(run.baselines)
