"""The environments of a run: where its groups are played, and where its evaluations are."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from art_trainer.config import GRPOConfig
from art_trainer.env_pool import EnvPool, MakeEnv
from art_trainer.evaluation import Evaluation, evaluate
from art_trainer.policy import Policy
from art_trainer.splits import EVALUATION, TRAIN, choose_split

EnvSource = str | MakeEnv | gym.Env[str, str]
"""An environment's id, a callable that makes one, or one made by ``gym.make``."""


class RunEnvs:
    """Makes the environments of a run, and plays its evaluations.

    Args:
        env: Where groups are played.
        eval_env: Where evaluations are; by default the same.
        policy: Who plays the evaluations.
        config: Says which splits, and how many episodes at one time.

    Attributes:
        pool: The environments of training.
    """

    def __init__(
        self, env: EnvSource, eval_env: EnvSource | None, policy: Policy, config: GRPOConfig
    ) -> None:
        make_env = maker(env)
        self._make_eval_env = make_env if eval_env is None else maker(eval_env)
        self._policy = policy
        self._config = config
        self.pool = EnvPool(make_env)

    def training_options(self) -> dict[str, Any] | None:
        """``reset``'s options in training; ``None`` where there is no split to choose.

        Raises:
            ConfigError: Where the environment has no such split.
        """
        split = self._split(self._config.train_split, TRAIN)
        return None if split is None else {"split": split}

    def evaluate(self, *, episodes: int, seed: int) -> Evaluation:
        """Play an evaluation, see :class:`~art_trainer.backends.backend.PlaysEvaluations`."""
        return evaluate(
            self._policy,
            self._make_eval_env,
            split=self._split(self._config.eval_split, EVALUATION),
            episodes=episodes,
            seed=seed,
            max_concurrent=self._config.max_concurrent,
        )

    def close(self) -> None:
        """Close the environments; new ones are made where they are needed again."""
        self.pool.close()

    def _split(self, wanted: str | None, usual: tuple[str, ...]) -> str | None:
        env = self.pool.take()
        self.pool.give_back(env)
        return choose_split(env, wanted, usual)


def maker(env: EnvSource) -> MakeEnv:
    """What makes environments like this one.

    Raises:
        TypeError: Where no second one can be made.
    """
    if isinstance(env, gym.Env):
        spec = env.spec
        if spec is None:
            raise TypeError(
                f"this {type(env).__name__} was not made by gym.make, so no second one can be made like it: "
                "pass a callable that makes one, or the id"
            )
        return lambda: gym.make(spec)
    if isinstance(env, str):
        return lambda: gym.make(env)
    return env
