"""``art-trainer play``: watch a policy play an episode in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import gymnasium as gym
import typer
from rich.console import Console

from art_gym.cli.play import PrintEpisode
from art_trainer.cli.live_view import fault_lines
from art_trainer.cli.options import NO_PAIRS, Amount, EnvArgs, EnvId, MaxTokens, Whole, command
from art_trainer.cli.run_config import env_of_policies
from art_trainer.types import EpisodeSpec

if TYPE_CHECKING:
    from art_trainer.inference.policy import Policy


@command(
    "play",
    "`art-trainer play --policy bm25 --seed 3` shows how a baseline plays the default recipe's environment.",
    "`art-trainer play --policy runs/mine` shows an episode of a trained model.",
)
def play(
    *,
    policy: str,
    env: EnvId | None = None,
    env_args: EnvArgs = NO_PAIRS,
    task: str | None = None,
    split: str | None = None,
    seed: Whole = 0,
    temperature: Amount = 0.0,
    max_completion_length: MaxTokens = 256,
) -> None:
    """Watch a policy play an episode. To play yourself: `art-gym play`.

    Flags:
        policy: What plays; as in eval.
        task: Id of the task.
        split: Split the task is drawn from.
        seed: The same seed gives the same task and episode.
        temperature: Sampling temperature; 0 is greedy.
    """
    from art_trainer.rollout.envs import env_maker

    if env is None:
        env, saved = env_of_policies([policy])
        env_args = {**saved, **env_args}
    make_env = env_maker(env, env_args)
    options = {key: value for key, value in (("task", task), ("split", split)) if value is not None} or None
    from art_trainer.cli.policies import load_policy

    player = load_policy(policy, make_env, temperature=temperature, max_tokens=max_completion_length)
    watch(player, make_env, EpisodeSpec(seed=seed, options=options, rng_seed=(seed, 1)), Console())


def watch(
    policy: Policy, make_env: Callable[[], gym.Env[str, str]], start: EpisodeSpec, console: Console
) -> None:
    """Let a policy play one episode, and print it; exit code 1 if a fault ended it."""
    from art_trainer.rollout.episodes import rollout_episodes

    env = PrintEpisode(make_env(), console, show_replies=True)
    (episode,) = rollout_episodes(policy, lambda: env, [start])
    for line in fault_lines(episode):
        console.print(line, soft_wrap=True)
    if episode.failed:
        raise typer.Exit(1)
