"""What a scripted player of the environment says, in the tokens of the policy that is to learn from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from art_trainer.chat import ChatFormat
from art_trainer.env_pool import EnvPool, MakeEnv
from art_trainer.episodes import Episode, Span, TokenHistory
from art_trainer.policy import Conversation, Reply, TrainablePolicy
from art_trainer.rollout import rollout
from art_trainer.scripted_policy import Player, env_observation, find_player
from art_trainer.starts import Start

STRAY = "random"
"""The player whose replies are played for a demonstrator that is disturbed."""


def collect_demonstrations(
    policy: TrainablePolicy,
    make_env: MakeEnv | EnvPool,
    player: str,
    starts: Sequence[Start],
    *,
    noise: float = 0.0,
    keep: Callable[[Episode], bool] = lambda episode: not episode.failed,
) -> list[Episode]:
    """Let a scripted player play, and write its replies in the policy's tokens.

    A policy that only ever saw its teacher's situations does not know what to do in its own. With ``noise``
    some of the replies are still written down as the player gave them, but a random one is played in their
    place (DART, Laskey et al., 2017, arXiv:1703.09327). The player must then decide by what it sees, as
    players of a board do, and not by what it said before.

    Args:
        policy: Whose chat format the replies are encoded with.
        make_env: Makes one environment; its ``baselines`` or ``teachers`` have the player.
        player: The player's name.
        starts: Where to start.
        noise: The largest share of replies that are replaced, in [0, 1]; each episode draws its own share
            below it.
        keep: Which episodes to keep, such as ``lambda episode: bool(episode.success)``.

    Returns:
        Episodes whose histories have the player's replies as sampled tokens, with log-probs of 0.

    Raises:
        ValueError: Where ``noise`` is no share.
    """
    if not 0 <= noise <= 1:
        raise ValueError(f"noise is a share from 0 to 1, got {noise}")
    episodes = rollout(_Demonstrator(player, policy.format, noise), make_env, starts)
    return [episode for episode in episodes if keep(episode)]


@dataclass(slots=True)
class _Show:
    """One episode of a demonstrator."""

    player: Player
    stray: Player | None
    share: float
    """How often the stray player's reply is played."""
    histories: list[list[Span]] = field(default_factory=list)
    turn: int = 0
    strayed: bool = False
    """Whether the last reply played was not the one written down."""


class _Demonstrator:
    """A scripted player that also writes down the tokens its replies are in someone else's format."""

    def __init__(self, player: str, chat: ChatFormat, noise: float) -> None:
        self._player = player
        self._chat = chat
        self._noise = noise
        self._asked: list[Conversation] = []
        self.name = player
        self.version = 0

    def submit(self, conversation: Conversation) -> None:
        """Write down the observation.

        Raises:
            KeyError: The environment has no such player.
        """
        if conversation.state is None:
            rng = conversation.rng
            conversation.state = _Show(
                find_player(conversation, self._player),
                find_player(conversation, STRAY) if self._noise else None,
                rng.uniform(0, self._noise),
            )
        show: _Show = conversation.state
        messages, tools = conversation.messages, conversation.tools
        # After a stray reply the context is not what was written down, so it is written anew.
        goes_on = show.histories and not show.strayed
        glue = self._chat.continuation(messages, tools) if goes_on else None
        if glue is None:
            show.histories.append([Span(tuple(self._chat.prompt(messages, tools)))])
        else:
            show.histories[-1].append(Span(tuple(glue)))
        self._asked.append(conversation)

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """Return what is played, after writing down what the player says."""
        asked, self._asked = self._asked, []
        return [(conversation, self._reply(conversation)) for conversation in asked]

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Return what was written down."""
        self._asked = [other for other in self._asked if other is not conversation]
        show: _Show | None = conversation.state
        conversation.state = None
        spans = [] if show is None else show.histories
        return tuple(TokenHistory(tuple(history)) for history in spans if len(history) > 1)

    def _reply(self, conversation: Conversation) -> Reply:
        show: _Show = conversation.state
        observation = env_observation(conversation)
        try:
            text = show.player(observation)
            show.strayed = show.stray is not None and conversation.rng.random() < show.share
            played = show.stray(observation) if show.stray is not None and show.strayed else text
        except Exception as fault:  # a player is its author's code; what it raises is the outcome
            return Reply("", error=f"{type(fault).__name__}: {fault}")
        tokens = tuple(self._chat.reply(text))
        show.histories[-1].append(Span(tokens, show.turn, (0.0,) * len(tokens)))
        show.turn += 1
        conversation.messages.append({"role": "assistant", "content": played})
        return Reply(played)
