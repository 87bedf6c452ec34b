"""Play multi-agent games: PettingZoo AEC environments in text, with a policy for each seat.

The counterpart of :mod:`art_trainer.rollout.episodes` for games. Each seat of a game is a conversation of
its own, so a game gives one ordinary episode for each seat, with that seat's tokens. Games that wait for the
same policy are batched, whichever seat it plays in them.

A reward that a seat gets before its first turn (the others moved first) belongs to none of its moves and is
left out of its episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import gymnasium as gym
import numpy as np

from art_gym.games.seats import TextGame, seat_baselines, text_of
from art_trainer.inference.policy import Conversation, Policy, Reply
from art_trainer.rollout.episodes import (
    DEFAULT_MAX_CONCURRENT,
    LiveEpisode,
    first_messages,
    last_line,
    paid_more,
    turn_of,
)
from art_trainer.types import Ending, Episode, EpisodeSpec, Group, TokenHistory

MakeGame = Callable[[], TextGame]
PlayedGame = Mapping[str, Episode]
"""The episodes of one game, by seat."""


def play_games(
    policies: Mapping[str, Policy],
    make_game: MakeGame,
    starts: Sequence[EpisodeSpec],
    *,
    max_concurrent: int | None = None,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[PlayedGame]:
    """Play one game from every start.

    If the game raises, or the policy fails on one conversation, the game ends for all its seats, with the
    message in ``Episode.error``. A seat whose context is full says nothing for the rest of the game; what it
    still gets or loses belongs to its last turn.

    Args:
        policies: The policy of each seat; one policy may play several.
        make_game: Makes a game; games are reused.
        starts: Where the games start; each seat draws its own randomness from ``rng_seed``.
        max_concurrent: Most games at the same time; at most as many as the policies can hold.
        on_episode: Called with each seat's episode when a game ends.

    Returns:
        The games, in the order of their starts; an episode's ``env_id`` is ``NAME-OF-THE-GAME:SEAT``.

    Raises:
        ValueError: If a seat of the game has no policy.
    """
    limit = DEFAULT_MAX_CONCURRENT if max_concurrent is None else max_concurrent
    if limit < 1:
        raise ValueError(f"max_concurrent is at least 1, got {max_concurrent}")
    return _GameRunner(policies, make_game, on_episode).run(starts, min(limit, _room(policies)))


def seat_groups(games: Sequence[PlayedGame], group_size: int, seats: Sequence[str]) -> list[Group]:
    """Return the groups to train on: for each start and seat the attempts of that seat.

    Attempts in which the seat never moved are left out, and so are groups with only one attempt left, which
    has nothing to be compared with.
    """
    groups = []
    for first in range(0, len(games), group_size):
        for seat in seats:
            attempts = [game[seat] for game in games[first : first + group_size]]
            moved = tuple(attempt for attempt in attempts if attempt.turns or attempt.failed)
            if len(moved) > 1:
                groups.append(Group(moved))
    return groups


def seat_of(group: Group) -> str:
    """Return the seat of a group of :func:`seat_groups`."""
    return group.episodes[0].env_id.rpartition(":")[2]


class _SeatState:
    """The game as a scripted policy of one seat sees it, in place of an environment."""

    def __init__(self, game: TextGame, seat: str) -> None:
        self.game = game
        self.baselines = seat_baselines(game, seat)

    @property
    def unwrapped(self) -> _SeatState:
        return self


@dataclass(eq=False, slots=True, kw_only=True)
class _Seat(LiveEpisode):
    """One seat of a live game, which becomes an episode."""

    policy: Policy
    rng: np.random.Generator
    reply: Reply | None = None
    """The last reply, if its outcome is not known yet."""
    full: bool = False
    """Whether its context is full."""

    def outcome(self, observation: object, reward: float, info: Mapping[str, Any]) -> None:
        """Complete the turn of the last reply, if there is one."""
        if self.full and self.turns:
            self.turns[-1] = paid_more(self.turns[-1], reward, info.get("score_terms", {}))
        if self.reply is None:
            return
        cut = self.reply.stop == "length"
        self.turns.append(turn_of(self.reply.text, text_of(observation), reward, info, cut=cut))
        self.reply = None


@dataclass(eq=False, slots=True)
class _Game:
    """A live game."""

    index: int
    start: EpisodeSpec
    game: TextGame
    seats: dict[str, _Seat]


class _GameRunner:
    """Plays games concurrently until all are done."""

    def __init__(
        self,
        policies: Mapping[str, Policy],
        make_game: MakeGame,
        on_episode: Callable[[Episode], None] | None,
    ) -> None:
        self._policies = policies
        self._distinct = list({id(policy): policy for policy in policies.values()}.values())
        self._make_game = make_game
        self._on_episode = on_episode
        self._free: list[TextGame] = []
        self._live: list[_Game] = []
        self._waiting: dict[Conversation, tuple[_Game, _Seat]] = {}
        self._done: dict[int, PlayedGame] = {}

    def run(self, starts: Sequence[EpisodeSpec], limit: int) -> list[PlayedGame]:
        waiting = iter(enumerate(starts))
        try:
            while len(self._done) < len(starts):
                while len(self._live) < limit and (entry := next(waiting, None)) is not None:
                    self._begin(*entry)
                for policy in self._distinct:
                    for conversation, reply in policy.collect() if self._waiting else ():
                        self._advance(*self._waiting.pop(conversation), reply)
        finally:
            for play in self._live:
                _release(play)
                play.game.close()
            for game in self._free:
                game.close()
        return [self._done[index] for index in range(len(starts))]

    def _begin(self, index: int, start: EpisodeSpec) -> None:
        if not self._free:
            self._free.append(self._make_game())
            self._check_seats(self._free[0].possible_agents)
        game = self._free.pop()
        root = [start.rng_seed] if isinstance(start.rng_seed, int) else list(start.rng_seed)
        seats = {
            name: _Seat(
                env_id=f"{getattr(game, 'unwrapped', game)}:{name}",
                task_id=f"seed-{start.seed}",
                seed=start.seed,
                policy=self._policies[name],
                rng=np.random.default_rng((*root, place)),
            )
            for place, name in enumerate(game.possible_agents)
        }
        play = _Game(index, start, game, seats)
        self._live.append(play)
        options = None if start.options is None else dict(start.options)
        self._go_on(play, lambda: game.reset(seed=start.seed, options=options))

    def _check_seats(self, seats: Sequence[str]) -> None:
        for name in seats:
            if name not in self._policies:
                raise ValueError(f"no policy for the seat {name}; the game has {', '.join(seats)}")

    def _go_on(self, play: _Game, change: Callable[[], object]) -> None:
        """Change the game, remove finished seats and request the next move; finish it if no seat is left."""
        try:
            change()
            turn = self._next_to_move(play)
        except Exception:  # a game is its author's code; what it raises is this game's outcome
            self._break(play, Ending.ENV_ERROR, last_line())
            return
        if turn is None:
            self._finish(play)
        else:
            self._request_move(play, *turn)

    def _next_to_move(self, play: _Game) -> tuple[str, str, dict[str, Any]] | None:
        """Return the seat to move, its observation and its info; ``None`` if the game is over."""
        while play.game.agents and any(seat.ending is None for seat in play.seats.values()):
            name = play.game.agent_selection
            seen, reward, terminated, truncated, info = play.game.last()
            seat = play.seats[name]
            seat.task_id = str(info.get("task_id") or seat.task_id)
            seat.observation = seat.observation or text_of(seen)
            seat.outcome(seen, reward, info)
            if terminated or truncated:
                ending = Ending.TERMINATED if terminated else Ending.TRUNCATED
                seat.end(Ending.CONTEXT_FULL if seat.full else ending, info)
                play.game.step(None)
            elif seat.full:
                play.game.step("")
            else:
                return name, text_of(seen), dict(info)
        return None

    def _request_move(self, play: _Game, name: str, observation: str, info: Mapping[str, Any]) -> None:
        seat = play.seats[name]
        if seat.conversation is None:
            state = cast("gym.Env[str, str]", _SeatState(play.game, name))
            messages = first_messages(observation, info.get("system") or "")
            seat.tools = tuple(info.get("tools") or ())
            seat.conversation = Conversation(state, messages, list(seat.tools), seat.rng, play.start.group)
        else:
            seat.conversation.messages.append({"role": "user", "content": observation})
        self._waiting[seat.conversation] = play, seat
        try:
            seat.policy.submit(seat.conversation)
        except Exception:  # a policy's fault about one conversation is that game's outcome
            del self._waiting[seat.conversation]
            self._break(play, Ending.POLICY_ERROR, last_line())

    def _advance(self, play: _Game, seat: _Seat, reply: Reply) -> None:
        """Step the game with a reply, and request the next one."""
        if reply.error is not None:
            self._break(play, Ending.POLICY_ERROR, reply.error)
        elif reply.context_full:
            seat.full = True
            self._go_on(play, lambda: play.game.step(""))
        else:
            self._go_on(play, lambda: _step(play, seat, reply))

    def _break(self, play: _Game, ending: Ending, error: str) -> None:
        """End a game with a fault, for all seats."""
        for seat in play.seats.values():
            seat.fail(ending, error)
        self._finish(play)

    def _finish(self, play: _Game) -> None:
        self._live.remove(play)
        histories = _release(play)
        # A game that raised is in an unknown state: the next game is a new one.
        if any(seat.ending is Ending.ENV_ERROR for seat in play.seats.values()):
            play.game.close()
        else:
            self._free.append(play.game)
        for seat in play.seats.values():
            seat.ending = seat.ending or Ending.TERMINATED  # the game ended without it
        played = {name: seat.to_episode(histories[name]) for name, seat in play.seats.items()}
        self._done[play.index] = played
        if self._on_episode is not None:
            for episode in played.values():
                self._on_episode(episode)


def _step(play: _Game, mover: _Seat, reply: Reply) -> None:
    """Step the game with a seat's reply, whose outcome is known when the seat is asked again."""
    play.game.step(reply.text)
    mover.reply = reply


def _release(play: _Game) -> dict[str, tuple[TokenHistory, ...]]:
    """Release the seats' conversations; return their token histories."""
    return {
        name: () if seat.conversation is None else seat.policy.release(seat.conversation)
        for name, seat in play.seats.items()
    }


def _room(policies: Mapping[str, Policy]) -> int:
    """Return how many games the policies can hold: a waiting seat keeps its row of the batch, if it can."""
    rooms = [DEFAULT_MAX_CONCURRENT]
    for policy in {id(policy): policy for policy in policies.values()}.values():
        held = getattr(policy, "max_batch", None)
        if held is not None:
            rooms.append(held // sum(other is policy for other in policies.values()))
    return max(min(rooms), 1)
