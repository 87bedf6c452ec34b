"""Judges for tests: small functions that score an attempt by what is plain to see in it."""

from collections.abc import Sequence

from art_gym.wrappers.judging import Attempt, JudgeFailedError, Rubric, Score


def worth(attempt: Attempt) -> float:
    """Differs with the number of steps and with the rewards; 0.5 for an attempt of no steps."""
    return 1 / (2 + len(attempt.steps)) + 0.01 * min(max(attempt.reward, 0.0), 1.0)


def by_worth(group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
    """Scores each attempt alone, and answers in the reverse order."""
    return {
        attempt.id: Score(worth(attempt), f"{len(attempt.steps)} steps", {"length": worth(attempt)})
        for attempt in reversed(group)
    }


class FailsOn:
    """``by_worth``, but fails on the calls with these numbers, counted from 0."""

    def __init__(self, *calls: int, reason: str = "timeout") -> None:
        self.calls = calls
        self.reason = reason
        self.count = 0

    def __call__(self, group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        self.count += 1
        if self.count - 1 in self.calls:
            raise JudgeFailedError(self.reason, f"no answer to call {self.count - 1}")
        return by_worth(group, rubric)
