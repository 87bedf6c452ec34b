"""Supervised learning from a scripted player of the environment, before reinforcement.

A policy that never does the right thing by chance learns nothing from rewards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from art_trainer.demonstrations import collect_demonstrations
from art_trainer.env_pool import MakeEnv
from art_trainer.errors import ConfigError
from art_trainer.imitation import ImitationConfig, imitate
from art_trainer.starts import Start
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
    """Episodes it plays."""
    noise: float = 0.0
    """The largest share of its replies that random ones are played for, see
    :func:`~art_trainer.demonstrations.collect_demonstrations`."""
    imitation: ImitationConfig = field(default_factory=ImitationConfig)
    """How its replies are learned."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ConfigError(f"the warm start's episodes is {self.episodes}: set at least 1")
        if not 0 <= self.noise <= 1:
            raise ConfigError(f"the warm start's noise is {self.noise}: set a share from 0 to 1")


@dataclass(frozen=True, slots=True)
class WarmStart:
    """What a warm start had to learn from, and how well it was learned."""

    episodes: int
    replies: int
    mean_reward: float
    """Of the demonstrations, with whatever noise there was in them."""
    losses: tuple[float, ...]
    """Of each optimizer step before it was taken, nats per token."""


def warm_start(
    policy: TransformersPolicy,
    make_env: MakeEnv,
    config: WarmStartConfig,
    *,
    split: str | None,
    seed: int,
    on_step: Callable[[dict[str, float]], None] | None = None,
) -> WarmStart:
    """Train the policy to reply as a scripted player does.

    Args:
        policy: Trained in place.
        make_env: Makes one environment.
        config: The settings.
        split: Whose tasks are played; ``None`` leaves it to the environment.
        seed: The same seed gives the same weights.
        on_step: Called after each optimizer step, as by :func:`~art_trainer.imitation.imitate`.

    Raises:
        ValueError: Where all demonstrations failed.
    """
    options = None if split is None else {"split": split}
    seeds = np.random.SeedSequence(seed).generate_state(config.episodes)
    starts = [Start(int(start), options, rng_seed=(seed, i)) for i, start in enumerate(seeds)]
    episodes = collect_demonstrations(policy, make_env, config.player, starts, noise=config.noise)
    losses = imitate(policy, episodes, config.imitation, rng=np.random.default_rng(seed), on_step=on_step)
    return WarmStart(
        episodes=len(episodes),
        replies=sum(len(episode.turns) for episode in episodes),
        mean_reward=float(np.mean([episode.reward for episode in episodes])),
        losses=tuple(losses),
    )
