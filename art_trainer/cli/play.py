"""``art-trainer play``: play an environment in the terminal, or watch a policy play it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, SupportsFloat

import gymnasium as gym
import typer
from rich.console import Console
from rich.text import Text

from art_trainer.cli.options import NO_PAIRS, Amount, EnvArgs, EnvId, MaxTokens, Whole, command
from art_trainer.cli.run_config import env_of_policies
from art_trainer.formatting import visible
from art_trainer.types import EpisodeSpec

if TYPE_CHECKING:
    from art_trainer.inference.policy import Policy

_FENCE = "```"


@command(
    "play",
    "`art-trainer play` lets you play the default recipe's environment yourself.",
    "`art-trainer play --policy bm25 --seed 3` shows how a baseline does it.",
)
def play(
    *,
    env: EnvId | None = None,
    env_args: EnvArgs = NO_PAIRS,
    policy: str | None = None,
    task: str | None = None,
    split: str | None = None,
    seed: Whole = 0,
    temperature: Amount = 0.0,
    max_completion_length: MaxTokens = 256,
) -> None:
    """Play an environment in the terminal, or watch a policy play it.

    Each line you type is one reply; a line that opens a fence (three backticks) continues to the closing one.

    Flags:
        policy: Watch this policy instead of playing yourself; as in eval.
        task: Id of the task.
        split: Split the task is drawn from.
        seed: The same seed gives the same task and episode.
        temperature: Sampling temperature; 0 is greedy.
    """
    from art_trainer.rollout.envs import env_maker

    console = Console()
    if env is None:
        env, saved = env_of_policies([] if policy is None else [policy])
        env_args = {**saved, **env_args}
    make_env = env_maker(env, env_args)
    options = {key: value for key, value in (("task", task), ("split", split)) if value is not None} or None
    start = EpisodeSpec(seed=seed, options=options, rng_seed=(seed, 1))
    if policy is not None:
        from art_trainer.cli.policies import load_policy

        player = load_policy(policy, make_env, temperature=temperature, max_tokens=max_completion_length)
        watch(player, make_env, start, console)
        return
    if sys.stdin.isatty():
        console.print("Type a reply and press Enter; Ctrl-D leaves.", style="dim")
    try:
        play_by_hand(make_env(), start, console, lambda: _read_line(console))
    except (EOFError, KeyboardInterrupt):
        typer.echo("\nYou left before the end; no score.")


class PrintEpisode(gym.Wrapper[str, str, str, str]):
    """Prints an episode as it is played, and its result at the end.

    Args:
        env: The environment.
        console: Where to print.
        show_replies: Whether to print the replies too; a person has just typed them.
    """

    def __init__(self, env: gym.Env[str, str], console: Console, *, show_replies: bool) -> None:
        super().__init__(env)
        self._console = console
        self._show_replies = show_replies

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode and print its first observation."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._turns, self._reward, self._terms = 0, 0.0, Counter[str]()
        self._print(observation)
        return observation, info

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and print the observation and the reward."""
        if self._show_replies:
            self._print(f"› {action}", "bold cyan")
        observation, reward, terminated, truncated, info = self.env.step(action)
        terms = info.get("score_terms", {})
        self._turns += 1
        self._reward += float(reward)
        self._terms.update(terms)
        self._print(observation)
        if float(reward) != 0:
            self._print(f"reward {float(reward):+.3f}{_terms(terms)}", "dim")
        if terminated or truncated:
            result = {True: "Solved", False: "Not solved", None: "Over"}[info.get("success")]
            turns = f"{self._turns} turn{'' if self._turns == 1 else 's'}"
            self._print(f"{result}: reward {self._reward:.3f} in {turns}{_terms(self._terms)}", "bold")
        return observation, reward, terminated, truncated, info

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(visible(text), style=style), soft_wrap=True)


def watch(
    policy: Policy, make_env: Callable[[], gym.Env[str, str]], start: EpisodeSpec, console: Console
) -> None:
    """Let a policy play one episode, and print it."""
    from art_trainer.rollout.episodes import rollout_episodes

    env = PrintEpisode(make_env(), console, show_replies=True)
    (episode,) = rollout_episodes(policy, lambda: env, [start])
    if episode.failed:
        fault = f"A fault ended the episode ({episode.ending.value}): {episode.error or 'no message'}"
        console.print(Text(visible(fault), style="bold"), soft_wrap=True)


def play_by_hand(
    env: gym.Env[str, str], start: EpisodeSpec, console: Console, read: Callable[[], str]
) -> None:
    """Let a person play one episode; ``read`` gives the next line, or an EOFError at the end of input."""
    printed = PrintEpisode(env, console, show_replies=False)
    printed.reset(seed=start.seed, options=None if start.options is None else dict(start.options))
    over = False
    while not over:
        _, _, terminated, truncated, _ = printed.step(read_reply(read))
        over = terminated or truncated


def read_reply(read: Callable[[], str]) -> str:
    """One line, or everything up to the closing fence if the line opens a block of code."""
    lines = [read()]
    if lines[0].lstrip().startswith(_FENCE):
        while lines[-1].strip() != _FENCE or len(lines) == 1:
            lines.append(read())
    return "\n".join(lines)


def _terms(terms: Mapping[str, float]) -> str:
    parts = [f"{name.replace('_', ' ')} {value:+.3g}" for name, value in terms.items() if value]
    return f" ({', '.join(parts)})" if parts else ""


def _read_line(console: Console) -> str:
    """One line from the keyboard; from a pipe it is printed too, so that the output can be followed."""
    if sys.stdin.isatty():
        return input("› ")
    line = input()
    console.print(f"› {visible(line)}", markup=False, style="bold cyan", soft_wrap=True)
    return line
