"""One run of self-play: its game, policies, matches, training and tables."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from rich.console import Console

from art_gym.errors import did_you_mean
from art_gym.games.seats import players_of
from art_trainer.cli.console import comparison_lines, episode_bar, make_table, unless_quiet
from art_trainer.cli.live_view import TrainingProgress
from art_trainer.cli.policies import load_policy
from art_trainer.cli.run_config import setting_default
from art_trainer.cli.training_run import run_trainer
from art_trainer.errors import ConfigError
from art_trainer.formatting import number, percent
from art_trainer.inference.policy import Policy
from art_trainer.inference.scripted_policy import RANDOM, ScriptedPolicy
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.rollout.evaluate import Evaluation, compare
from art_trainer.tracking.run_dir import AFTER, BEFORE
from art_trainer.training.env_samples import game_texts
from art_trainer.training.run_settings import AUTO, LOCAL, SELF, Settings
from art_trainer.training.run_setup import find_checkpoint, imitation_config, prepare_policy
from art_trainer.training.self_play import (
    SelfPlayTrainer,
    game_maker,
    opponents_of,
    play_matches,
    seat_env_maker,
)
from art_trainer.training.sft import imitate_players, opponents_of_player

_log = logging.getLogger(__name__)


class SelfPlayRun:
    """One run of self-play: its game, its policies, its matches and its folder."""

    def __init__(self, settings: Settings, console: Console) -> None:
        run = settings.run
        for name in ("warm_start_noise", "warm_start_rounds", "warm_start_keep"):
            value, only = getattr(run, name), setting_default(name)
            if run.warm_start is not None and value != only:
                raise ConfigError(f"{name} is {value}, but self-play knows only {only}: leave it out")
        if run.engine is not None or run.backend != LOCAL:
            raise ConfigError("games are played and sampled in this process: leave engine and backend out")
        self._settings = settings
        self._folder = settings.folder
        self._console, self._shown = console, unless_quiet(console, settings)
        self._make_game = game_maker(run.env, **run.all_env_args)
        self._make_eval_game = game_maker(run.env, **run.env_args)
        self.checkpoint = find_checkpoint(settings)
        with closing(self._make_game()) as game:
            seats = list(game.possible_agents)
        self._progress = TrainingProgress(self._shown, settings.episodes_per_step * len(seats))
        self._trainer = self._make_trainer(seats)
        if run.warm_start not in (None, AUTO):
            for seat in self._trainer.learning_seats:
                opponents_of_player(self._make_game, seat, run.warm_start)  # refuses a wrong name early
        self._players: dict[str, None] = {}

    def play_scripts(self) -> None:
        """Play the learning seats' scripted players, to compare with."""
        chosen = self._settings.run.baselines
        for seat in self._trainer.learning_seats:
            with closing(self._make_eval_game()) as game:
                known = tuple(players_of(game, seat))
            for name in known if chosen is None else [name for name in chosen if name in known]:
                self._play(name, seat, ScriptedPolicy(name))

    def play_models(self, when: str) -> None:
        """Evaluate the models as they are now."""
        for seat in self._trainer.learning_seats:
            policy = self._trainer.policies[seat]
            assert isinstance(policy, TransformersPolicy)
            with policy.evaluating(self._settings.config):
                self._play(when, seat, policy)

    def _play(self, who: str, seat: str, policy: Policy) -> None:
        """Play a policy against a seat's opponents; a resumed run keeps what was played before."""
        config, opponents = self._settings.config, opponents_of(self._make_eval_game, seat)
        self._players[who] = None
        if who != AFTER and all(self._evaluation(who, seat, opponent) for opponent in opponents):
            return
        with episode_bar(self._shown, who, len(opponents) * config.eval_episodes) as on_episode:
            matches = play_matches(policy, seat, self._make_eval_game, config, on_episode)
        for match in matches:
            evaluation = replace(match.evaluation, policy=who)
            name = _match_name(who, seat, match.opponent)
            self._folder.write_evaluation(name, evaluation, match.episodes)

    def _evaluation(self, who: str, seat: str, opponent: str) -> Evaluation | None:
        return self._folder.evaluation(_match_name(who, seat, opponent))

    def warm_up(self) -> None:
        """Imitate a scripted player, if the settings ask for it and there is no checkpoint."""
        run, trainer = self._settings.run, self._trainer
        if run.warm_start is None or self.checkpoint is not None:
            return
        player = run.warm_start
        if player == AUTO:
            with closing(self._make_game()) as game:
                if not all(RANDOM in players_of(game, seat) for seat in trainer.learning_seats):
                    _log.info("no warm start: a seat has no scripted player `%s` to imitate", RANDOM)
                    return
            player = RANDOM
        seats = trainer.learning_seats
        losses = imitate_players(
            trainer.policy,
            self._make_game,
            seats,
            player,
            episodes=run.warm_start_episodes,
            seed=self._settings.config.seed,
            config=imitation_config(self._settings),
        )
        _log.info(
            "warm start of %s: imitated %s, loss %.3f to %.3f",
            *(" and ".join(seats), player, losses[0], losses[-1]),
        )
        trainer.learner.sync_reference()  # training begins here

    def train(self) -> None:
        """Train, from the checkpoint if the run is resumed."""
        run_trainer(self._trainer, self._settings, self._progress, self.checkpoint)

    def print_results(self) -> None:
        """Print how each player did in each seat against each opponent, and what training changed."""
        title = "Against scripted players, 95% intervals"
        table = make_table(title, ["seat", "against", "player"], ["success", "mean reward", "invalid"])
        lines = []
        for seat in self._trainer.learning_seats:
            for opponent in opponents_of(self._make_eval_game, seat):
                table.add_section()
                found = {who: self._evaluation(who, seat, opponent) for who in self._players}
                for who, one in found.items():
                    if one is not None:
                        figures = (percent(one.success), number(one.reward), f"{100 * one.invalid_rate:.1f}%")
                        table.add_row(seat, opponent, who, *figures)
                before, after = found[BEFORE], found[AFTER]
                if before is not None and after is not None and before.counted and after.counted:
                    changes = "".join(f"\n  {line}" for line in comparison_lines(compare(before, after)))
                    lines.append(f"{seat} against {opponent}, after training:{changes}")
        nobody = "Nothing to compare with: the game has no scripted `players` for the other seats."
        self._console.print(table if table.row_count else nobody)
        for line in lines:
            _log.info("%s", line)
        _log.info("Transcripts: %s", self._folder.evaluations)

    def _make_trainer(self, seats: Sequence[str]) -> SelfPlayTrainer:
        opponent, seat = self._settings.run.opponent, self._settings.run.seat
        if seat is not None and seat not in seats:
            raise ConfigError(f"the game has no seat `{seat}`{did_you_mean(seat, seats)}")
        if seat is not None and opponent == SELF:
            raise ConfigError(f"--seat needs an opponent that does not learn; {opponent} does")
        first = seat or seats[0]
        settings = self._settings
        model = prepare_policy(
            settings,
            lambda: game_texts(self._make_game, seed=settings.config.seed),
            checkpoint=self.checkpoint,
        )
        policies: dict[str, Policy] = {first: model}
        for other in seats:
            if other != first:
                policies[other] = model if opponent == SELF else self._opponent(opponent, other)
        return SelfPlayTrainer(
            policies,
            self._make_game,
            settings.config,
            eval_game=self._make_eval_game,
            learning_seats=None if opponent == SELF else [first],
            callbacks=[self._progress],
        )

    def _opponent(self, name: str, seat: str) -> Policy:
        config, run = self._settings.config, self._settings.run
        return load_policy(
            name,
            seat_env_maker(self._make_game, seat),
            temperature=config.temperature,
            max_tokens=config.max_completion_length,
            max_batch=run.max_batch,
            device=run.device,
        )


def _match_name(who: str, seat: str, opponent: str) -> str:
    return f"{who}-{seat}-vs-{opponent}"
