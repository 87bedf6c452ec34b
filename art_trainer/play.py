"""Plays an environment in the terminal: a person types the replies, or watches a policy give them.

Both are a rollout of one episode. The person is a policy whose replies come from the keyboard, and what is
seen is told by a wrapper around the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat

import gymnasium as gym
from rich.console import Console
from rich.text import Text

from art_trainer.display import visible
from art_trainer.episodes import Episode, TokenHistory
from art_trainer.policy import Conversation, Policy, Reply
from art_trainer.rollout import rollout
from art_trainer.starts import Start

_FENCE = "```"


class PlayerLeft(KeyboardInterrupt):
    """The person ended the game: Ctrl-D, or no more input."""


class Person:
    """A policy whose replies a person types.

    Args:
        read: Gives the next line, without its end; raises ``EOFError`` when there are no more.
    """

    name = "you"
    version = 0

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read
        self._asked: list[Conversation] = []

    def submit(self, conversation: Conversation) -> None:
        """Ask for a reply."""
        self._asked.append(conversation)

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """Read one reply.

        Raises:
            PlayerLeft: Where the input has ended.
        """
        if not self._asked:
            return []
        conversation = self._asked.pop(0)
        try:
            text = self._reply()
        except EOFError:
            raise PlayerLeft from None
        conversation.messages.append({"role": "assistant", "content": text})
        return [(conversation, Reply(text))]

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """A person has no tokens."""
        return ()

    def _reply(self) -> str:
        """One line, or everything up to the closing fence where the line opens a block of code."""
        lines = [self._read()]
        if lines[0].lstrip().startswith(_FENCE):
            while lines[-1].strip() != _FENCE or len(lines) == 1:
                lines.append(self._read())
        return "\n".join(lines)


class NarrateEpisode(gym.Wrapper[str, str, str, str]):
    """Tells on a console what happens in an environment.

    Args:
        env: The environment.
        console: Where it is told.
        show_replies: Whether to print the replies too; a person has just typed them.
    """

    def __init__(self, env: gym.Env[str, str], console: Console, *, show_replies: bool) -> None:
        super().__init__(env)
        self._console = console
        self._show_replies = show_replies

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode and show its first observation."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._say(observation)
        return observation, info

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Pass the reply on and show what came of it."""
        if self._show_replies:
            self._say(f"› {action}", "bold cyan")
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._say(observation)
        if float(reward) != 0:
            self._say(f"reward {float(reward):+.3f}{_terms(info.get('score_terms', {}))}", "dim")
        return observation, reward, terminated, truncated, info

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(Text(visible(text), style=style), soft_wrap=True)


def play_episode(
    policy: Policy,
    make_env: Callable[[], gym.Env[str, str]],
    console: Console,
    *,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Episode:
    """Play one episode on the console, and close with the score.

    Args:
        policy: Who plays; a :class:`Person` types.
        make_env: Makes the environment.
        console: Where the episode is shown.
        seed: The seed of the reset and of the policy's sampling.
        options: What ``reset`` is given, such as ``{"task": id}``.

    Raises:
        PlayerLeft: Where a person's input ended before the episode did.
    """
    show_replies = not isinstance(policy, Person)
    start = Start(seed=seed, options=options, group=0, rng_seed=(seed, 1))
    episode = rollout(
        policy, lambda: NarrateEpisode(make_env(), console, show_replies=show_replies), [start]
    )[0]
    console.print(Text(closing(episode), style="bold"), soft_wrap=True)
    return episode


def closing(episode: Episode) -> str:
    """The score in words."""
    if episode.failed:
        return f"A fault ended the episode ({episode.ending.value}): {visible(episode.error or 'no words')}"
    result = {True: "Solved", False: "Not solved", None: "Over"}[episode.success]
    turns = f"{len(episode.turns)} turn{'s' if len(episode.turns) != 1 else ''}"
    return f"{result}: reward {episode.reward:.3f} in {turns}{_terms(episode.score_terms)}"


def _terms(terms: Mapping[str, float]) -> str:
    parts = [f"{name.replace('_', ' ')} {value:+.3g}" for name, value in terms.items() if value]
    return f" ({', '.join(parts)})" if parts else ""
