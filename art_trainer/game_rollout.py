"""Playing games: PettingZoo AEC environments in text on one side, a policy for each seat on the other.

It is to games what :mod:`art_trainer.rollout` is to environments. Each seat of a game is a conversation of
its own, so what comes out of a game is one ordinary episode a seat, with that seat's tokens, which the
learner takes as any other. All games in which a policy is to move wait for it together, whatever seat it
plays there.

What a seat is paid before its first turn (the others moved first) belongs to no move of its own and is left
out of its episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import gymnasium as gym
import numpy as np

from art_gym.seats import TextGame, seat_baselines, words_of
from art_trainer.episodes import Ending, Episode, Group, TokenHistory, Turn
from art_trainer.policy import Conversation, Policy, Reply
from art_trainer.rollout import DEFAULT_MAX_CONCURRENT, first_messages, last_line
from art_trainer.starts import Start

MakeGame = Callable[[], TextGame]
PlayedGame = Mapping[str, Episode]
"""What a game leaves behind: an episode a seat."""


def play_games(
    policies: Mapping[str, Policy],
    make_game: MakeGame,
    starts: Sequence[Start],
    *,
    max_concurrent: int | None = None,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[PlayedGame]:
    """Play one game from every start.

    A game that raises, or a policy's fault about one conversation, ends the game for all its seats; the words
    are in ``Episode.error``. Where a seat's context is full its episode ends so, and the others' are cut off.

    Args:
        policies: Who plays each seat; one policy may play several.
        make_game: Makes a game; games are used again after their end.
        starts: Where the games start; each seat draws its own randomness from ``rng_seed``.
        max_concurrent: Most games under way at one time; at most as many as the policies can hold.
        on_episode: Called with each seat's episode when a game ends.

    Returns:
        The games, in the order of their starts; an episode's ``env_id`` is ``NAME-OF-THE-GAME:SEAT``.

    Raises:
        ValueError: Where a seat of the game has no policy.
    """
    limit = DEFAULT_MAX_CONCURRENT if max_concurrent is None else max_concurrent
    if limit < 1:
        raise ValueError(f"max_concurrent is at least 1, got {max_concurrent}")
    return _Table(policies, make_game, on_episode).run(starts, min(limit, _room(policies)))


def seat_groups(games: Sequence[PlayedGame], group_size: int, seats: Sequence[str]) -> list[Group]:
    """The groups to learn from: for each start and seat the attempts of that seat.

    Attempts in which the seat never came to move are left out, and groups of which one attempt is left:
    there is nothing to compare it with.

    Args:
        games: Games in the order of their starts, ``group_size`` of each start together.
        group_size: How many games were played from each start.
        seats: The seats that learn.
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
    """The seat whose attempts a group of :func:`seat_groups` holds."""
    return group.episodes[0].env_id.rpartition(":")[2]


class _Chair:
    """What a scripted policy looks at in place of an environment: the game, and the players of this seat."""

    def __init__(self, game: TextGame, seat: str) -> None:
        self.game = game
        self.baselines = seat_baselines(game, seat)

    @property
    def unwrapped(self) -> _Chair:
        return self


@dataclass(eq=False, slots=True)
class _Seat:
    """One seat of a game under way, which becomes an episode."""

    policy: Policy
    rng: np.random.Generator
    conversation: Conversation | None = None
    observation: str = ""
    task_id: str | None = None
    turns: list[Turn] = field(default_factory=list)
    reply: str | None = None
    """A reply whose outcome is not known before the seat looks again."""
    paid: float = 0.0
    """The rewards since that reply."""
    ending: Ending | None = None
    success: bool | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    def outcome(self, observation: object, reward: float, info: Mapping[str, Any]) -> None:
        """Complete the turn of the reply that was given, if one was."""
        if self.reply is None:
            return
        self.turns.append(
            Turn(
                reply=self.reply,
                observation=words_of(observation),
                reward=float(reward),
                score_terms=dict(info.get("score_terms", {})),
                call=info.get("call"),
                error=info.get("error"),
            )
        )
        self.reply = None

    def end(self, ending: Ending, info: Mapping[str, Any]) -> None:
        """The seat's game is over, in the game's own way."""
        self.ending = ending
        success = info.get("success")
        self.success = None if success is None else bool(success)
        self.metrics = {name: float(value) for name, value in info.get("metrics", {}).items()}


@dataclass(eq=False, slots=True)
class _Game:
    """One game under way."""

    index: int
    start: Start
    game: TextGame
    seats: dict[str, _Seat]


class _Table:
    """Keeps games under way until all are done."""

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
        self._asked: dict[Conversation, tuple[_Game, _Seat]] = {}
        self._done: dict[int, PlayedGame] = {}

    def run(self, starts: Sequence[Start], limit: int) -> list[PlayedGame]:
        waiting = iter(enumerate(starts))
        try:
            while len(self._done) < len(starts):
                while len(self._live) < limit and (entry := next(waiting, None)) is not None:
                    self._begin(*entry)
                for policy in self._distinct:
                    for conversation, reply in policy.collect() if self._asked else ():
                        self._advance(*self._asked.pop(conversation), reply)
        finally:
            for play in self._live:
                _release(play)
                play.game.close()
            for game in self._free:
                game.close()
        return [self._done[index] for index in range(len(starts))]

    def _begin(self, index: int, start: Start) -> None:
        if not self._free:
            self._free.append(self._make_game())
            self._check_seats(self._free[0].possible_agents)
        game = self._free.pop()
        root = [start.rng_seed] if isinstance(start.rng_seed, int) else list(start.rng_seed)
        seats = {
            name: _Seat(self._policies[name], np.random.default_rng((*root, place)))
            for place, name in enumerate(game.possible_agents)
        }
        play = _Game(index, start, game, seats)
        self._live.append(play)
        try:
            game.reset(seed=start.seed, options=None if start.options is None else dict(start.options))
        except Exception:  # a game is its author's code; what it raises is this game's outcome
            self._break(play, Ending.ENV_ERROR, last_line())
            return
        self._go_on(play)

    def _check_seats(self, seats: Sequence[str]) -> None:
        for name in seats:
            if name not in self._policies:
                raise ValueError(f"no policy for the seat {name}; the game has {', '.join(seats)}")

    def _go_on(self, play: _Game) -> None:
        """Let seats at their end leave, and ask the next one to move; without any the game is over."""
        try:
            asked = self._next_to_move(play)
        except Exception:  # a game is its author's code; what it raises is this game's outcome
            self._break(play, Ending.ENV_ERROR, last_line())
            return
        if asked is None:
            self._finish(play)
        else:
            self._ask(play, *asked)

    def _next_to_move(self, play: _Game) -> tuple[str, str, dict[str, Any]] | None:
        """The seat to move, its words and its info; ``None`` where the game is over."""
        while play.game.agents:
            name = play.game.agent_selection
            seen, reward, terminated, truncated, info = play.game.last()
            seat = play.seats[name]
            seat.task_id = seat.task_id or info.get("task_id")
            seat.observation = seat.observation or words_of(seen)
            seat.outcome(seen, reward, info)
            if not (terminated or truncated):
                return name, words_of(seen), dict(info)
            seat.end(Ending.TERMINATED if terminated else Ending.TRUNCATED, info)
            play.game.step(None)
        return None

    def _ask(self, play: _Game, name: str, words: str, info: Mapping[str, Any]) -> None:
        seat = play.seats[name]
        if seat.conversation is None:
            chair = cast("gym.Env[str, str]", _Chair(play.game, name))
            messages = first_messages(words, info.get("system") or "")
            tools = list(info.get("tools") or ())
            seat.conversation = Conversation(chair, messages, tools, seat.rng, play.start.group)
        else:
            seat.conversation.messages.append({"role": "user", "content": words})
        self._asked[seat.conversation] = play, seat
        try:
            seat.policy.submit(seat.conversation)
        except Exception:  # a policy's fault about one conversation is that game's outcome
            del self._asked[seat.conversation]
            self._break(play, Ending.POLICY_ERROR, last_line())

    def _advance(self, play: _Game, seat: _Seat, reply: Reply) -> None:
        """Play a reply, and ask for the next one."""
        if reply.error is not None:
            self._break(play, Ending.POLICY_ERROR, reply.error)
            return
        if reply.context_full:
            self._cut_off(play, seat)
            return
        try:
            play.game.step(reply.text)
            seat.reply, seat.paid = reply.text, 0.0
            for name, reward in play.game.rewards.items():
                play.seats[name].paid += float(reward)
        except Exception:  # a game is its author's code; what it raises is this game's outcome
            self._break(play, Ending.ENV_ERROR, last_line())
            return
        self._go_on(play)

    def _cut_off(self, play: _Game, full: _Seat) -> None:
        """A seat can say no more: the others' episodes end with what became of their last replies so far."""
        try:
            for name, seat in play.seats.items():
                if seat.ending is None:
                    seat.outcome(play.game.observe(name), seat.paid, play.game.infos[name])
                    seat.ending = Ending.CONTEXT_FULL if seat is full else Ending.TRUNCATED
        except Exception:  # a game is its author's code; what it raises is this game's outcome
            self._break(play, Ending.ENV_ERROR, last_line())
            return
        self._finish(play)

    def _break(self, play: _Game, ending: Ending, error: str) -> None:
        """A fault ends the game: no seat's play says anything then."""
        for seat in play.seats.values():
            seat.ending = ending
        self._finish(play, error)

    def _finish(self, play: _Game, error: str | None = None) -> None:
        self._live.remove(play)
        histories = _release(play)
        # Whatever a game that raised still holds is unknown: the next one is new.
        if any(seat.ending is Ending.ENV_ERROR for seat in play.seats.values()):
            play.game.close()
        else:
            self._free.append(play.game)
        self._done[play.index] = played = {
            name: Episode(
                env_id=f"{getattr(play.game, 'unwrapped', play.game)}:{name}",
                task_id=seat.task_id or f"seed-{play.start.seed}",
                seed=play.start.seed,
                observation=seat.observation,
                turns=tuple(seat.turns),
                histories=histories[name],
                ending=seat.ending or Ending.TERMINATED,
                success=seat.success,
                metrics=seat.metrics,
                error=error,
            )
            for name, seat in play.seats.items()
        }
        if self._on_episode is not None:
            for episode in played.values():
                self._on_episode(episode)


def _release(play: _Game) -> dict[str, tuple[TokenHistory, ...]]:
    """Give up the seats' conversations."""
    return {
        name: () if seat.conversation is None else seat.policy.release(seat.conversation)
        for name, seat in play.seats.items()
    }


def _room(policies: Mapping[str, Policy]) -> int:
    """How many games the policies can hold: a waiting seat keeps its place in the model's memory."""
    rooms = [DEFAULT_MAX_CONCURRENT]
    for policy in {id(policy): policy for policy in policies.values()}.values():
        held = getattr(policy, "max_batch", None)
        if held is not None:
            rooms.append(held // sum(other is policy for other in policies.values()))
    if min(rooms) < 1:
        raise ValueError("max_batch of a policy is below the number of seats it plays: it holds no game")
    return min(rooms)
