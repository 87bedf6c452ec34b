"""Policies of the scripted baselines that environments ship: no model and no tokens."""

from __future__ import annotations

from typing import Any

from art_gym.baselines import Act, Baseline, players
from art_gym.errors import did_you_mean
from art_trainer.inference.policy import Conversation, Reply
from art_trainer.types import TokenHistory

RANDOM = "random"
"""The scripted policy of every environment."""


class ScriptedPolicy:
    """Plays a baseline or teacher of the environment.

    A baseline that raises ends its own episode as a policy error with the exception's message.

    Args:
        baseline: The baseline's name, such as ``"random"``.
    """

    def __init__(self, baseline: str) -> None:
        self.baseline = baseline
        self.name = baseline
        self.version = 0
        self._submitted: list[Conversation] = []

    def submit(self, conversation: Conversation) -> None:
        """Ask for the next reply; a KeyError if the environment has no such baseline."""
        if conversation.state is None:
            conversation.state = make_player(conversation, self.baseline)
        self._submitted.append(conversation)

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """Return the replies of everything that was submitted."""
        submitted, self._submitted = self._submitted, []
        return [(conversation, self._reply(conversation)) for conversation in submitted]

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Forget the conversation; there are no tokens."""
        conversation.state = None
        self._submitted = [other for other in self._submitted if other is not conversation]
        return ()

    def _reply(self, conversation: Conversation) -> Reply:
        act: Act = conversation.state
        try:
            text = act(full_observation(conversation))
        except Exception as fault:  # a baseline is its author's code; what it raises is the outcome
            return Reply("", error=f"{type(fault).__name__}: {fault}")
        conversation.messages.append({"role": "assistant", "content": text})
        return Reply(text)


def make_player(conversation: Conversation, name: str) -> Act:
    """Return a scripted player for the conversation's episode; raises as :func:`named_player`."""
    env = conversation.env.unwrapped
    return named_player(env, name)(env, conversation.rng)


def named_player(env: Any, name: str) -> Baseline:
    """Return an unwrapped environment's baseline or teacher.

    Raises:
        KeyError: If the environment has neither of that name.
    """
    known = players(env)
    if name not in known:
        raise KeyError(f"{type(env).__name__} has no baseline `{name}`{did_you_mean(name, known)}")
    return known[name]


def full_observation(conversation: Conversation) -> str:
    """Return the environment's whole observation, from which the rollout split off the instructions."""
    *before, last = conversation.messages
    text: str = last["content"]
    if len(before) == 1 and before[0]["role"] == "system":
        return f"{before[0]['content']}\n\n{text}"
    return text
