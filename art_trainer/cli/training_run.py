"""One training run of ``art-trainer train`` or ``serve``: its policy, evaluations, training and report."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import typer
from rich.console import Console

from art_trainer.analysis.render import usage_summary
from art_trainer.analysis.report import headline, write_report
from art_trainer.cli.console import episode_bar, print_settings, results_table, unless_quiet
from art_trainer.cli.eval import print_faults, stop_at_faults
from art_trainer.cli.live_view import TrainingProgress
from art_trainer.cli.options import INTERRUPTED, show_logs
from art_trainer.cli.run_config import recipes_for
from art_trainer.errors import ConfigError, StalledError
from art_trainer.formatting import number, percent
from art_trainer.inference.policy import Policy
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.backend import RolloutBackend, RolloutSetup, RolloutSetupFactory
from art_trainer.rollout.envs import MakeEnv, baseline_names, env_maker, train_split
from art_trainer.rollout.evaluate import Evaluation, evaluate, evaluation_split
from art_trainer.signals import sigterm_as_sigint
from art_trainer.tracking.callbacks import TrainerCallback
from art_trainer.tracking.run_dir import AFTER, BASELINE, BEFORE, UNTRAINED, RunFolder
from art_trainer.training.checkpoint import discard_checkpoints_after
from art_trainer.training.distributed import ProcessGroup, current_process_group, init_distributed
from art_trainer.training.run_settings import AUTO, LOCAL, SCRATCH, SELF, Settings
from art_trainer.training.run_setup import (
    check_players,
    env_texts,
    find_checkpoint,
    fit_to_device,
    make_loggers,
    prepare_policy,
    reward_model,
    warm_up,
    with_engine,
)
from art_trainer.training.trainer import GRPOTrainer
from art_trainer.types import Episode

_log = logging.getLogger(__name__)


def run_training(
    settings: Settings, console: Console, make_setup: RolloutSetupFactory | None = None
) -> RunFolder:
    """Train as the settings say; the run's folder holds the results.

    Args:
        settings: All settings.
        console: Where tables and progress are shown.
        make_setup: Makes the backend that plays the groups of training; ``None``: the training processes
            play themselves.

    Raises:
        typer.Exit: With code 130 after Ctrl-C, when a checkpoint and a report were written.
        StalledError: If the run cannot learn; a checkpoint and a report were written too.
    """
    if settings.run.opponent != SELF or settings.run.seat is not None:
        raise ConfigError("opponent and seat are settings of art-trainer self-play: leave them out")
    if settings.run.agent is not None:
        raise ConfigError("agent is a setting of art-trainer train: leave it out")
    with init_distributed(settings.run.process_timeout) as processes, sigterm_as_sigint():
        # A folder that did not exist is named by the main process.
        output_dir: str = processes.gather(settings.config.output_dir)[0]
        if processes.is_main:
            return _run_main(settings, processes, console, make_setup)
        show_logs(logging.ERROR)
        settings = replace(settings, config=replace(settings.config, output_dir=output_dir))
        run = TrainingRun(settings, Console(quiet=True), processes)
        if make_setup is not None:
            run.setup = RolloutSetup(RolloutBackend())  # the main process's plays everything
        try:
            run.train()
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        return settings.folder


def _run_main(
    settings: Settings, processes: ProcessGroup, console: Console, make_setup: RolloutSetupFactory | None
) -> RunFolder:
    """Do what a single process does, and the first of several: write and print too."""
    folder, shown = settings.folder, unless_quiet(console, settings)
    print_settings(settings, shown)
    if not any(source.startswith(("recipe", "the resumed")) for source in settings.sources.values()):
        for name in recipes_for(settings.run.env):
            _log.info("The recipe %s trains on this environment: --recipe %s", name, name)
    if processes.size > 1:
        _log.info("%d processes train together.", processes.size)
    run = TrainingRun(settings, shown, processes)
    run.warn_of_seen_tasks()
    if run.checkpoint is None:
        write_settings(run.settings)
    _log.info("Run folder: %s", folder.path)
    command = "serve" if make_setup is not None and settings.run.backend == LOCAL else "train"
    with reported(folder, command), ExitStack() as stack:
        if make_setup is not None:
            run.setup = stack.enter_context(make_setup(run.policy))
        run.evaluate_baselines()
        if run.imitates and settings.run.model != SCRATCH:
            run.evaluate(UNTRAINED)
        run.warm_up()
        run.evaluate(BEFORE)
        run.train()
        run.evaluate(AFTER)
    print_results(folder, console)
    return folder


def write_settings(settings: Settings) -> None:
    """Write ``run.yaml``: of a resumed run once its checkpoint is loaded, which may not suit the settings."""
    # Sums are cut into as many parts as there are threads: a repeated run needs the same number.
    settings.folder.write_settings({**settings.to_mapping(), "threads": torch.get_num_threads()})


@contextmanager
def reported(folder: RunFolder, command: str) -> Iterator[None]:
    """Write what the run cost and its report at the end of the context, whatever ends it.

    Args:
        folder: The run's folder.
        command: The command that resumes the run.

    Raises:
        typer.Exit: With code 130 after Ctrl-C.
    """
    write_cost = folder.start_cost(_gpus)

    def write() -> None:
        write_cost()
        write_report(folder.path)

    try:
        yield
    except BaseException as ended:
        # Whatever ended the run, its numbers up to there are worth reading.
        try:
            write()
        except (OSError, ValueError) as error:
            _log.warning("No report: %s", error)  # and what ended the run, which is to be mended, is raised
        if isinstance(ended, KeyboardInterrupt):
            _log.info(
                "\nStopped. Report so far: %s\nResume with: art-trainer %s --resume %s",
                *(folder.report_file, command, shlex.quote(str(folder.path))),
            )
            raise typer.Exit(INTERRUPTED) from None
        if isinstance(ended, StalledError):
            _log.info("\nReport: %s", folder.report_file)
        raise
    write()


def _gpus() -> int:
    """How many GPUs the run's processes use, one each."""
    return current_process_group().size if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]


def evaluation_label(name: str) -> str:
    """What the evaluation of this name is called where people read it."""
    return name.replace(BASELINE, "baseline ")


def write_evaluation(
    folder: RunFolder, name: str, evaluation: Evaluation, transcripts: Sequence[Episode]
) -> None:
    """Keep an evaluation in the run's folder, and show its figures."""
    label = evaluation_label(name)
    figures = percent(evaluation.success), number(evaluation.reward)
    _log.info("%s: success %s, mean reward %s", label, *figures)
    folder.write_evaluation(name, replace(evaluation, policy=label), transcripts)


def print_results(folder: RunFolder, console: Console) -> None:
    """Print the table of evaluations, the paired difference, what the run cost and where the report is."""
    before, after = folder.evaluation(BEFORE), folder.evaluation(AFTER)
    assert before is not None
    assert after is not None
    baselines = [(f"baseline {name}", found) for name, found in folder.baselines().items()]
    untrained = folder.evaluation(UNTRAINED)
    models = [(UNTRAINED, untrained), (BEFORE, before), (AFTER, after)]
    rows = [*baselines, *((name, found) for name, found in models if found)]
    console.print(results_table(rows))
    print_faults(rows, console)
    hint_at_success(rows, folder.metrics().records)
    sampled = sum(record.get("num_tokens", 0.0) for record in folder.metrics().records)
    spent = usage_summary({"sampled": sampled, **folder.cost()})
    _log.info("%s\n%s\nReport: %s", headline(before, after), spent, folder.report_file)


def hint_at_success(rows: Sequence[tuple[str, Evaluation]], steps: Sequence[Mapping[str, float]]) -> None:
    """Say where success comes from if nothing ever had it, though some episodes earned more than others."""
    results = [result for _, evaluation in rows for result in evaluation.results if not result.fault]
    rewards = {result.reward for result in results}
    none = all(result.success is False for result in results) and not any(
        step.get("success") for step in steps
    )
    if none and len(rewards) > 1 and max(rewards) > 0:
        earned = f"No episode was a success, though rewards go up to {max(rewards):.3g}"
        where = "an environment says it with Outcome(success=True), at the end"
        _log.info('%s: %s, an agent\'s reward function with "success": True.', earned, where)


class TrainingRun:
    """One run in one process.

    Attributes:
        settings: All settings, sizes fitted to the device's memory.
        policy: Holds the model that is trained.
        checkpoint: What the run resumes from; ``None``: it begins anew.
        setup: The backend that plays in training, if this process does not.
    """

    def __init__(self, settings: Settings, console: Console, processes: ProcessGroup) -> None:
        self.setup: RolloutSetup | None = None
        self._make_env: MakeEnv = env_maker(settings.run.env, settings.run.env_args)
        self._processes = processes
        self._folder = folder = settings.folder
        self._console = console
        run = settings.run
        self._make_train_env: MakeEnv = env_maker(run.env, run.all_env_args)
        self._reward = reward_model(run, folder.path)
        self._loggers = make_loggers(settings)
        check_players(run, self._make_env)
        self._baselines = baseline_names(self._make_env) if run.baselines is None else run.baselines
        self.checkpoint = find_checkpoint(settings)
        self.policy = prepare_policy(
            settings, lambda: env_texts(settings, self._make_env), checkpoint=self.checkpoint
        )
        if run.engine is not None and processes.size > 1:
            raise ConfigError(
                f"engine is {run.engine}, but {processes.size} processes would each send it their weights: "
                "start one process, or leave engine out"
            )
        form = self.policy.format
        self.settings = fit_to_device(settings, self.policy.model, form, self._make_train_env)
        self.policy.max_batch = self.settings.run.max_batch
        self._player = with_engine(self.policy, run)

    def evaluate_baselines(self) -> None:
        """Evaluate the environment's scripted players that were not evaluated yet."""
        for name in self._baselines:
            self._evaluate(BASELINE + name, ScriptedPolicy(name))

    @property
    def imitates(self) -> bool:
        """Whether the run begins with a warm start: the settings ask for one, and there is no checkpoint."""
        return self.settings.run.warm_start is not None and self.checkpoint is None

    def warm_up(self) -> None:
        """Imitate scripted policies, if the run begins with that."""
        if self.imitates:
            wanted = self.settings.run.warm_start
            name = "scripted policies" if wanted == AUTO else wanted
            with episode_bar(self._console, f"warm start, imitating {name}", None) as on_step:
                warm_up(self.policy, self.settings, self._make_env, on_step)

    def warn_of_seen_tasks(self) -> None:
        """Warn if the evaluations play tasks that are trained on, and nobody has chosen that."""
        if self.settings.run.test_split is not None:
            return
        with closing(self._make_env()) as env:
            split = evaluation_split(env, None)
        if split is not None and split == train_split(self._make_train_env, self.settings.config.train_split):
            _log.warning(
                "There is no split 'test': the evaluations before and after play the split %r, which is "
                "trained on. Give some tasks the split 'test', or set test_split.",
                split,
            )

    def evaluate(self, when: str) -> None:
        """Evaluate the model as it is now, at the evaluation's temperature."""
        with self._player.evaluating(self.settings.config):
            self._evaluate(when, self._player)

    def _evaluate(self, name: str, policy: Policy) -> None:
        # A resumed run keeps what was evaluated before it was stopped; after training everything is new.
        if name != AFTER and self._folder.evaluation(name) is not None:
            return
        if self.setup is not None:
            self.setup.on_evaluation()
        config, run = self.settings.config, self.settings.run
        transcripts: list[Episode] = []
        with episode_bar(self._console, evaluation_label(name), config.eval_episodes) as on_episode:
            evaluation = evaluate(
                policy,
                self._make_env,
                split=run.test_split,
                episodes=config.eval_episodes,
                seed=config.seed,
                settings={"env_args": dict(run.env_args), "temperature": config.eval_temperature},
                on_episode=stop_at_faults(name, config.eval_episodes, on_episode),
                transcripts=transcripts,
            )
        write_evaluation(self._folder, name, evaluation, transcripts)

    def train(self) -> None:
        """Run GRPO, from the checkpoint if the run is resumed."""
        settings, setup = self.settings, self.setup
        progress = TrainingProgress(self._console, settings.episodes_per_step)
        callbacks: list[TrainerCallback] = [progress, *(setup.callbacks if setup is not None else ())]
        trainer = GRPOTrainer(
            self._player,
            self._make_train_env,
            settings.config,
            eval_env=self._make_env,
            callbacks=[*callbacks, *self._loggers],
            reward=self._reward,
            processes=self._processes,
            backend=None if setup is None else setup.backend,
        )
        run_trainer(trainer, settings, progress, self.checkpoint, is_main=self._processes.is_main)
        if setup is not None:
            setup.on_trained()


def run_trainer(
    trainer: GRPOTrainer,
    settings: Settings,
    progress: TrainingProgress,
    checkpoint: Path | None,
    *,
    is_main: bool = True,
) -> None:
    """Train with the progress shown, from the checkpoint if the run is resumed."""
    if checkpoint is not None:
        trainer.load_checkpoint(checkpoint)
        if is_main:
            write_settings(settings)
        if settings.resume_step is not None and is_main:
            discard_checkpoints_after(settings.folder.checkpoints, trainer.step)
        _log.info("Resuming after step %d.", trainer.step)
    with progress.running(settings.config.max_steps, trainer.step):
        trainer.train()
