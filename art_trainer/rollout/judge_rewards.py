"""Judge rewards: groups are judged while others are still being played.

A reward is a weighted sum, such as ``"env"``, ``"ruler"`` or ``"0.7*ruler+0.3*env"``. ``env`` is the
environment's own reward; every other name is a judge, whose score is added to the reward of the last turn.
The environment's reward stays in :attr:`Episode.independent_reward`. If a judge fails, its group is left out
of the update and counted; it never gets a made-up score.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from art_gym.errors import did_you_mean
from art_gym.wrappers.judging import Attempt, Judge, JudgeFailedError, Score, Step, judge_group
from art_trainer.errors import ConfigError
from art_trainer.types import Episode, Group, Judgement, Turn

ENV = "env"
"""The name of the environment's own reward."""
MAX_FAILED_BATCHES = 3
"""Batches in a row without a judged group that end the run."""
_TERM = re.compile(r"(?:(?P<weight>[^*]+)\*)?(?P<name>[A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class RewardMix:
    """The weight of each reward, by name."""

    weights: Mapping[str, float]

    @classmethod
    def parse(cls, text: str, judges: Sequence[str]) -> RewardMix:
        """Read a mix such as ``"rubric"`` or ``"0.7*ruler+0.3*env"``.

        Args:
            text: Terms joined by ``+``; a term without a weight counts 1.
            judges: The known names beside ``env``.

        Raises:
            ConfigError: If the text is not such a sum, or names an unknown reward.
        """
        weights: dict[str, float] = {}
        for term in text.split("+"):
            match = _TERM.fullmatch(term.strip())
            if match is None:
                raise ConfigError(f"reward {text!r}: {term.strip()!r} is not NAME or WEIGHT*NAME")
            name, weight = match["name"], _weight(text, match["weight"])
            if name not in (ENV, *judges):
                raise ConfigError(f"reward {text!r}: no reward `{name}`{did_you_mean(name, (ENV, *judges))}")
            if name in weights:
                raise ConfigError(f"reward {text!r} names `{name}` twice")
            weights[name] = weight
        return cls(weights)

    @property
    def judges(self) -> tuple[str, ...]:
        """The names of its judges."""
        return tuple(name for name in self.weights if name != ENV)


def _weight(text: str, written: str | None) -> float:
    if written is None:
        return 1.0
    try:
        weight = float(written)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise ConfigError(f"reward {text!r}: the weight {written.strip()!r} is not a number above 0")
    return weight


def attempt_of(episode: Episode, id_: str) -> Attempt:
    """Convert an episode to what judges read."""
    steps = tuple(Step(t.reply, t.observation, t.reward, t.call, t.error) for t in episode.turns)
    return Attempt(
        id=id_,
        task=episode.observation,
        steps=steps,
        tools=episode.tools,
        ending=str(episode.ending),
        success=episode.success,
        facts=episode.facts,
    )


def with_scores(group: Group, scores: Mapping[str, Sequence[Score]], mix: RewardMix) -> Group:
    """Return the group with the weighted sum as its reward, which is 0 for an attempt without turns."""
    members = []
    for index, episode in enumerate(group.episodes):
        given = {name: scores[name][index] for name in mix.judges}
        turns = [_scaled(turn, mix.weights.get(ENV)) for turn in episode.turns]
        if turns:
            last, terms = turns[-1], {name: mix.weights[name] * s.value for name, s in given.items()}
            paid = last.reward + sum(terms.values())
            turns[-1] = replace(last, reward=paid, score_terms={**last.score_terms, **terms})
        judgements = {name: Judgement(s.value, s.explanation, dict(s.parts)) for name, s in given.items()}
        members.append(
            replace(episode, turns=tuple(turns), judgements=judgements, independent_reward=episode.reward)
        )
    return Group(tuple(members))


def _scaled(turn: Turn, weight: float | None) -> Turn:
    """Scale a turn's reward and terms; ``None`` removes them."""
    if weight is None:
        return replace(turn, reward=0.0, score_terms={})
    terms = {name: weight * value for name, value in turn.score_terms.items()}
    return replace(turn, reward=weight * turn.reward, score_terms=terms)


def without_scores(group: Group, reason: str, message: str) -> Group:
    """Mark a group as unjudged, so that no update uses it."""
    return Group(tuple(replace(e, unjudged=reason, error=e.error or message) for e in group.episodes))


class JudgeRewards:
    """Judges groups in threads as they end, so that judges and rollouts overlap.

    Args:
        mix: The weights of the rewards.
        judges: At least those of the mix, by name; they may be called from several threads.
        max_concurrency: Most groups judged at the same time.
    """

    def __init__(
        self,
        mix: RewardMix,
        judges: Mapping[str, Judge],
        *,
        max_concurrency: int = 8,
    ) -> None:
        self.mix = mix
        self._failed_batches = 0
        self._judges = {name: judges[name] for name in mix.judges}
        self._pool = ThreadPoolExecutor(max_concurrency, thread_name_prefix="judge")
        self._pending: dict[int, Future[Group]] = {}

    def submit(self, index: int, group: Group) -> None:
        """Begin to judge a group, the ``index``-th of its batch."""
        self._pending[index] = self._pool.submit(self.judge, group)

    def collect(self) -> list[Group]:
        """Wait for all groups submitted since the last call; return them by index, with their rewards.

        Raises:
            JudgingError: If the judges are misconfigured, so that every group would fail.
            JudgeFailedError: If the budget is spent, or no group could be judged several batches in a row.
        """
        pending, self._pending = self._pending, {}
        groups = [pending[index].result() for index in sorted(pending)]
        unjudged = [group.episodes[0] for group in groups if group.episodes[0].unjudged is not None]
        self._failed_batches = self._failed_batches + 1 if groups and len(unjudged) == len(groups) else 0
        if self._failed_batches >= MAX_FAILED_BATCHES:
            raise JudgeFailedError(
                str(unjudged[-1].unjudged),
                f"no group could be judged in {self._failed_batches} batches in a row; the last time: "
                f"{unjudged[-1].error}",
            )
        return groups

    def judge(self, group: Group) -> Group:
        """Judge one group now; a group with failed members is returned as it is.

        Raises:
            JudgingError: If the judges are misconfigured, so that every group would fail.
            JudgeFailedError: If the budget is spent.
        """
        if not group.whole:
            return group
        attempts = [attempt_of(episode, f"attempt_{i}") for i, episode in enumerate(group.episodes)]
        scores: dict[str, list[Score]] = {}
        for name, judge in self._judges.items():
            try:
                found = judge_group(judge, attempts)
            except JudgeFailedError as failure:
                if failure.reason == "budget":
                    raise
                return without_scores(group, failure.reason, f"{name}: {failure}")
            scores[name] = [found[attempt.id] for attempt in attempts]
        return with_scores(group, scores, self.mix)

    def close(self) -> None:
        """Cancel queued groups and stop the threads."""
        self._pool.shutdown(cancel_futures=True)
        self._pending = {}
