"""Supervised learning from a scripted player of the environment, before reinforcement.

A policy that never does the right thing by chance learns nothing from rewards. First it imitates the player's
own episodes; in further rounds it plays itself, and learns what the player would have done in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from art_trainer.demonstrations import collect_corrections, collect_demonstrations
from art_trainer.errors import ConfigError
from art_trainer.imitation import ImitationConfig, decayed, imitate
from art_trainer.rollout import EnvPool, MakeEnv, Start
from art_trainer.transformers_policy import TransformersPolicy


@dataclass(frozen=True, slots=True)
class WarmStartConfig:
    """Settings of :func:`warm_start`.

    Raises:
        ConfigError: Where a value is out of range.
    """

    player: str
    """A scripted player of the environment: one of its ``baselines`` or ``teachers``."""
    episodes: int = 200
    """Episodes of a round."""
    rounds: int = 1
    """The first round imitates the player's episodes; in each further one the policy plays and the player
    says what it would have replied (DAgger, arXiv:1011.0686)."""
    imitation: ImitationConfig = field(default_factory=ImitationConfig)
    """How each round's replies are learned; the learning rate falls over all rounds."""

    def __post_init__(self) -> None:
        for name in ("episodes", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"the warm start's {name} is {getattr(self, name)}: set at least 1")


@dataclass(frozen=True, slots=True)
class WarmStartRound:
    """What one round had to learn from, and how well it was learned."""

    episodes: int
    replies: int
    mean_reward: float
    """Of whoever played: the player in the first round, then the policy before the round."""
    losses: tuple[float, ...]


def warm_start(
    policy: TransformersPolicy,
    make_env: MakeEnv,
    config: WarmStartConfig,
    *,
    split: str | None,
    seed: int,
    on_round: Callable[[WarmStartRound], None] | None = None,
    on_step: Callable[[dict[str, float]], None] | None = None,
) -> list[WarmStartRound]:
    """Train the policy to reply as a scripted player does.

    Args:
        policy: Trained in place; its sampling is how it plays in the later rounds.
        make_env: Makes one environment.
        config: The settings.
        split: Whose tasks are played; ``None`` leaves it to the environment.
        seed: The same seed gives the same weights.
        on_round: Called after each round.
        on_step: Called after each optimizer step, as by :func:`~art_trainer.imitation.imitate`.

    Raises:
        ValueError: Where all episodes of a round failed.
    """
    options = None if split is None else {"split": split}
    rounds = []
    with EnvPool(make_env) as pool:
        for number in range(config.rounds):
            seeds = np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(config.episodes)
            starts = [Start(int(s), options, rng_seed=(seed, number, i)) for i, s in enumerate(seeds)]
            collect = collect_corrections if number else collect_demonstrations
            episodes = collect(policy, pool, config.player, starts)
            losses = imitate(
                policy,
                episodes,
                decayed(config.imitation, number, config.rounds),
                rng=np.random.default_rng((seed, number)),
                on_step=on_step,
            )
            replies = sum(len(episode.turns) for episode in episodes)
            mean = float(np.mean([episode.reward for episode in episodes]))
            rounds.append(WarmStartRound(len(episodes), replies, mean, tuple(losses)))
            if on_round is not None:
                on_round(rounds[-1])
    return rounds
