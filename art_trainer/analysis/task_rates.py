"""Win rates by task, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from art_trainer.analysis.results import TaskRate, TaskRates
from art_trainer.analysis.sketches import KeySample
from art_trainer.episodes import Episode
from art_trainer.evaluation import EpisodeResult
from art_trainer.statistics import Interval, mean_interval

_LIMIT = 20_000
_HARDEST = 12
_FAMILIES = 24
_SEED = 20_240_229
_NUMBERS = re.compile(r"[\W_]*\d+[\W_]*")


@dataclass(slots=True)
class _Tally:
    episodes: int = 0
    successes: int = 0
    reward: float = 0.0
    times: int = 0
    first: float = 0.0
    last: float = 0.0


@dataclass(slots=True)
class TaskCollector:
    """Counts wins by task."""

    tells_success: bool = False
    _tallies: KeySample[_Tally] = field(default_factory=lambda: KeySample(_LIMIT, _Tally))

    def add_group(self, members: Sequence[Episode]) -> None:
        """Take in attempts at one task; those that a fault ended say nothing."""
        played = [episode for episode in members if not episode.failed]
        tally = self._tallies.get(played[0].task_id) if played else None
        if tally is None:
            return
        self.tells_success |= any(episode.success is not None for episode in played)
        wins = sum(bool(episode.success) for episode in played)
        tally.episodes += len(played)
        tally.successes += wins
        tally.reward += sum(episode.reward for episode in played)
        tally.last = wins / len(played)
        if tally.times == 0:
            tally.first = tally.last
        tally.times += 1

    def rates(self) -> TaskRates | None:
        """The rates of the training episodes; ``None`` without tasks or success."""
        tallies = self._tallies.values
        if not self.tells_success or len(tallies) < 2:
            return None
        rates = [
            TaskRate(name, tally.episodes, tally.successes, tally.reward / tally.episodes)
            for name, tally in tallies.items()
        ]
        again = [tally.last - tally.first for tally in tallies.values() if tally.times > 1]
        return _summary("training", rates, self._tallies.share, _mean(again))


def rates_of(name: str, results: Iterable[EpisodeResult]) -> TaskRates | None:
    """The rates of an evaluation's episodes; ``None`` without tasks or success."""
    tallies: dict[str, _Tally] = {}
    tells_success = False
    for result in results:
        tells_success |= result.success is not None
        tally = tallies.setdefault(result.task_id, _Tally())
        tally.episodes += 1
        tally.successes += bool(result.success)
        tally.reward += result.reward
    if not tells_success or len(tallies) < 2:
        return None
    rates = [TaskRate(k, t.episodes, t.successes, t.reward / t.episodes) for k, t in tallies.items()]
    return _summary(name, rates, 1.0, None)


def _mean(values: Sequence[float]) -> Interval | None:
    return mean_interval(values, np.random.default_rng(_SEED)) if len(values) > 1 else None


def _summary(of: str, rates: Sequence[TaskRate], share: float, again: Interval | None) -> TaskRates:
    hardest = sorted(rates, key=lambda rate: (rate.rate, -rate.episodes, rate.task_id))
    return TaskRates(
        of=of,
        tasks=len(rates),
        share=share,
        always=sum(rate.successes == rate.episodes for rate in rates),
        sometimes=sum(0 < rate.successes < rate.episodes for rate in rates),
        never=sum(rate.successes == 0 for rate in rates),
        hardest=tuple(hardest[:_HARDEST]),
        families=_families(rates),
        seen_again=again,
    )


def _families(rates: Sequence[TaskRate]) -> tuple[TaskRate, ...]:
    """Tasks whose ids differ only in numbers, together, lowest rate first; none where that groups nothing."""
    grouped: dict[str, list[TaskRate]] = {}
    for rate in rates:
        grouped.setdefault(_NUMBERS.sub(" ", rate.task_id).strip(), []).append(rate)
    if not 2 <= len(grouped) <= len(rates) // 2:
        return ()
    families = []
    for name, members in grouped.items():
        episodes = sum(member.episodes for member in members)
        reward = sum(member.reward * member.episodes for member in members) / episodes
        families.append(TaskRate(name or "(numbers)", episodes, sum(m.successes for m in members), reward))
    return tuple(sorted(families, key=lambda family: (family.rate, family.task_id))[:_FAMILIES])
