"""The actors of the Ray backend, without Ray: each way to fail, asserted by counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from art_trainer.distributed.protocol import ClientStatus
from art_trainer.distributed.ray import backend
from art_trainer.distributed.ray.backend import ActorPool, ActorTimeouts, FailureReason
from art_trainer.distributed.ray.cluster import ClusterError
from art_trainer.errors import ConfigError


@dataclass
class Actor:
    name: str
    ended: str | None = None
    killed: bool = False

    def error(self) -> str | None:
        return self.ended

    def kill(self) -> None:
        self.killed = True


@dataclass
class Scene:
    """A pool of two actors, a clock, and what the server knows of them."""

    actors: list[Actor] = field(default_factory=list)
    clients: dict[str, ClientStatus] = field(default_factory=dict)
    accepted: int = 0
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.pool = ActorPool(
            self.create,  # type: ignore[arg-type]
            lambda: SimpleNamespace(  # type: ignore[arg-type, return-value]
                clients=self.clients.values(), results={"accepted": self.accepted}
            ),
            size=2,
            timeouts=ActorTimeouts(startup=10, lease=5, heartbeat=20, progress=30),
            describe_resources=lambda: "There is no room at all",
        )

    def create(self, name: str) -> Actor:
        self.actors.append(Actor(name))
        return self.actors[-1]

    def connect(self, *actors: Actor, played: int = 0, leases: int = 4, silent: float = 0.0) -> None:
        for actor in actors:
            self.clients[actor.name] = ClientStatus(
                id=actor.name, connected=silent < 20, policy_version=0, leases=leases,
                episodes_played=played, episodes_per_second=0.0, last_seen_seconds=silent, last_error=None,
                software={},
            )  # fmt: skip

    def check(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.pool.check()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene()
    monkeypatch.setattr(backend.time, "monotonic", lambda: made.now)
    made.check()
    return made


def fail(scene: Scene, reason: FailureReason) -> None:
    """Let the first actor fail; the other one works."""
    first, second = scene.actors[:2]
    scene.connect(second)
    if reason == "died":
        first.ended = "hit by lightning"
    elif reason == "unresponsive":
        scene.connect(first, silent=21.0)
    elif reason == "unschedulable":
        scene.now += 11
    else:
        scene.connect(first)
        scene.check()
        scene.connect(second, played=1)
        scene.check(31)


@pytest.mark.parametrize("reason", ["died", "unresponsive", "stalled", "unschedulable"])
def test_a_failed_actor_is_killed_and_replaced_under_a_new_name(
    scene: Scene, reason: FailureReason, caplog: pytest.LogCaptureFixture
) -> None:
    assert [actor.name for actor in scene.actors] == ["actor-0.1", "actor-1.1"]
    fail(scene, reason)
    scene.check()
    assert [actor.killed for actor in scene.actors[:2]] == [True, False]
    scene.check(1)
    assert [actor.name for actor in scene.actors[2:]] == ["actor-0.2"]
    assert scene.pool.failures == {reason: 1}
    assert len(caplog.messages) == 1
    scene.pool.close()
    assert all(actor.killed for actor in scene.actors)


def test_an_actor_with_progress_or_without_work_is_not_stalled(scene: Scene) -> None:
    for played in range(5):
        scene.connect(scene.actors[0], played=played)
        scene.connect(scene.actors[1], leases=0)
        scene.check(20)
    assert not scene.pool.failures


def test_a_cluster_without_room_for_any_actor_ends_the_run(scene: Scene) -> None:
    with pytest.raises(ClusterError, match=r"cannot be scheduled .*There is no room at all"):
        scene.check(11)


def test_an_actor_without_room_is_reported_once_while_others_play(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.connect(scene.actors[1], leases=0)
    for _ in range(4):
        scene.check(11)
        scene.check()
    assert scene.pool.failures == {"unschedulable": 4}
    assert len(caplog.messages) == 1


def fail_often(scene: Scene, times: int, *, results: bool) -> None:
    for played in range(times):
        scene.connect(scene.actors[1], played=played)
        scene.actors[-1 if len(scene.actors) > 2 else 0].ended = "a bug"
        scene.accepted += results
        scene.check(60)
        scene.check()


def test_actors_that_always_fail_end_the_run_unless_results_come(scene: Scene) -> None:
    fail_often(scene, 20, results=True)
    with pytest.raises(ClusterError, match=r"7 consecutive actor failures .*a bug"):
        fail_often(scene, 20, results=False)


def test_there_is_at_least_one_actor(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ray_actors is 0"):
        backend.RayBackend(None, "x", {}, None, actors=0)  # type: ignore[arg-type]
