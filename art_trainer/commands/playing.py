"""``art-trainer play``: try an environment by hand, or watch a policy in it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from art_trainer.commands.policies import env_maker, load_policy
from art_trainer.display import visible
from art_trainer.play import Person, PlayerLeft, play_episode


@dataclass(frozen=True, slots=True)
class PlayRequest:
    """What ``art-trainer play`` was asked for; the flags' help texts say what each means."""

    env: str
    env_args: dict[str, Any]
    policy: str | None
    task: str | None
    split: str | None
    seed: int
    temperature: float
    max_tokens: int


def run_play(request: PlayRequest, console: Console) -> None:
    """Play one episode.

    Raises:
        ConfigError: Where the environment or policy does not exist.
        UnknownTask: Where the task or split does not.
    """
    make_env = env_maker(request.env, request.env_args)
    options = {"task": request.task, "split": request.split}
    chosen = {name: value for name, value in options.items() if value is not None} or None
    if request.policy is not None:
        policy = load_policy(
            request.policy, make_env, temperature=request.temperature, max_tokens=request.max_tokens
        )
        play_episode(policy, make_env, console, seed=request.seed, options=chosen)
        return
    if sys.stdin.isatty():
        console.print("Type a reply and press Enter; Ctrl-D leaves.", style="dim")
    try:
        play_episode(
            Person(lambda: _read_line(console)), make_env, console, seed=request.seed, options=chosen
        )
    except (PlayerLeft, KeyboardInterrupt):
        console.print("\nYou left before the end; no score.")


def _read_line(console: Console) -> str:
    """One line from the keyboard; from a pipe it is shown too, so that what follows can be understood."""
    if sys.stdin.isatty():
        return input("› ")
    line = input()
    console.print(f"› {visible(line)}", markup=False, style="bold cyan", soft_wrap=True)
    return line
