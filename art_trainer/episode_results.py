"""What an evaluation keeps of each episode."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from art_trainer.episodes import Ending, Episode


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """What an evaluation keeps of one episode."""

    task_id: str
    seed: int
    ending: Ending
    success: bool | None
    reward: float
    score_terms: Mapping[str, float]
    metrics: Mapping[str, float]
    turns: int
    invalid_actions: int
    tokens: int
    error: str | None = None

    @property
    def fault(self) -> bool:
        """Whether a fault, not the policy's play, ended the episode."""
        return self.ending in (Ending.ENV_ERROR, Ending.POLICY_ERROR)

    @classmethod
    def of(cls, episode: Episode) -> EpisodeResult:
        """Summarise an episode."""
        return cls(
            task_id=episode.task_id,
            seed=episode.seed,
            ending=episode.ending,
            success=episode.success,
            reward=episode.reward,
            score_terms=episode.score_terms,
            metrics=dict(episode.metrics),
            turns=len(episode.turns),
            invalid_actions=episode.invalid_actions,
            tokens=episode.sampled_tokens,
            error=episode.error,
        )


def clusters_of(results: Sequence[EpisodeResult]) -> list[Hashable]:
    """What belongs together in an interval: the episodes of one task; of an only task, those of one seed."""
    tasks = {result.task_id for result in results}
    return [result.task_id if len(tasks) > 1 else result.seed for result in results]
