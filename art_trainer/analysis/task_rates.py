"""Success rates by task, of training or of an evaluation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from art_trainer.rollout.evaluate import EpisodeResult
from art_trainer.types import Episode

_HARDEST = 12
_FAMILIES = 24
_NUMBERS = re.compile(r"[\W_]*\d+[\W_]*")


@dataclass(slots=True)
class TaskRate:
    """Success rate of one task, with its mean reward."""

    task_id: str
    episodes: int = 0
    successes: int = 0
    reward: float = 0.0

    @property
    def rate(self) -> float:
        """The share of its episodes that succeeded."""
        return self.successes / self.episodes

    def add(self, episodes: int, successes: int, reward: float) -> None:
        """Add episodes with their mean reward."""
        self.reward += (reward - self.reward) * episodes / (self.episodes + episodes)
        self.episodes += episodes
        self.successes += successes


@dataclass(frozen=True, slots=True)
class TaskRates:
    """How many tasks are solved always, sometimes and never, and the hardest ones.

    Attributes:
        of: Which episodes these are.
        tasks: Number of tasks.
        always: Tasks solved in every episode.
        sometimes: Tasks solved in some episodes.
        never: Tasks solved in none.
        hardest: Tasks by success rate, lowest first; ties by number of episodes.
        families: The same for tasks whose ids differ only in digits.
    """

    of: str
    tasks: int
    always: int
    sometimes: int
    never: int
    hardest: tuple[TaskRate, ...]
    families: tuple[TaskRate, ...]


@dataclass(slots=True)
class TaskCollector:
    """Counts episodes and successes by task."""

    _rates: dict[str, TaskRate] = field(default_factory=dict)
    _reports_success: bool = False

    def add(self, attempts: Sequence[Episode | EpisodeResult]) -> None:
        """Count attempts at one task; they are one group."""
        if not attempts:
            return
        task, count = attempts[0].task_id, len(attempts)
        wins = sum(bool(attempt.success) for attempt in attempts)
        self._reports_success |= any(attempt.success is not None for attempt in attempts)
        mean = sum(attempt.reward for attempt in attempts) / count
        self._rates.setdefault(task, TaskRate(task)).add(count, wins, mean)

    def rates(self, of: str) -> TaskRates | None:
        """The success rates; ``None`` if there is only one task or success is unknown."""
        if not self._reports_success or len(self._rates) < 2:
            return None
        rates = list(self._rates.values())
        always = sum(rate.successes == rate.episodes for rate in rates)
        never = sum(rate.successes == 0 for rate in rates)
        return TaskRates(
            of=of,
            tasks=len(rates),
            always=always,
            sometimes=len(rates) - always - never,
            never=never,
            hardest=tuple(sorted(rates, key=lambda one: (one.rate, -one.episodes, one.task_id))[:_HARDEST]),
            families=_families(rates),
        )


def _families(rates: Sequence[TaskRate]) -> tuple[TaskRate, ...]:
    """Tasks whose ids differ only in numbers, together, lowest rate first; none if that groups nothing."""
    families: dict[str, TaskRate] = {}
    for rate in rates:
        name = _NUMBERS.sub(" ", rate.task_id).strip() or "(numbers)"
        families.setdefault(name, TaskRate(name)).add(rate.episodes, rate.successes, rate.reward)
    if not 2 <= len(families) <= len(rates) // 2:
        return ()
    return tuple(sorted(families.values(), key=lambda one: (one.rate, one.task_id))[:_FAMILIES])
