"""What environments and their scripted policies say, for a model that is made for one environment."""

from __future__ import annotations

import difflib
import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Protocol, TypeVar

import numpy as np

from art_gym.base import WARN_AT, turns_left
from art_gym.games.seats import players_of
from art_trainer.errors import ConfigError
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.envs import MakeEnv
from art_trainer.rollout.episodes import rollout_episodes
from art_trainer.rollout.games import MakeGame, play_games
from art_trainer.types import Episode, EpisodeSpec, Turn

_FIRST = 16  # episodes whose length is measured
_TURNS = 2_000  # of one scripted policy
_MOST_LOST = 0.2  # share of an observation's words that the next one lacks, at most, if it shows the state


class _Played(Protocol):
    @property
    def turns(self) -> Sequence[Turn]: ...


T = TypeVar("T", bound=_Played)


def play_within(
    turns: int, starts: Sequence[EpisodeSpec], play: Callable[[Sequence[EpisodeSpec]], list[T]]
) -> list[T]:
    """Play some episodes, and as many more as about fit into a number of turns: games may be long.

    Args:
        turns: Replies in all.
        starts: Where the episodes start; the first 16 are always played.
        play: Plays them.
    """
    episodes = play(starts[:_FIRST])
    mean = sum(len(episode.turns) for episode in episodes) / max(1, len(episodes))
    more = starts[_FIRST : int(turns / max(1.0, mean))]
    return episodes + play(more) if more else episodes


def sample_episodes(
    make_env: MakeEnv, players: Sequence[str], *, split: str | None, seed: int, episodes: int = 128
) -> list[Episode]:
    """Play some episodes with each of the environment's scripted policies, fewer if they are long."""
    options = None if split is None else {"split": split}
    starts = [EpisodeSpec(seed + number, options, rng_seed=(seed, number)) for number in range(episodes)]
    return [
        episode
        for player in players
        for episode in play_within(
            _TURNS, starts, functools.partial(rollout_episodes, ScriptedPolicy(player), make_env)
        )
    ]


def repeats_state(episodes: Sequence[Episode]) -> bool:
    """Whether each observation shows what the earlier ones showed, as a board does.

    Then the model needs no history. Nearly all words of an observation must stand in the next one too, and
    far fewer in the observations of other episodes, which share the environment's phrases. Words are compared
    in their order (a map has few kinds of cells) and in any order (cards change places).
    """
    letters = zip(*(one.observation for one in episodes), strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda each: len(set(each)) == 1, letters))
    shown = [
        [_words(text) for text in (one.observation[common:], *(turn.observation for turn in one.turns[:-1]))]
        for one in episodes
    ]
    return any(_is_repeated(shown, lost) for lost in (_lost_in_order, _lost))


def _is_repeated(shown: Sequence[Sequence[list[str]]], lost: Callable[[list[str], list[str]], float]) -> bool:
    """Whether observations keep their episode's words.

    Args:
        shown: For each episode what is its own in the first observation, then the other observations.
        lost: The share of a text's words that another does not have.
    """
    first = [lost(texts[0], texts[1]) for texts in shown if texts[0] and len(texts) > 1]
    own, elsewhere = [], []
    for number, texts in enumerate(shown):
        strange = shown[number - 1][1:]
        for place in range(2, len(texts)) if strange else ():
            own.append(lost(texts[place - 1], texts[place]))
            elsewhere.append(lost(strange[place % len(strange)], texts[place]))
    if not own or (first and np.mean(first) > _MOST_LOST):
        return False
    length = float(np.mean([len(text) for texts in shown for text in texts[1:]]))
    lost_elsewhere = float(np.mean(elsewhere))
    has_own_words = lost_elsewhere * length >= 1  # one at least that is not of the phrases
    return has_own_words and float(np.mean(own)) <= min(_MOST_LOST, lost_elsewhere / 2)


def _words(text: str) -> list[str]:
    for left in range(WARN_AT + 1):
        text = text.removesuffix(turns_left(left))
    return re.findall(r"\w+|[^\w\s]", text)


def _lost_in_order(before: list[str], now: list[str]) -> float:
    same = difflib.SequenceMatcher(None, before, now, autojunk=False)
    return 1 - sum(block.size for block in same.get_matching_blocks()) / max(1, len(before))


def _lost(before: list[str], now: list[str]) -> float:
    return (Counter(before) - Counter(now)).total() / max(1, len(before))


def episode_texts(episode: Episode) -> list[str]:
    """Return all texts of an episode."""
    said = [text for turn in episode.turns for text in (turn.reply, turn.observation)]
    return [episode.observation, *said]


def game_texts(make_game: MakeGame, *, seed: int, games: int = 8) -> list[str]:
    """What a game and its scripted players say, for the vocabulary of a model made from scratch."""
    with closing(make_game()) as game:
        players = {seat: tuple(players_of(game, seat)) for seat in game.possible_agents}
    for seat, names in players.items():
        if not names:
            raise ConfigError(
                f"{seat} has no scripted player to take a vocabulary from: name a model, or add some to the "
                "game's class attribute `players`"
            )
    texts = []
    for turn in range(max(map(len, players.values()))):
        policies = {seat: ScriptedPolicy(names[turn % len(names)]) for seat, names in players.items()}
        starts = [EpisodeSpec(seed + number, rng_seed=(seed, turn, number)) for number in range(games)]
        for played in play_games(policies, make_game, starts):
            texts += [text for episode in played.values() for text in episode_texts(episode)]
    return texts
