"""GRPO on games, in which every seat is played by a policy: the one that learns, another one, or a script.

::

    trainer = SelfPlayTrainer(policy, "art/2048Duel-v0", GRPOConfig(max_steps=100))
    trainer.train()

One policy for all seats learns from both sides of its games. With a policy for each seat
(``{"slider_0": one, "placer_1": other}``) one of them learns, and the others, such as scripted players, only
play. Otherwise it is a :class:`~art_trainer.training.trainer.GRPOTrainer`: each seat's attempts at one start
are a group, and the learner is the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, Unpack

import gymnasium as gym
import numpy as np

from art_gym import catalog
from art_gym.env import Baseline
from art_gym.errors import did_you_mean
from art_gym.games.seats import SeatEnv, TextGame, players_of
from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError
from art_trainer.inference.policy import Policy
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.rollout.backend import CollectCallbacks, RolloutBackend
from art_trainer.rollout.envs import find_env
from art_trainer.rollout.evaluate import Evaluation, evaluate
from art_trainer.rollout.games import MakeGame, play_games, seat_groups, seat_of
from art_trainer.tracking.callbacks import TrainerCallback
from art_trainer.training.distributed import current_process_group
from art_trainer.training.metrics import episode_metrics
from art_trainer.training.trainer import EVALUATION_SEED, GRPOTrainer
from art_trainer.types import Episode, Group, GroupSpec

SEAT_METRICS = ("reward", "success", "turns", "invalid_actions")
"""What a step's metrics tell of each seat, as ``SEAT/NAME``."""


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """How a policy did in a seat against a scripted player of the others."""

    seat: str
    opponent: str
    evaluation: Evaluation
    episodes: tuple[Episode, ...]
    """The policy's, in the order of the starts."""


class SelfPlayTrainer(GRPOTrainer):
    """Trains a policy in seats of a game, against itself or against policies that do not learn.

    Args:
        policies: One policy for all seats, or one for each.
        game: The id of a PettingZoo AEC environment, or a callable that makes one. Observations hold text
            under ``"text"``, and ``step`` takes a reply in text.
        config: The settings. ``groups_per_step`` counts starts: each gives a group for every seat that
            learns.
        eval_game: Makes the game of evaluations; by default the same.
        learning_seats: The seats that learn; by default all whose policy has weights.
        callbacks: Called for each step, and of the episode of each seat.

    Attributes:
        policies: The policy of each seat.

    Raises:
        ConfigError: If a seat has no policy, there is no such seat, not exactly one policy would learn, or
            a setting is for environments only.
    """

    def __init__(
        self,
        policies: Policy | Mapping[str, Policy],
        game: str | MakeGame,
        config: GRPOConfig | None = None,
        *,
        eval_game: MakeGame | None = None,
        learning_seats: Sequence[str] | None = None,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:
        config = config or GRPOConfig()
        best = "early_stopping_patience", "load_best_model_at_end", "metric_for_best_model"
        for name in ("dynamic_sampling", "env_threads", *best):
            if value := getattr(config, name):
                raise ConfigError(f"{name} is {value!r}: self-play has none, leave it out")
        self.make_game = game_maker(game) if isinstance(game, str) else game
        self.make_eval_game = eval_game or self.make_game
        with closing(self.make_game()) as made:
            seats = list(made.possible_agents)
        self.policies = dict(policies) if isinstance(policies, Mapping) else dict.fromkeys(seats, policies)
        _check_seats("policies are", self.policies, seats)
        if set(self.policies) != set(seats):
            raise ConfigError(
                f"policies are for {', '.join(self.policies)}, but the seats are {', '.join(seats)}"
            )
        if learning_seats is None:
            learning_seats = [name for name in seats if isinstance(self.policies[name], TransformersPolicy)]
        _check_seats("learning_seats are", learning_seats, seats)
        self.learning_seats = tuple(name for name in seats if name in learning_seats)
        if not self.learning_seats:
            raise ConfigError("no seat learns: give one a TransformersPolicy, whose weights can be trained")
        if current_process_group().size > 1:
            raise ConfigError(
                f"games are played and learned from in one process, but {current_process_group().size} were "
                "started: start one, without torchrun or accelerate launch"
            )
        first, *others = self.learning_seats
        policy = self._learner_of(first)
        for other in others:
            if self._learner_of(other) is not policy:
                raise ConfigError(
                    f"{first} and {other} have two policies to train: one policy learns, so give both seats "
                    "the same, or name the seats that learn in learning_seats"
                )
        backend = _GameBackend(self.policies, self.make_game, self.learning_seats, config)
        make_env = seat_env_maker(self.make_game, first)
        super().__init__(policy, make_env, config, callbacks=callbacks, backend=backend)

    def _update(self, groups: Sequence[Group]) -> dict[str, float]:
        """Learn from the groups of all seats that learn; each has ``SEAT_METRICS`` of its own as well."""
        metrics = super()._update(groups)
        for seat in self.learning_seats:
            played = [episode for group in groups if seat_of(group) == seat for episode in group.episodes]
            found = episode_metrics(played)
            metrics |= {f"{seat}/{name}": found[name] for name in SEAT_METRICS if name in found}
        return metrics

    def evaluate(self) -> dict[str, float]:
        """Play :meth:`matches`; return means as ``eval_SEAT_vs_OPPONENT_reward`` and ``…_success``."""
        metrics: dict[str, float] = {}
        for match in self.matches():
            name = f"eval_{match.seat}_vs_{match.opponent}"
            if match.evaluation.reward is not None:
                metrics[f"{name}_reward"] = match.evaluation.reward.value
            if match.evaluation.success is not None:
                metrics[f"{name}_success"] = match.evaluation.success.value
        return metrics

    def matches(self) -> list[Match]:
        """Play every seat that learns against every scripted player of the other seats.

        See :func:`play_matches`; models sample at ``eval_temperature``.
        """
        found = []
        for seat in self.learning_seats:
            policy = self._learner_of(seat)
            with policy.evaluating(self.config):
                found += play_matches(policy, seat, self.make_eval_game, self.config)
        return found

    def _learner_of(self, seat: str) -> TransformersPolicy:
        policy = self.policies[seat]
        if not isinstance(policy, TransformersPolicy):
            raise ConfigError(f"{seat} cannot learn: {policy.name} has no weights that could be trained")
        return policy


@dataclasses.dataclass
class _GameBackend(RolloutBackend):
    """Plays the games of a step: as many as a task has attempts, with a group for each seat that learns."""

    policies: Mapping[str, Policy]
    make_game: MakeGame
    learning_seats: Sequence[str]
    config: GRPOConfig
    per_process = True

    def collect(self, tasks: Sequence[GroupSpec], **callbacks: Unpack[CollectCallbacks]) -> list[Group]:
        """Play the games; a task gives as many groups as there are seats that learn and came to move."""
        size = self.config.num_generations
        starts = [task.episode(member, place) for place, task in enumerate(tasks) for member in range(size)]
        games = play_games(
            self.policies,
            self.make_game,
            starts,
            max_concurrent=self.config.max_concurrent,
            on_episode=callbacks["on_episode"],
        )
        return seat_groups(games, size, self.learning_seats)


def play_matches(
    policy: Policy,
    seat: str,
    make_game: MakeGame,
    config: GRPOConfig,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Match]:
    """Evaluate a policy in a seat of a game, each scripted player of the other seats in turn against it.

    The k-th game of every match begins alike, so they can be compared pair by pair. A game that offers no
    scripted players gives no matches.
    """
    with closing(make_game()) as game:
        name = str(getattr(game, "unwrapped", game))
    found = []
    for opponent in opponents_of(make_game, seat):
        transcripts: list[Episode] = []
        evaluation = evaluate(
            policy,
            seat_env_maker(make_game, seat, opponent),
            split=config.eval_split,
            episodes=config.eval_episodes,
            seed=config.seed + EVALUATION_SEED,
            max_concurrent=config.max_concurrent,
            settings={"opponent": opponent},
            on_episode=on_episode,
            transcripts=transcripts,
        )
        named = dataclasses.replace(evaluation, env_id=f"{name}:{seat}")
        found.append(Match(seat, opponent, named, tuple(transcripts)))
    return found


def seat_env_maker(
    make_game: MakeGame, seat: str, opponent: str | Baseline | None = None
) -> Callable[[], SeatEnv]:
    """What makes one seat of a game an environment."""

    def make() -> SeatEnv:
        game = make_game()
        others = [name for name in game.possible_agents if name != seat]
        return SeatEnv(game, seat, dict.fromkeys(others, _nobody if opponent is None else opponent))

    return make


def game_maker(name: str, **arguments: Any) -> MakeGame:
    """What makes a game that is registered with PettingZoo.

    The project's own games are; another's is written as :func:`art_gym.lookup.find_env` takes it.

    Raises:
        ConfigError: If there is no such game, it does not take these arguments, or PettingZoo is missing.
    """
    try:
        import pettingzoo  # type: ignore[import-untyped]

        import art_gym.games.aec  # noqa: F401 (registers the project's games)
    except ModuleNotFoundError as error:
        raise ConfigError(f'games need PettingZoo: pip install "art-gym[pettingzoo]" ({error})') from error

    game_id = find_env(name, arguments).id
    if game_id not in pettingzoo.aec_registry:
        if game_id in gym.registry:
            raise ConfigError(f"{game_id} is an environment with one seat: use art-trainer train")
        raise ConfigError(f"no game `{game_id}`{did_you_mean(game_id, catalog.games())}")

    def make() -> TextGame:
        game: TextGame = pettingzoo.make("aec", game_id, **arguments)
        return game

    try:
        make().close()
    except ModuleNotFoundError as error:  # another library's game, which names what to install
        raise ConfigError(f"{game_id}: {error}") from error
    except (TypeError, ValueError) as error:
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "no arguments"
        raise ConfigError(f"{game_id} cannot be made with {given}: {error}") from error
    return make


def opponents_of(make_game: MakeGame, seat: str) -> tuple[str, ...]:
    """The scripted players that all seats but one have, by name."""
    with closing(make_game()) as game:
        others = [players_of(game, name) for name in game.possible_agents if name != seat]
    return tuple(name for name in others[0] if all(name in players for players in others)) if others else ()


def _nobody(game: Any, rng: np.random.Generator) -> Callable[[str], str]:
    """The opponent in environments that are looked at and never played."""
    raise RuntimeError("this environment is for its tasks alone: play games with play_games")


def _check_seats(what: str, names: Iterable[str], seats: Sequence[str]) -> None:
    for name in names:
        if name not in seats:
            raise ConfigError(f"{what} for `{name}`, which is no seat of the game{did_you_mean(name, seats)}")
