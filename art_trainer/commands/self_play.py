"""``art-trainer self-play``: train the seats of a game against each other, measure each against scripts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer
import yaml
from rich.console import Console

from art_gym.errors import did_you_mean
from art_gym.seats import players_of
from art_trainer.checkpoint import checkpoint_to_resume, discard_checkpoints_after, verify_checkpoint
from art_trainer.commands.gathering import TrainRequest, gather_settings, read_yaml_config
from art_trainer.commands.policies import load_policy
from art_trainer.commands.preparing import prepare_policy
from art_trainer.commands.self_play_tables import difference_lines, match_table
from art_trainer.commands.settings import LOCAL, Settings
from art_trainer.commands.tables import episode_bar, settings_table
from art_trainer.commands.training import INTERRUPTED
from art_trainer.errors import ConfigError
from art_trainer.game_demonstrations import imitate_players
from art_trainer.game_rollout import MakeGame, play_games
from art_trainer.imitation import ImitationConfig
from art_trainer.policy import Policy
from art_trainer.progress import ProgressWatcher, training_progress
from art_trainer.run_folder import AFTER, BEFORE, RunFolder, read_yaml, write_text
from art_trainer.scratch import episode_texts
from art_trainer.scripted_policy import ScriptedPolicy
from art_trainer.self_play import (
    EVALUATION_SEED,
    RIVALS,
    Match,
    SelfPlayTrainer,
    game_maker,
    opponents_of,
    play_matches,
    seat_env_maker,
    seats_of,
)
from art_trainer.starts import Start
from art_trainer.transformers_policy import TransformersPolicy

GAME = "art/2048Duel-v0"
"""What is played where nothing is said."""
SELF, COPY = "self", "copy"
"""Opponents: the very model that is trained, or a second one of its kind that learns apart."""

_SIDES = "sides.yaml"


@dataclass(frozen=True, slots=True)
class Sides:
    """Who plays whom."""

    opponent: str = SELF
    """``self``, ``copy``, a scripted player of the game, or a policy as in ``art-trainer eval``."""
    seat: str | None = None
    """The model's, against an opponent that does not learn; ``None``: the game's first."""


@dataclass(frozen=True, slots=True)
class SelfPlayRequest:
    """What ``art-trainer self-play`` was asked for."""

    training: TrainRequest
    opponent: str | None
    seat: str | None


def run_self_play(request: SelfPlayRequest, console: Console) -> RunFolder:
    """Train as asked; the run's folder holds what came of it.

    Raises:
        ConfigError: Where a setting, the game, a seat or a policy does not exist.
        typer.Exit: With code 130 after Ctrl-C, when a checkpoint was written.
    """
    training = request.training
    settings = gather_settings(replace(training, flags={**_default_game(training), **training.flags}))
    sides = _gather_sides(request)
    folder = RunFolder(Path(settings.config.output_dir))
    for part in settings_table(settings):
        console.print(part)
    run = _Run(settings, sides, folder, console, training)
    folder.write_settings(settings.to_mapping())
    write_text(folder.path / _SIDES, yaml.safe_dump({"opponent": sides.opponent, "seat": sides.seat}))
    console.print(f"Run folder: {folder.path}", highlight=False, soft_wrap=True)
    try:
        run.play_scripts()
        run.warm_up()
        run.play_matches(BEFORE)
        run.train()
        run.play_matches(AFTER)
    except KeyboardInterrupt:
        console.print(
            f"\nStopped. Go on with: art-trainer self-play --resume {folder.path}",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    run.conclude()
    return folder


def game_texts(make_game: MakeGame, *, seed: int, games: int = 8) -> list[str]:
    """What a game and its scripted players say, for the vocabulary of a model made from scratch.

    Raises:
        ConfigError: Where a seat of the game has no scripted player.
    """
    with closing(make_game()) as game:
        players = {seat: tuple(players_of(game, seat)) for seat in game.possible_agents}
    for seat, names in players.items():
        if not names:
            raise ConfigError(f"{seat} has no scripted player to take words from: name a model instead")
    texts = []
    for turn in range(max(map(len, players.values()))):
        policies = {seat: ScriptedPolicy(names[turn % len(names)]) for seat, names in players.items()}
        starts = [Start(seed + number, rng_seed=(seed, turn, number)) for number in range(games)]
        for played in play_games(policies, make_game, starts):
            texts += [text for episode in played.values() for text in episode_texts(episode)]
    return texts


class _Run:
    """One run: its game, its policies, and where its files and words go."""

    def __init__(
        self, settings: Settings, sides: Sides, folder: RunFolder, console: Console, training: TrainRequest
    ) -> None:
        run = settings.run
        if run.warm_start is not None and run.warm_start_noise:
            raise ConfigError(f"warm_start_noise is {run.warm_start_noise}: self-play has none, set 0")
        if run.engine is not None:
            raise ConfigError(f"engine is {run.engine}, but games are sampled in this process: leave it out")
        if run.backend != LOCAL:
            raise ConfigError(f"backend is {run.backend}, but games are played in this process: leave it out")
        self._settings = settings
        self._folder = folder
        self._console = console
        self._make_game = game_maker(run.env, **{**run.env_args, **run.train_env_args})
        self._make_eval_game = game_maker(run.env, **run.env_args)
        self._went_back = training.resume_step is not None
        self._checkpoint: Path | None = None
        if training.resume is not None:
            self._checkpoint = checkpoint_to_resume(folder.checkpoints, training.resume_step)
        if self._checkpoint is not None:
            verify_checkpoint(self._checkpoint)
        self._watcher = ProgressWatcher()
        self._trainer = self._make_trainer(sides)
        self._matches: dict[str, list[Match]] = {}

    def play_scripts(self) -> None:
        """Let the scripted players of the learning seats show how they do there."""
        config = self._settings.config
        chosen = self._settings.run.baselines
        for seat in self._trainer.learning_seats:
            with closing(self._make_eval_game()) as game:
                known = tuple(players_of(game, seat))
            for name in known if chosen is None else [name for name in chosen if name in known]:
                matches = self._saved(name, [seat]) or play_matches(
                    {seat: ScriptedPolicy(name)},
                    self._make_eval_game,
                    episodes=config.eval_episodes,
                    seed=config.seed + EVALUATION_SEED,
                    split=config.eval_split,
                )
                self._keep(name, matches)

    def warm_up(self) -> None:
        """Imitate a scripted player, where the settings ask for it and no checkpoint already has."""
        run, trainer = self._settings.run, self._trainer
        if run.warm_start is None or self._checkpoint is not None:
            return
        for policy in (trainer.policy, *(rival.policy for rival in trainer.rivals.values())):
            seats = [seat for seat in trainer.learning_seats if trainer.policies[seat] is policy]
            losses = imitate_players(
                policy,
                self._make_game,
                seats,
                run.warm_start,
                episodes=run.warm_start_episodes,
                seed=self._settings.config.seed,
                config=ImitationConfig(
                    epochs=run.warm_start_epochs,
                    batch_size=run.warm_start_batch_size,
                    learning_rate=run.warm_start_learning_rate,
                ),
            )
            self._console.print(
                f"warm start of {' and '.join(seats)}: imitated {run.warm_start}, "
                f"loss {losses[0]:.3f} to {losses[-1]:.3f}",
                highlight=False,
                soft_wrap=True,
            )
        for learning in (trainer, *trainer.rivals.values()):
            learning.learner.renew_reference()  # training begins here

    def play_matches(self, when: str) -> None:
        """Evaluate the models as they are now; a resumed run keeps what it knew before it was stopped."""
        seats = self._trainer.learning_seats
        matches = self._saved(when, seats) if when != AFTER else []
        if not matches:
            pairs = sum(len(opponents_of(self._make_eval_game, seat)) for seat in seats)
            with episode_bar(self._console) as bar:
                task = bar.add_task(when, total=pairs * self._settings.config.eval_episodes)
                matches = self._trainer.matches(lambda _: bar.advance(task))
        self._keep(when, matches)

    def train(self) -> None:
        """Train, from the latest checkpoint where there is one to resume from."""
        config = self._settings.config
        if self._checkpoint is not None:
            self._trainer.load_checkpoint(self._checkpoint)
            if self._went_back:
                discard_checkpoints_after(self._folder.checkpoints, self._trainer.step)
            self._console.print(f"Going on after step {self._trainer.step}.", highlight=False)
        episodes = config.groups_per_step * config.num_generations * len(self._trainer.policies)
        with training_progress(
            self._console, config.max_steps, done=self._trainer.step, episodes_per_step=episodes
        ) as self._watcher.progress:
            self._trainer.train()

    def conclude(self) -> None:
        """Print the table, the paired differences and where everything lies."""
        self._console.print(match_table(self._matches))
        for line in difference_lines(self._matches[BEFORE], self._matches[AFTER]):
            self._console.print(line, highlight=False, soft_wrap=True)
        self._console.print(f"Transcripts: {self._folder.evaluations}", highlight=False, soft_wrap=True)

    def _saved(self, who: str, seats: Sequence[str]) -> list[Match]:
        """The matches of an earlier part of this run; empty unless all are there."""
        found = []
        for seat in seats:
            for opponent in opponents_of(self._make_eval_game, seat):
                name = _file(who, seat, opponent)
                evaluation = self._folder.evaluation(name)
                if evaluation is None:
                    return []
                found.append(Match(seat, opponent, evaluation, tuple(self._folder.transcripts(name))))
        return found

    def _keep(self, who: str, matches: Sequence[Match]) -> None:
        kept = self._matches.setdefault(who, [])
        for match in matches:
            evaluation = replace(match.evaluation, policy=who)
            self._folder.write_evaluation(_file(who, match.seat, match.opponent), evaluation, match.episodes)
            kept.append(replace(match, evaluation=evaluation))

    def _make_trainer(self, sides: Sides) -> SelfPlayTrainer:
        seats = seats_of(self._make_game)
        if sides.seat is not None and sides.seat not in seats:
            raise ConfigError(f"the game has no seat `{sides.seat}`{did_you_mean(sides.seat, seats)}")
        alone = sides.opponent not in (SELF, COPY)
        if sides.seat is not None and not alone:
            raise ConfigError(f"--seat goes with an opponent that does not learn; {sides.opponent} does")
        first = sides.seat or seats[0]
        policies: dict[str, Policy] = {first: self._model(self._checkpoint)}
        for seat in seats:
            if seat != first:
                policies[seat] = self._opponent(sides.opponent, seat, policies[first])
        return SelfPlayTrainer(
            policies,
            self._make_game,
            self._settings.config,
            eval_game=self._make_eval_game,
            learning_seats=[first] if alone else None,
            callbacks=[self._watcher],
        )

    def _opponent(self, words: str, seat: str, model: Policy) -> Policy:
        if words == SELF:
            return model
        if words == COPY:
            found = self._checkpoint
            return self._model(None if found is None else found / RIVALS / seat)
        config, run = self._settings.config, self._settings.run
        return load_policy(
            words,
            seat_env_maker(self._make_game, seat),
            temperature=config.temperature,
            max_tokens=config.max_completion_length,
            max_batch=run.max_batch,
            device=run.device,
        )

    def _model(self, checkpoint: Path | None) -> TransformersPolicy:
        """The model, or a second one like it."""
        settings = self._settings
        return prepare_policy(
            settings,
            lambda: game_texts(self._make_game, seed=settings.config.seed),
            checkpoint=checkpoint,
        )


def _file(who: str, seat: str, opponent: str) -> str:
    return f"{who}-{seat}-vs-{opponent}"


def _default_game(training: TrainRequest) -> dict[str, Any]:
    """The game, where neither a flag, the YAML file nor a resumed run names one."""
    named = training.resume is not None or "env" in training.overrides
    if training.config_file is not None:
        named = named or "env" in read_yaml_config(training.config_file)
    return {} if named else {"env": GAME}


def _gather_sides(request: SelfPlayRequest) -> Sides:
    """What the flags say, or else the resumed run."""
    saved: dict[str, Any] = {}
    resume = request.training.resume
    if resume is not None:
        file = resume / _SIDES
        if not file.exists():
            raise ConfigError(f"--resume: {resume} holds no run of self-play (it has no {_SIDES})")
        saved = read_yaml(file)
    opponent = request.opponent or saved.get("opponent") or SELF
    return Sides(opponent, request.seat or saved.get("seat"))
