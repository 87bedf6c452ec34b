"""Demonstrations: what a scripted player replies, in the tokens of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from art_gym.baselines import Act
from art_trainer.inference.policy import Conversation, Policy, Reply, TrainablePolicy
from art_trainer.inference.scripted_policy import RANDOM, full_observation, make_player
from art_trainer.models.chat_template import ChatFormat
from art_trainer.rollout.envs import EnvPool, EnvSource
from art_trainer.rollout.episodes import rollout_episodes
from art_trainer.types import Episode, EpisodeSpec, Span, TokenHistory

Keep = Callable[[Episode], bool]
KEEP: Mapping[str, Keep] = {
    "all": lambda episode: not episode.failed,
    "successes": lambda episode: bool(episode.success),
}
"""Which demonstrations are imitated, by the names of the setting ``warm_start_keep``."""


def collect_demonstrations(
    policy: TrainablePolicy,
    make_env: EnvSource | EnvPool,
    player: str,
    starts: Sequence[EpisodeSpec],
    *,
    noise: float = 0.0,
    on_policy: bool = False,
    keep: Keep = KEEP["all"],
) -> list[Episode]:
    """Write down, in the policy's tokens, what a scripted player replies.

    A policy that only ever saw its teacher's situations does not know what to do in its own. With ``noise``
    a random reply is played in the place of some (DART, Laskey et al., 2017, arXiv:1703.09327). With
    ``on_policy`` the policy plays, and the player says at each turn what it would have replied (DAgger, Ross
    et al., 2011, arXiv:1011.0686). The player must then decide by what it sees, as players of a board do, and
    not by what it said before.

    Args:
        policy: Whose chat format the replies are encoded with; plays with ``on_policy``.
        make_env: As of :func:`.rollout_episodes`; its ``baselines`` or ``teachers`` have the player.
        player: The player's name.
        starts: Where to start.
        noise: The largest share of the player's replies that are replaced, in [0, 1]; each episode draws its
            own share below it.
        on_policy: Whether the policy plays, as its sampling says, and not the player.
        keep: Which episodes to keep, such as those of :data:`KEEP`.

    Returns:
        Episodes whose histories have the player's replies as sampled tokens, with log-probs of 0.

    Raises:
        ValueError: If ``noise`` is no share, or set where the policy plays.
    """
    if not 0 <= noise <= 1:
        raise ValueError(f"noise is a share from 0 to 1, got {noise}")
    if noise and on_policy:
        raise ValueError("noise disturbs the player: with on_policy the policy plays, so leave it out")
    demonstrator = _Demonstrator(player, policy.format, noise, policy if on_policy else None)
    episodes = [episode for episode in rollout_episodes(demonstrator, make_env, starts) if keep(episode)]
    if not on_policy:
        return episodes
    # Where the policy's reply was refused, the player's is still worth imitating.
    return [replace(one, turns=tuple(replace(turn, error=None) for turn in one.turns)) for one in episodes]


@dataclass(slots=True)
class _Demonstration:
    """One episode of a demonstrator."""

    player: Act
    stray: Act | None
    share: float
    """How often the stray player's reply is played."""
    histories: list[list[Span]] = field(default_factory=list)
    turn: int = 0
    reply: str = ""
    """What the player said last."""
    strayed: bool = False
    """Whether the last reply played was another one."""


class _Demonstrator:
    """Writes down a scripted player's replies in a model's chat format; it or another policy plays.

    Args:
        player: The player's name.
        chat: The format.
        noise: The largest share of random replies in its play.
        actor: Plays in the player's place.
    """

    def __init__(self, player: str, chat: ChatFormat, noise: float, actor: Policy | None) -> None:
        self.name, self.version = player, 0
        self._chat, self._noise, self._actor = chat, noise, actor
        self._shown: dict[Conversation, _Demonstration] = {}
        self._ready: list[tuple[Conversation, Reply]] = []

    def submit(self, conversation: Conversation) -> None:
        """Write down the observation and the reply; a KeyError if the environment has no such player."""
        shown = self._shown.get(conversation)
        if shown is None:
            shown = self._shown[conversation] = _Demonstration(
                make_player(conversation, self.name),
                make_player(conversation, RANDOM) if self._noise else None,
                0.0 if self._actor else conversation.rng.uniform(0, self._noise),
            )
        messages, tools = conversation.messages, conversation.tools
        # After another reply the context is not what was written down, so it is written anew.
        goes_on = shown.histories and not shown.strayed
        separator = self._chat.continuation(messages, tools) if goes_on else None
        if separator is None:
            shown.histories.append([Span(tuple(self._chat.prompt(messages, tools)))])
        else:
            shown.histories[-1].append(Span(tuple(separator)))
        observation = full_observation(conversation)
        try:
            shown.reply = played = shown.player(observation)
            shown.strayed = shown.stray is not None and conversation.rng.random() < shown.share
            if shown.stray is not None and shown.strayed:
                played = shown.stray(observation)
        except Exception as fault:  # a player is its author's code; what it raises is the outcome
            self._ready.append((conversation, Reply("", error=f"{type(fault).__name__}: {fault}")))
            return
        tokens = tuple(self._chat.reply(shown.reply))
        shown.histories[-1].append(Span(tokens, shown.turn, (0.0,) * len(tokens)))
        shown.turn += 1
        if self._actor is not None:
            self._actor.submit(conversation)
            return
        messages.append({"role": "assistant", "content": played})
        self._ready.append((conversation, Reply(played)))

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """Return the replies that are played."""
        ready, self._ready = self._ready, []
        if self._actor is not None and not ready:
            ready = self._actor.collect()
            for conversation, reply in ready:
                shown = self._shown[conversation]
                shown.strayed = reply.text != shown.reply
        return ready

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Return what was written down."""
        if self._actor is not None:
            self._actor.release(conversation)
        self._ready = [(other, reply) for other, reply in self._ready if other is not conversation]
        shown = self._shown.pop(conversation, None)
        histories = [] if shown is None else shown.histories
        return tuple(TokenHistory(tuple(spans)) for spans in histories if len(spans) > 1)
