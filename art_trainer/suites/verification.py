"""Whether a repeated evaluation came to the same, episode by episode."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from art_trainer.episode_results import EpisodeResult
from art_trainer.evaluation import Evaluation


@dataclass(frozen=True, slots=True)
class Difference:
    """An episode that came out otherwise.

    Attributes:
        place: Which episode, from 0.
        task_id: Its task.
        fields: What of its result differs, each as it was then and as it is now.
    """

    place: int
    task_id: str
    fields: Mapping[str, tuple[Any, Any]]

    @property
    def words(self) -> str:
        """The difference in one line."""
        changed = ", ".join(f"{name} {then!r} → {now!r}" for name, (then, now) in self.fields.items())
        return f"episode {self.place} ({self.task_id}): {changed}"


def differences(then: Evaluation, now: Evaluation) -> list[Difference]:
    """The episodes whose results are not equal to the last bit, in order.

    Raises:
        ValueError: Where the two do not have equally many episodes.
    """
    if len(then.results) != len(now.results):
        raise ValueError(
            f"the file has {len(then.results)} episodes of {then.policy}, but its suite asks for "
            f"{len(now.results)}: it is not whole"
        )
    found = []
    for place, (old, new) in enumerate(zip(then.results, now.results, strict=True)):
        fields = _unequal(old, new)
        if fields:
            found.append(Difference(place, old.task_id, fields))
    return found


def _unequal(old: EpisodeResult, new: EpisodeResult) -> dict[str, tuple[Any, Any]]:
    # As JSON, so that what went through a file equals what did not, and NaN equals NaN.
    told = [
        {name: json.dumps(value, sort_keys=True) for name, value in dataclasses.asdict(result).items()}
        for result in (old, new)
    ]
    return {
        name: (json.loads(told[0][name]), json.loads(told[1][name]))
        for name in told[0]
        if told[0][name] != told[1][name]
    }
