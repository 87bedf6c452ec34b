"""``art-trainer self-play``: train the seats of a game against each other, measure each against scripts."""

from __future__ import annotations

import logging
import shlex

import typer
from rich.console import Console

from art_trainer.cli.options import INTERRUPTED, command
from art_trainer.recipes import DEFAULT_GAME_RECIPE
from art_trainer.training.run_settings import Settings

_log = logging.getLogger(__name__)


@command(
    "self-play",
    "`art-trainer self-play` trains both seats of a duel on 2048's board with one small model.",
    "`art-trainer self-play --opponent greedy --seat placer_1` against a scripted player.",
    settings="env env_args model opponent seat max_steps seed eval_episodes keep_going output_dir".split(),
    default_recipe=DEFAULT_GAME_RECIPE,
)
def self_play(settings: Settings) -> None:
    """Train the players of a game against each other, and measure each seat against scripted players.

    Both sides of every game are trained on: each seat's attempts at one start are a group. The results of
    every seat are shown beside those of the game's own players.
    """
    from art_trainer.cli.console import print_settings, unless_quiet
    from art_trainer.cli.self_play_run import SelfPlayRun
    from art_trainer.cli.training_run import write_settings
    from art_trainer.tracking.run_dir import AFTER, BEFORE

    console, folder = Console(), settings.folder
    print_settings(settings, unless_quiet(console, settings))
    run = SelfPlayRun(settings, console)
    if run.checkpoint is None:
        write_settings(settings)
    _log.info("Run folder: %s", folder.path)
    try:
        run.play_scripts()
        run.warm_up()
        run.play_models(BEFORE)
        run.train()
        run.play_models(AFTER)
    except KeyboardInterrupt:
        _log.info("\nStopped. Resume with: art-trainer self-play --resume %s", shlex.quote(str(folder.path)))
        raise typer.Exit(INTERRUPTED) from None
    run.print_results()
