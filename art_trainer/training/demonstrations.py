"""Demonstrations: what a scripted player replies, in the tokens of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from art_gym.baselines import Act
from art_trainer.inference.policy import Conversation, Policy, Reply
from art_trainer.inference.scripted_policy import RANDOM, full_observation, make_player
from art_trainer.inference.trainable_policy import TrainablePolicy
from art_trainer.models.chat_template import ChatFormat, TokenHistoryBuilder
from art_trainer.rollout.envs import EnvPool, EnvSource
from art_trainer.rollout.episodes import rollout_episodes
from art_trainer.types import Episode, EpisodeSpec, TokenHistory, Turn

Keep = Callable[[Episode], bool]
KEEP: Mapping[str, Keep] = {
    "all": lambda episode: not episode.failed,
    "successes": lambda episode: bool(episode.success),
}
"""Which demonstrations are imitated, by the names of the setting ``warm_start_keep``."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An episode that a scripted player showed, not yet in a model's tokens: few of many may be imitated."""

    episode: Episode
    """Without token histories."""
    messages: Sequence[Mapping[str, Any]]
    """Its conversation."""
    tools: Sequence[Mapping[str, Any]]
    """The environment's tool schemas."""
    shown: Sequence[tuple[int, str]]
    """For each turn how many messages the player saw, and what it replied."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The episode's turns."""
        return self.episode.turns

    def in_tokens(self, chat: ChatFormat) -> Episode:
        """Return the episode with the player's replies as sampled tokens, with log-probs of 0."""
        builder = TokenHistoryBuilder()
        for seen, reply in self.shown:
            builder.append_observation(chat, self.messages[:seen], self.tools, longest=None, version=0)
            tokens = chat.reply(reply)
            builder.append_reply(chat, tokens, (0.0,) * len(tokens), stopped=True, version=0)
            played = self.messages[seen : seen + 1]
            if played and played[0]["content"] != reply:  # the context is not what was written down
                builder.close()
        return replace(self.episode, histories=builder.finish())


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
    played = play_demonstrations(
        policy, make_env, player, starts, noise=noise, on_policy=on_policy, keep=keep
    )
    return [one.in_tokens(policy.format) for one in played]


def play_demonstrations(
    policy: Policy,
    make_env: EnvSource | EnvPool,
    player: str,
    starts: Sequence[EpisodeSpec],
    *,
    noise: float = 0.0,
    on_policy: bool = False,
    keep: Keep = KEEP["all"],
) -> list[Demonstration]:
    """Do what :func:`collect_demonstrations` does, but for the tokens."""
    if not 0 <= noise <= 1:
        raise ValueError(f"noise is a share from 0 to 1, got {noise}")
    if noise and on_policy:
        raise ValueError("noise disturbs the player: with on_policy the policy plays, so leave it out")
    demonstrator = _Demonstrator(player, noise, policy if on_policy else None)
    episodes = rollout_episodes(demonstrator, make_env, starts, on_episode=demonstrator.pair)
    found = [demonstrator.ended[id(one)] for one in episodes if keep(one)]
    if not on_policy:
        return found
    # Where the policy's reply was refused, the player's is still worth imitating.
    return [replace(one, episode=_without_errors(one.episode)) for one in found]


def _without_errors(episode: Episode) -> Episode:
    return replace(episode, turns=tuple(replace(turn, error=None) for turn in episode.turns))


@dataclass(slots=True)
class _Live:
    """An episode that is played."""

    player: Act
    stray: Act | None
    share: float
    """How often the stray player's reply is played."""
    shown: list[tuple[int, str]] = field(default_factory=list)


class _Demonstrator:
    """Keeps what a scripted player replies; it or another policy plays.

    Args:
        player: The player's name.
        noise: The largest share of random replies in its play.
        actor: Plays in the player's place.

    Attributes:
        ended: What was shown, by the identity of the episode.
    """

    def __init__(self, player: str, noise: float, actor: Policy | None) -> None:
        self.name, self.version = player, 0
        self.ended: dict[int, Demonstration] = {}
        self._noise, self._actor = noise, actor
        self._live: dict[Conversation, _Live] = {}
        self._ready: list[tuple[Conversation, Reply]] = []
        self._released: tuple[Conversation, _Live] | None = None

    def submit(self, conversation: Conversation) -> None:
        """Keep what the player replies; a KeyError if the environment has no such player."""
        live = self._live.get(conversation)
        if live is None:
            live = self._live[conversation] = _Live(
                make_player(conversation, self.name),
                make_player(conversation, RANDOM) if self._noise else None,
                0.0 if self._actor else conversation.rng.uniform(0, self._noise),
            )
        messages, observation = conversation.messages, full_observation(conversation)
        try:
            reply = played = live.player(observation)
            if live.stray is not None and conversation.rng.random() < live.share:
                played = live.stray(observation)
        except Exception as fault:  # a player is its author's code; what it raises is the outcome
            self._ready.append((conversation, Reply("", error=f"{type(fault).__name__}: {fault}")))
            return
        live.shown.append((len(messages), reply))
        if self._actor is not None:
            self._actor.submit(conversation)
            return
        messages.append({"role": "assistant", "content": played})
        self._ready.append((conversation, Reply(played)))

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """Return the replies that are played."""
        ready, self._ready = self._ready, []
        return self._actor.collect() if self._actor is not None and not ready else ready

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Forget the conversation, but for what was shown; there are no tokens."""
        if self._actor is not None:
            self._actor.release(conversation)
        self._ready = [(other, reply) for other, reply in self._ready if other is not conversation]
        live = self._live.pop(conversation, None)
        self._released = None if live is None else (conversation, live)
        return ()

    def pair(self, episode: Episode) -> None:
        """Keep what was shown in the episode whose conversation was just released, if it had begun."""
        if self._released is None:
            self.ended[id(episode)] = Demonstration(episode, (), (), ())
        else:
            conversation, live = self._released
            self.ended[id(episode)] = Demonstration(
                episode, conversation.messages, conversation.tools, live.shown
            )
        self._released = None
