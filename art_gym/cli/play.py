"""``art-gym play``: play an environment in the terminal."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, SupportsFloat

import gymnasium as gym
import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from art_gym.baselines import play_on
from art_gym.cli.common import EnvArgs, EnvId, parse_env_args, user_errors
from art_gym.errors import did_you_mean
from art_gym.lookup import make_env
from art_gym.terminal import visible
from art_gym.testing.certificate import policies

_FENCE = "```"


def play_command(
    env: EnvId,
    env_args: EnvArgs = None,
    task: Annotated[str | None, typer.Option(help="Id of the task.")] = None,
    split: Annotated[str | None, typer.Option(help="Split the task is drawn from.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same task and episode.")] = 0,
    policy: Annotated[
        str | None, typer.Option(help="Watch a scripted player, or a policy that art-gym certify names.")
    ] = None,
) -> None:
    """Play an environment in the terminal.

    Each line you type is one reply; a line that opens a fence (three backticks) continues to the closing one.
    To watch a model instead: art-trainer play --policy NAME.

    Example: art-gym play art/Email-v0 --env-args difficulty=1
    """
    console = Console()
    options = {key: value for key, value in (("task", task), ("split", split)) if value is not None}
    with user_errors():
        made = PrintEpisode(make_env(env, parse_env_args(env_args)), console, show_replies=policy is not None)
        watched = None if policy is None else policies(made)
        if watched is not None and policy not in watched:
            raise ValueError(f"no policy `{policy}`{did_you_mean(str(policy), watched)}")
        if sys.stdin.isatty() and watched is None:
            console.print("Type a reply and press Enter; Ctrl-D leaves.", style="dim")
        observation, _ = made.reset(seed=seed, options=options or None)
    if watched is not None:
        act = watched[str(policy)](made.unwrapped, np.random.default_rng((seed, 0)))
        for _ in play_on(made, act, observation):
            pass  # each step prints itself
        return
    try:
        play_by_hand(made, lambda: _read_line(console))
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
        if not isinstance(observation, str):
            raise TypeError(
                f"{self.unwrapped} shows {observation!r}, which is no text: art_gym.wrappers.TextAdapter "
                "makes text of it, see docs/guides/other-environments.md"
            )
        self._turns, self._reward, self._terms = 0, 0.0, Counter[str]()
        self._print(Text(visible(observation)))
        return observation, info

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and print the observation and the reward."""
        if self._show_replies:
            self._print(reply_line(action))
        observation, reward, terminated, truncated, info = self.env.step(action)
        terms = info.get("score_terms", {})
        self._turns += 1
        self._reward += float(reward)
        self._terms.update(terms)
        self._print(*outcome_lines(observation, float(reward), terms))
        if terminated or truncated:
            self._print(result_line(info.get("success"), self._reward, self._turns, self._terms))
        return observation, reward, terminated, truncated, info

    def _print(self, *lines: Text) -> None:
        for line in lines:
            self._console.print(line, soft_wrap=True)


def reply_line(reply: str) -> Text:
    """A reply as it is printed."""
    return Text(visible(f"› {reply}"), style="bold cyan")


def outcome_lines(observation: str, reward: float, terms: Mapping[str, float]) -> Iterator[Text]:
    """What came of a reply, as it is printed."""
    yield Text(visible(observation))
    if reward != 0:
        yield Text(visible(f"reward {reward:+.3f}{_terms(terms)}"), style="dim")


def result_line(success: bool | None, reward: float, turns: int, terms: Mapping[str, float]) -> Text:
    """How an episode ended, its reward and the sums of the reward's terms."""
    result = {True: "Solved", False: "Not solved", None: "Over"}[success]
    words = f"{result}: reward {reward:.3f} in {turns} turn{'' if turns == 1 else 's'}{_terms(terms)}"
    return Text(visible(words), style="bold")


def play_by_hand(env: gym.Env[str, str], read: Callable[[], str]) -> None:
    """Play an episode that has begun; ``read`` gives the next line, or an EOFError at the end of input."""
    for _ in play_on(env, lambda observation: read_reply(read), ""):
        pass


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
