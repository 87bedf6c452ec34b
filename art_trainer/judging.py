"""Rewards that judges give: groups are judged while others are still being played.

A reward is a mix, such as ``"env"``, ``"ruler"`` or ``"0.7*ruler+0.3*env"``. ``env`` is what the environment
pays; every other name stands for a judge, whose score is paid with an attempt's last turn. What the
environment paid stays in :attr:`Episode.independent_reward`. A group whose judge failed is left out of the
update, and counted: it never gets a made-up score.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from art_gym.errors import did_you_mean
from art_gym.wrappers.judging import Attempt, Judge, JudgeFailed, Score, Step, judge_group
from art_trainer.episodes import Episode, Group, Judgement, Turn
from art_trainer.errors import ConfigError

ENV = "env"
"""The name of the environment's own reward in a mix."""
_TERM = re.compile(r"(?:(?P<weight>[^*]+)\*)?(?P<name>[A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class RewardMix:
    """How much each reward counts, by name."""

    weights: Mapping[str, float]

    @classmethod
    def parse(cls, text: str, judges: Sequence[str]) -> RewardMix:
        """Read a mix such as ``"rubric"`` or ``"0.7*ruler+0.3*env"``.

        Args:
            text: Terms joined by ``+``; a term without a weight counts 1.
            judges: The names there are beside ``env``.

        Raises:
            ConfigError: For words that are no such mix, or a name that nobody has.
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
        """The names of the judges in it."""
        return tuple(name for name in self.weights if name != ENV)


def _weight(text: str, written: str | None) -> float:
    if written is None:
        return 1.0
    try:
        weight = float(written)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise ConfigError(f"reward {text!r}: the weight {written.strip()!r} is no number above 0")
    return weight


def attempt_of(episode: Episode, id_: str) -> Attempt:
    """An episode as judges read it."""
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
    """Return the group with the mix as its reward.

    Args:
        group: Played, as the environment paid it; an attempt without a turn earns nothing.
        scores: For each judge of the mix a score an attempt, in the group's order.
        mix: What to pay.
    """
    members = []
    for index, episode in enumerate(group.episodes):
        given = {name: scores[name][index] for name in mix.judges}
        turns = [_scaled(turn, mix.weights.get(ENV)) for turn in episode.turns]
        if turns:
            turns[-1] = _with_terms(turns[-1], {n: mix.weights[n] * s.value for n, s in given.items()})
        judgements = {name: Judgement(s.value, s.explanation, dict(s.parts)) for name, s in given.items()}
        members.append(
            replace(episode, turns=tuple(turns), judgements=judgements, independent_reward=episode.reward)
        )
    return Group(tuple(members))


def _scaled(turn: Turn, weight: float | None) -> Turn:
    """A turn with the environment's reward weighed; ``None`` takes it away with its terms."""
    if weight is None:
        return replace(turn, reward=0.0, score_terms={})
    terms = {name: weight * value for name, value in turn.score_terms.items()}
    return replace(turn, reward=weight * turn.reward, score_terms=terms)


def _with_terms(turn: Turn, terms: Mapping[str, float]) -> Turn:
    """A turn that also pays these terms."""
    return replace(turn, reward=turn.reward + sum(terms.values()), score_terms={**turn.score_terms, **terms})


def without_scores(group: Group, reason: str, words: str) -> Group:
    """Return the group as one that no judge could score, which no update uses.

    Args:
        group: Played.
        reason: One word, for counting.
        words: What went wrong.
    """
    return Group(tuple(replace(e, unjudged=reason, error=e.error or words) for e in group.episodes))


class RewardModel:
    """Has groups judged as they end, in threads, so that judges and rollouts work at the same time.

    Args:
        mix: What is paid.
        judges: At least those of the mix, by name; they may be called from several threads.
        max_concurrency: Most groups being judged at one time.
        max_failed_batches: Batches in a row without a single group judged, after which it gives up.
    """

    def __init__(
        self,
        mix: RewardMix,
        judges: Mapping[str, Judge],
        *,
        max_concurrency: int = 8,
        max_failed_batches: int = 3,
    ) -> None:
        self.mix = mix
        self._failed_batches, self._max_failed_batches = 0, max_failed_batches
        self._judges = {name: judges[name] for name in mix.judges}
        self._pool = ThreadPoolExecutor(max_concurrency, thread_name_prefix="judge")
        self._asked: dict[int, Future[Group]] = {}

    def submit(self, index: int, group: Group) -> None:
        """Begin to judge a group, the ``index``-th of its batch."""
        self._asked[index] = self._pool.submit(self.judge, group)

    def collect(self) -> list[Group]:
        """Wait for all groups submitted since the last time, and return them by index, with their rewards.

        Raises:
            JudgingError: Where the judges are set up wrongly, which no other group would mend.
            JudgeFailed: Where the budget is spent, or no group could be judged several batches in a row.
        """
        asked, self._asked = self._asked, {}
        groups = [asked[index].result() for index in sorted(asked)]
        unjudged = [group.episodes[0] for group in groups if group.episodes[0].unjudged is not None]
        self._failed_batches = self._failed_batches + 1 if groups and len(unjudged) == len(groups) else 0
        if self._failed_batches >= self._max_failed_batches:
            raise JudgeFailed(
                str(unjudged[-1].unjudged),
                f"no group could be judged in {self._failed_batches} batches in a row; the last time: "
                f"{unjudged[-1].error}",
            )
        return groups

    def judge(self, group: Group) -> Group:
        """Judge one group now; one that is not whole needs no judge.

        Raises:
            JudgingError: Where the judges are set up wrongly, which no other group would mend.
            JudgeFailed: Where the budget is spent.
        """
        if not group.whole:
            return group
        attempts = [attempt_of(episode, f"attempt_{i}") for i, episode in enumerate(group.episodes)]
        scores: dict[str, list[Score]] = {}
        for name, judge in self._judges.items():
            try:
                found = judge_group(judge, attempts)
            except JudgeFailed as failure:
                if failure.reason == "budget":
                    raise
                return without_scores(group, failure.reason, f"{name}: {failure}")
            scores[name] = [found[attempt.id] for attempt in attempts]
        return with_scores(group, scores, self.mix)

    def close(self) -> None:
        """Wait for what is under way and give up the threads."""
        self._pool.shutdown(cancel_futures=True)
        self._asked = {}
