"""The baselines that environments ship, as policies: no model and no tokens."""

from __future__ import annotations

from collections.abc import Callable

from art_gym.errors import did_you_mean
from art_trainer.episodes import TokenHistory
from art_trainer.policy import Conversation, Reply

Player = Callable[[str], str]
"""From the environment's words to the reply."""


class ScriptedPolicy:
    """Plays a baseline or teacher of the environment; implements :class:`art_trainer.policy.Policy`.

    A baseline that raises ends its own episode as a policy error, with the exception's words.

    Args:
        baseline: The baseline's name, such as ``"random"``.
    """

    def __init__(self, baseline: str) -> None:
        self.baseline = baseline
        self.name = baseline
        self.version = 0
        self._submitted: list[Conversation] = []

    def submit(self, conversation: Conversation) -> None:
        """Ask for the next reply.

        Raises:
            KeyError: The environment has no such baseline.
        """
        if conversation.state is None:
            conversation.state = find_player(conversation, self.baseline)
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

    @staticmethod
    def _reply(conversation: Conversation) -> Reply:
        act: Player = conversation.state
        try:
            text = act(env_observation(conversation))
        except Exception as fault:  # a baseline is its author's code; what it raises is the outcome
            return Reply("", error=f"{type(fault).__name__}: {fault}")
        conversation.messages.append({"role": "assistant", "content": text})
        return Reply(text)


def find_player(conversation: Conversation, name: str) -> Player:
    """The scripted player of that name, ready for the conversation's episode.

    Raises:
        KeyError: The environment has neither a baseline nor a teacher of that name.
    """
    env = conversation.env.unwrapped
    players = {**getattr(env, "baselines", {}), **getattr(env, "teachers", {})}
    if name not in players:
        raise KeyError(f"{type(env).__name__} has no baseline `{name}`{did_you_mean(name, players)}")
    player: Player = players[name](env, conversation.rng)
    return player


def env_observation(conversation: Conversation) -> str:
    """The environment's own words, from which the rollout split the standing instructions off."""
    *before, last = conversation.messages
    text: str = last["content"]
    if len(before) == 1 and before[0]["role"] == "system":
        return f"{before[0]['content']}\n\n{text}"
    return text
