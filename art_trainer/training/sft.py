"""Supervised learning: cross-entropy on the replies of episodes."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from art_gym.errors import did_you_mean
from art_gym.games.seats import players_of
from art_trainer.errors import ConfigError
from art_trainer.inference.trainable_policy import TrainablePolicy
from art_trainer.models.logprobs import Scorer
from art_trainer.models.memory import MicroBatchLimit, release_memory, trim_memory
from art_trainer.models.optim import UpdateGuard, make_optimizer, schedule_factor
from art_trainer.models.packing import TokenRow, pack
from art_trainer.rollout.envs import MakeEnv
from art_trainer.rollout.episodes import rollout_episodes
from art_trainer.rollout.games import MakeGame
from art_trainer.training.demonstrations import (
    KEEP,
    Demonstration,
    Keep,
    collect_demonstrations,
    play_demonstrations,
)
from art_trainer.training.env_samples import play_within
from art_trainer.training.self_play import opponents_of, seat_env_maker
from art_trainer.types import Episode, EpisodeSpec

_log = logging.getLogger(__name__)

MAX_SKIPPED = 10
"""Steps in a row that may be skipped for a loss or gradient that is not finite."""
OnStep = Callable[[dict[str, float]], None]


@dataclass(frozen=True, slots=True)
class ImitationConfig:
    """Settings of :func:`imitate`."""

    epochs: int = 1
    """Passes over the episodes."""
    batch_size: int = 32
    """Token histories an optimizer step: episodes, unless a window of history cuts them into more."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW; it falls in a line to ``lr_final_ratio`` of it."""
    lr_final_ratio: float = 0.1
    """What is left of the learning rate at the end."""
    warmup_steps: int = 0
    """Optimizer steps of the linear way up."""
    weight_decay: float = 0.0
    """AdamW's weight decay."""
    max_grad_norm: float = 1.0
    """Longest gradient a step takes."""
    tokens_per_microbatch: int = 4096
    """Most padded tokens in one forward pass."""


def imitate(
    policy: TrainablePolicy,
    episodes: Sequence[Episode],
    config: ImitationConfig | None = None,
    *,
    rng: np.random.Generator,
    on_step: OnStep | None = None,
) -> list[float]:
    """Train the policy to give the replies of the episodes, but for those that were not valid.

    Args:
        policy: Trained in place; its version rises by one.
        episodes: Demonstrations, corrections, or the policy's own best episodes.
        config: The settings.
        rng: Shuffles the histories.
        on_step: Called after each optimizer step with ``step``, ``steps`` (of how many), ``loss``,
            ``learning_rate`` and ``grad_norm``.

    Returns:
        The loss of each optimizer step before it was taken, nats per token.

    Raises:
        ValueError: If the episodes have no sampled token of a valid reply.
        DivergedError: After ten steps in a row whose loss or gradient was not finite.
    """
    config = config or ImitationConfig()
    rows = [row for index, episode in enumerate(episodes) for row in _rows(index, episode)]
    if not rows:
        fault = next((f". The first fault: {episode.error}" for episode in episodes if episode.failed), "")
        raise ValueError(
            f"none of the {len(episodes)} episodes has a valid reply with tokens: use "
            f"collect_demonstrations, or a policy that records tokens{fault}"
        )
    model = policy.model.eval()
    scorer = Scorer(model)
    optimizer = make_optimizer(model, learning_rate=config.learning_rate, weight_decay=config.weight_decay)
    guard = UpdateGuard(optimizer, config.max_grad_norm)
    limit = MicroBatchLimit(config.tokens_per_microbatch, scorer.device)
    steps = config.epochs * -(-len(rows) // config.batch_size)
    losses: list[float] = []
    for step, batch in enumerate(_batches(rows, config, rng)):
        rate = config.learning_rate * schedule_factor(
            step, steps, "linear", warmup_steps=config.warmup_steps, final_ratio=config.lr_final_ratio
        )
        losses.append(_backward(scorer, guard, batch, limit))
        norm = guard.step(losses[-1], rate)
        guard.check(MAX_SKIPPED)
        if on_step is not None:
            numbers = {"step": step + 1, "steps": steps, "loss": losses[-1], "learning_rate": rate}
            on_step({**numbers, "grad_norm": float("nan") if norm is None else norm})
    policy.version += 1
    del optimizer, guard
    release_memory(scorer.device, above=0)  # once a run, so that it costs nothing
    return losses


def _rows(index: int, episode: Episode) -> list[TokenRow]:
    # A reply that was never answered has its tokens too; one that was refused is not worth imitating.
    weights_T = np.array([*(turn.error is None for turn in episode.turns), True], dtype=float)
    rows = [
        TokenRow.from_history(history, advantages_T=weights_T, weight=1.0, group=index)
        for history in episode.histories
    ]
    return [row for row in rows if row.advantages.any()]


def _batches(
    rows: Sequence[TokenRow], config: ImitationConfig, rng: np.random.Generator
) -> Iterator[list[TokenRow]]:
    """Yield the rows of each optimizer step, shuffled anew in every epoch."""
    for _ in range(config.epochs):
        order = rng.permutation(len(rows))
        for start in range(0, len(rows), config.batch_size):
            yield [rows[index] for index in order[start : start + config.batch_size]]


def _backward(scorer: Scorer, guard: UpdateGuard, rows: Sequence[TokenRow], limit: MicroBatchLimit) -> float:
    """Compute the gradient of the mean loss of the rows' tokens; return the loss."""
    tokens = sum(float(row.advantages.sum()) for row in rows)

    def compute(most: int) -> float:
        guard.clear_gradients()
        loss = 0.0
        for batch in pack(rows, most, share=scorer.shares_prefixes, device=scorer.device):
            part = -(scorer.score(batch)[0] * batch.advantages_N).sum() / tokens
            part.backward()  # type: ignore[no-untyped-call]
            loss += float(part.detach())
            del part
            trim_memory(scorer.device)
        return loss

    return limit.run(compute, max(len(row.token_ids) for row in rows))


# Warm starts: supervised learning from a scripted player before reinforcement. A policy that never does the
# right thing, or never makes a valid move, by chance learns nothing from rewards.


def warm_start(
    policy: TrainablePolicy,
    make_env: MakeEnv,
    player: str,
    *,
    episodes: int,
    seed: int,
    rounds: int = 1,
    noise: float = 0.0,
    keep: Keep = KEEP["all"],
    split: str | None = None,
    config: ImitationConfig | None = None,
    on_step: OnStep | None = None,
    done: int = 0,
    on_round: Callable[[int], None] | None = None,
) -> list[float]:
    """Train a policy to reply as a scripted player does.

    Args:
        policy: Trained in place.
        make_env: Makes one environment.
        player: The player's name.
        episodes: How many are played in a round.
        seed: Draws the episodes' starts, and shuffles.
        rounds: In the first the player plays, later the policy does (``on_policy`` of
            :func:`collect_demonstrations`). Each round learns from its own episodes.
        noise: Of the first round, see :func:`collect_demonstrations`.
        keep: See :func:`collect_demonstrations`.
        split: Whose tasks are played; ``None`` leaves it to the environment.
        config: The settings of :func:`imitate`; the learning rate falls over all rounds.
        on_step: As in :func:`imitate`.
        done: How many rounds the policy has behind it.
        on_round: Called after each round with how many are done.

    Returns:
        The losses of :func:`imitate`, of all rounds but those behind it.

    Raises:
        ConfigError: If no episode of a round is kept.
    """
    options = None if split is None else {"split": split}
    config = config or ImitationConfig()
    losses: list[float] = []
    rates = [1 - (1 - config.lr_final_ratio) * number / rounds for number in range(rounds + 1)]
    for number, (rate, next_rate) in list(enumerate(itertools.pairwise(rates)))[done:]:
        key = (seed, number) if number else (seed,)
        drawn = np.random.SeedSequence(key).generate_state(episodes)
        starts = [EpisodeSpec(int(start), options, rng_seed=(*key, i)) for i, start in enumerate(drawn)]
        disturbed = 0.0 if number else noise
        shown = collect_demonstrations(
            policy, make_env, player, starts, noise=disturbed, on_policy=number > 0, keep=keep
        )
        if not shown:
            raise ConfigError(
                f"warm_start: none of {episodes} episodes of `{player}` is kept to be imitated; play more, "
                "keep others, or imitate another policy"
            )
        part = replace(config, learning_rate=config.learning_rate * rate, lr_final_ratio=next_rate / rate)
        found = imitate(policy, shown, part, rng=np.random.default_rng(key), on_step=on_step)
        losses += found
        replies, mean = sum(len(one.turns) for one in shown), sum(one.reward for one in shown) / len(shown)
        _log.info(
            "warm start, round %d of %d: %d replies of %s in %d episodes that %s played (mean reward %.4g), "
            "loss %.3f to %.3f",
            *(number + 1, rounds, replies, player, len(shown), "the model" if number else "it", mean),
            *(found[0], found[-1]),
        )
        if on_round is not None:
            on_round(number + 1)
    return losses


@dataclass(frozen=True, slots=True)
class ValidReplies:
    """The result of :func:`imitate_until_valid`."""

    valid: float
    """Share of the policy's sampled replies that are valid calls."""
    played: int
    """Episodes that the scripted policies played."""
    imitated: int
    """How often one of those with the highest reward was imitated, over the rounds."""


_WANTED, _ROUNDS = 0.95, 8  # share of valid replies at which it stops; rounds after which it does anyway
_EPISODES, _TURNS = 2048, 40_000  # played in a round, at most
_BEST = 0.125  # how many episodes a round imitates, as a share of it: those of the highest reward so far


def imitate_until_valid(
    policy: TrainablePolicy,
    make_env: MakeEnv,
    demonstrators: Sequence[str],
    *,
    seed: int,
    split: str | None = None,
    config: ImitationConfig | None = None,
    on_step: OnStep | None = None,
) -> ValidReplies:
    """Imitate the best episodes of scripted policies until most sampled replies are valid calls.

    A model of random weights never makes a valid call by chance, so that no attempt gets another reward than
    the others, and rewards teach nothing. Random calls do, and the best of many random episodes also show
    what the task rewards. If replies are valid, and some of the best episodes succeeded, but less than half,
    and others earned nothing, it goes on with the successes alone.

    Args:
        policy: Trained in place.
        make_env: Makes one environment.
        demonstrators: Names of the environment's scripted policies; each plays as many episodes.
        seed: Draws the episodes' starts, samples replies, and shuffles.
        split: Whose tasks are played; ``None`` leaves it to the environment.
        config: The settings of :func:`imitate` in a round.
        on_step: As in :func:`imitate`.
    """
    options = None if split is None else {"split": split}
    each, played, imitated = -(-_EPISODES // len(demonstrators)), 0, 0
    best_shown: list[Demonstration] = []
    reached = unlike = False
    for number in range(1, _ROUNDS + 1):
        shown: list[Demonstration] = []
        for place, name in enumerate(demonstrators):
            key = (seed, number, place)
            drawn = np.random.SeedSequence(key).generate_state(each)
            starts = [EpisodeSpec(int(start), options, rng_seed=(*key, n)) for n, start in enumerate(drawn)]
            play = functools.partial(play_demonstrations, policy, make_env, name)
            shown += play_within(_TURNS // len(demonstrators), starts, play)
        played += len(shown)
        # The best so far: where one of a hundred random episodes succeeds, later rounds imitate those alone.
        kept = max(1, round(_BEST * len(shown)))
        best_shown = sorted(shown + best_shown, key=lambda one: -one.episode.reward)[:kept]
        won = [one for one in best_shown if one.episode.success]
        # Valid calls are learned. Now the many episodes that only gave up would teach to give up.
        chosen = list(itertools.islice(itertools.cycle(won), kept)) if won and reached else best_shown
        if unlike and number > _ROUNDS // 2:
            chosen = chosen[: kept // 2] + shown[: kept // 2]
        imitated += kept
        in_tokens = [one.in_tokens(policy.format) for one in chosen]
        imitate(policy, in_tokens, config, rng=np.random.default_rng((seed, number)), on_step=on_step)
        tried = rollout_episodes(policy, make_env, starts[:64])
        replies = sum(len(episode.turns) for episode in tried)
        valid = 1 - sum(episode.invalid_actions for episode in tried) / max(1, replies)
        reached = reached or valid >= _WANTED
        # Luck ends episodes early: the best do not show the later turns, in which replies must be valid too.
        unlike = _mean_turns(best_shown) < _mean_turns(tried) / 2
        rare = 0 < len(won) < kept / 2 and best_shown[-1].episode.reward <= 0
        if valid >= _WANTED and not rare:
            break
    return ValidReplies(valid, played, imitated)


def _mean_turns(episodes: Sequence[Episode] | Sequence[Demonstration]) -> float:
    return sum(len(episode.turns) for episode in episodes) / max(1, len(episodes))


def opponents_of_player(make_game: MakeGame, seat: str, player: str) -> tuple[str, ...]:
    """The scripted players of the other seats, against which a seat's scripted player can be imitated.

    Raises:
        ConfigError: If the seat has no such player, or nobody plays the others.
    """
    with closing(make_game()) as game:
        known = players_of(game, seat)
    if player not in known:
        raise ConfigError(f"warm start: {seat} has no player `{player}`{did_you_mean(player, known)}")
    opponents = opponents_of(make_game, seat)
    if not opponents:
        raise ConfigError(f"nobody plays against {seat}: the game has no scripted players for the others")
    return opponents


def imitate_players(
    policy: TrainablePolicy,
    make_game: MakeGame,
    seats: Sequence[str],
    player: str,
    *,
    episodes: int,
    seed: int,
    config: ImitationConfig | None = None,
) -> list[float]:
    """Train a policy to reply as a scripted player does in each of some seats of a game.

    Returns:
        The losses of :func:`imitate`.

    Raises:
        ConfigError: If a seat has no such player, or nobody plays the others.
        ValueError: If all episodes failed.
    """
    shown: list[Episode] = []
    for place, seat in enumerate(seats):
        opponents = opponents_of_player(make_game, seat, player)
        for turn, opponent in enumerate(opponents):
            count = len(range(turn, episodes, len(opponents)))
            drawn = np.random.SeedSequence(seed, spawn_key=(place, turn)).generate_state(count)
            starts = [
                EpisodeSpec(int(s), rng_seed=(seed, place, turn, number)) for number, s in enumerate(drawn)
            ]
            shown += collect_demonstrations(policy, seat_env_maker(make_game, seat, opponent), player, starts)
    return imitate(policy, shown, config, rng=np.random.default_rng(seed))
