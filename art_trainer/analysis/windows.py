"""What a stretch of training adds up to: sums over its groups of episodes that can be merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from art_trainer.analysis.repetition import repeated_calls, repeated_words, script_of, tool_of
from art_trainer.analysis.sketches import Covariance, Moments, TopCounts
from art_trainer.episodes import Ending, Episode

UNNAMED: Final = "(unnamed)"
"""The part of the reward that no score term names."""
REWARD: Final = "reward"
LATER_TURNS: Final = 10
"""Turns from this one on are counted together."""

_SCRIPTS = 64
_TOOLS = 64
_OTHER = "(other)"
_NEGLIGIBLE = 1e-6


class Window:
    """Adds up groups of episodes. An episode that a fault ended is counted, and in nothing else.

    Attributes:
        episodes: Episodes played to an end.
        faults: Episodes that a fault ended or that no judge could score.
        told: Episodes of environments that say what success is.
        successes: Those that succeeded.
        values: Per-episode quantities by name: ``reward``, ``turns``, ``tokens``, ``read_tokens``,
            ``reply_length`` (characters a reply), ``invalid`` (share of replies), ``repeated_calls``,
            ``repeated_words``, ``cut_off`` (ended by a limit), ``independent_reward``.
        terms: The reward's named parts, and ``(unnamed)`` where they do not sum to it.
        won: The same parts and the reward, of the successful episodes alone; ``lost`` of the others.
        judges: Each judge's scores.
        endings: How episodes ended.
        tools: Calls by turn (from 0, the last one for all later) and tool.
        groups: Groups of at least two; ``flat_groups`` those whose rewards are all the same.
        group_spread: The standard deviation of the rewards within a group.
        length_reward: How reply length and reward go together within groups.
        length_beyond: The same among attempts of one group with the same success.
        length_terms: Each reward term in place of the reward, also at the same success.
        scripts: For how many groups a sequence of replies is that of most members.
        scripted: Groups, of one attempt or more.
    """

    def __init__(self) -> None:
        self.episodes = self.faults = self.told = self.successes = 0
        self.groups = self.flat_groups = self.scripted = 0
        self.values: dict[str, Moments] = {}
        self.terms: dict[str, Moments] = {}
        self.won: dict[str, Moments] = {}
        self.lost: dict[str, Moments] = {}
        self.judges: dict[str, Moments] = {}
        self.endings: Counter[str] = Counter()
        self.tools: Counter[tuple[int, str]] = Counter()
        self.group_spread = Moments()
        self.length_reward, self.length_beyond = Covariance(), Covariance()
        self.length_terms: dict[str, Covariance] = {}
        self.scripts: TopCounts[int] = TopCounts(_SCRIPTS)

    def add_group(self, members: Sequence[Episode]) -> None:
        """Take in the attempts at one task from one seed."""
        played = [episode for episode in members if not episode.failed]
        self.faults += len(members) - len(played)
        if not played:
            return
        terms = [terms_of(episode) for episode in played]
        lengths = [_reply_length(episode) for episode in played]
        for episode, parts, length in zip(played, terms, lengths, strict=True):
            self._add_episode(episode, parts, length)
        self._add_spread([episode.reward for episode in played])
        self._add_lengths(played, terms, lengths)
        self.scripted += 1
        script, count = Counter(map(script_of, played)).most_common(1)[0]
        if 2 * count >= len(played):
            self.scripts.add(script)

    def merge(self, other: Window) -> None:
        """Take in all groups of another window."""
        for name in ("episodes", "faults", "told", "successes", "groups", "flat_groups", "scripted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for held, more in (
            (self.values, other.values),
            (self.terms, other.terms),
            (self.won, other.won),
            (self.lost, other.lost),
            (self.judges, other.judges),
        ):
            for name, moments in more.items():
                held.setdefault(name, Moments()).merge(moments)
        for name, covariance in other.length_terms.items():
            self.length_terms.setdefault(name, Covariance()).merge(covariance)
        self.endings.update(other.endings)
        self.tools.update(other.tools)
        self.group_spread.merge(other.group_spread)
        self.length_reward.merge(other.length_reward)
        self.length_beyond.merge(other.length_beyond)
        self.scripts.merge(other.scripts)

    def mean(self, name: str) -> float | None:
        """The mean of one of ``values`` over the episodes; ``None`` where none had it."""
        found = self.values.get(name)
        return found.mean if found is not None and found.count else None

    def term_mean(self, name: str) -> float:
        """The mean of a reward term over the episodes; a term that an episode does not name counts as 0."""
        if name == REWARD:
            return self.mean(REWARD) or 0.0
        found = self.terms.get(name)
        return found.mean * found.count / self.episodes if found is not None and self.episodes else 0.0

    def _add_episode(self, episode: Episode, parts: Mapping[str, float], length: float) -> None:
        turns = episode.turns
        self.episodes += 1
        self.endings[str(episode.ending)] += 1
        values = {
            REWARD: episode.reward,
            "turns": float(len(turns)),
            "reply_length": length,
            "repeated_calls": repeated_calls(turns),
            "repeated_words": repeated_words(turn.reply for turn in turns),
            "cut_off": float(episode.ending in (Ending.TRUNCATED, Ending.CONTEXT_FULL)),
            "invalid": episode.invalid_actions / len(turns) if turns else 0.0,
        }
        if episode.histories:
            values["tokens"], values["read_tokens"] = token_counts(episode)
        if episode.independent_reward is not None:
            values["independent_reward"] = episode.independent_reward
        _add_all(self.values, values)
        _add_all(self.terms, parts)
        _add_all(self.judges, {name: judged.score for name, judged in episode.judgements.items()})
        self.told += episode.success is not None
        self.successes += bool(episode.success)
        _add_all(self.won if episode.success else self.lost, {**parts, REWARD: values[REWARD]})
        for place, turn in enumerate(turns):
            key = (min(place, LATER_TURNS), tool_of(turn))
            if key not in self.tools and len(self.tools) >= _TOOLS * (LATER_TURNS + 1):
                key = (key[0], _OTHER)
            self.tools[key] += 1

    def _add_spread(self, rewards: Sequence[float]) -> None:
        if len(rewards) > 1:
            self.groups += 1
            self.flat_groups += max(rewards) - min(rewards) < _NEGLIGIBLE
            self.group_spread.add(float(np.std(rewards, ddof=1)))

    def _add_lengths(
        self, played: Sequence[Episode], terms: Sequence[Mapping[str, float]], lengths: Sequence[float]
    ) -> None:
        if len(played) < 2:
            return
        self.length_reward.add_class(list(lengths), [episode.reward for episode in played])
        for succeeded in (False, True):
            inside = [i for i, episode in enumerate(played) if bool(episode.success) == succeeded]
            if len(inside) < 2:
                continue
            xs = [lengths[i] for i in inside]
            self.length_beyond.add_class(xs, [played[i].reward for i in inside])
            for name in {name for i in inside for name in terms[i]}:
                held = self.length_terms.setdefault(name, Covariance())
                held.add_class(xs, [terms[i].get(name, 0.0) for i in inside])


def merged(windows: Sequence[Window]) -> Window:
    """One window that holds all that these do."""
    total = Window()
    for window in windows:
        total.merge(window)
    return total


def terms_of(episode: Episode) -> dict[str, float]:
    """The reward's named parts, and what they leave of it as ``(unnamed)``."""
    terms = episode.score_terms
    rest = episode.reward - sum(terms.values())
    if abs(rest) > _NEGLIGIBLE * max(1.0, abs(episode.reward)):
        terms[UNNAMED] = rest
    return terms


def token_counts(episode: Episode) -> tuple[float, float]:
    """How many tokens were sampled, and how many were read (prompts and observations, each once)."""
    sampled = episode.sampled_tokens
    total = sum(len(span.token_ids) for history in episode.histories for span in history.spans)
    return float(sampled), float(total - sampled)


def _reply_length(episode: Episode) -> float:
    """Characters a reply."""
    turns = episode.turns
    return sum(len(turn.reply) for turn in turns) / len(turns) if turns else 0.0


def _add_all(held: dict[str, Moments], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        moments = held.get(name)
        if moments is None:
            moments = held[name] = Moments()
        moments.add(value)
