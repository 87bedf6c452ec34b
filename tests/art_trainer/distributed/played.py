"""Groups to play, and episodes as a worker would have played them."""

from __future__ import annotations

from collections.abc import Sequence

from art_trainer.distributed.protocol import Lease
from art_trainer.types import Ending, Episode, GroupSpec, Span, TokenHistory, Turn


def task(place: int = 0, *, batch: int = 0, size: int = 2, seed: int | None = None) -> GroupSpec:
    """A group, named by its batch and place."""
    seed = 100 * batch + place if seed is None else seed
    return GroupSpec(seed, size, (7, 3, batch, place), {"split": "train"}, batch)


def member_of(lease: Lease) -> int:
    """Which attempt of its group a lease is for."""
    return lease.rng_seed[-1]


def episode(
    of: GroupSpec | Lease,
    reply: str = "left",
    *,
    version: int | Sequence[int] = 0,
    ending: Ending = Ending.TERMINATED,
    task_id: str | None = None,
    env_id: str = "made/Env-v0",
    reward: float = 0.5,
) -> Episode:
    """An attempt at a group's task, or of a lease of it; ``reply`` tells attempts apart."""
    versions = [version] if isinstance(version, int) else list(version)
    spans = [Span((1, 2, 3), policy_version=versions[0])]
    spans += [Span((4, 5), turn, (-0.5, -0.25), one) for turn, one in enumerate(versions)]
    turns = tuple(Turn(reply, "moved", reward, {"moved": reward}) for _ in versions)
    return Episode(
        env_id,
        f"task-{of.seed}" if task_id is None else task_id,
        of.seed,
        "start",
        turns,
        (TokenHistory(tuple(spans)),),
        ending,
        success=True,
        metrics={"moves": 1.0},
    )
