"""The Ray backend without a cluster: how actors fail and are replaced, and what is said of wrong settings."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from art_trainer.cli.run_config import gather_settings
from art_trainer.cli.train import ray_setup
from art_trainer.distributed.protocol import ClientStatus
from art_trainer.distributed.ray import backend
from art_trainer.distributed.ray.backend import ActorPool, ActorTimeouts, FailureReason
from art_trainer.distributed.ray.cluster import (
    ActorResources,
    Cluster,
    ClusterError,
    death_cause,
    describe_shortage,
    require_ray,
)
from art_trainer.errors import ConfigError

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason='needs the package ray: pip install "art-gym[ray]"'
)


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


def test_an_actor_without_room_is_reported_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
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


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (2, "none of the cluster's 2 nodes has as much; the most that one has is 8 CPU and 1 GPU"),
        (1, "8 CPU and 0 GPU are free"),
    ],
)
def test_a_shortage_is_described(gpus: int, words: str) -> None:
    nodes = [{"CPU": 2.0}, {"CPU": 8.0, "GPU": 1.0}]
    assert words in describe_shortage({"CPU": 4, "GPU": gpus}, list(nodes), {"CPU": 8.0})


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (
            "The actor died unexpectedly before finishing this task.\n\tclass_name: A\n\tip: 127.0.0.1\n"
            "The actor is dead because its worker process has died. End of file. Some common causes include: "
            "(1) the process was killed",
            "its worker process has died. End of file",
        ),
        ("The actor is dead because it was killed by `ray.kill`.", "it was killed by `ray.kill`."),
        (
            "\x1b[36mray::A.__init__()\x1b[39m\n  File x\nValueError: no such thing\n",
            "ValueError: no such thing",
        ),
        ("", "no reason given"),
    ],
)
def test_of_a_page_about_a_lost_actor_the_reason_is_kept(page: str, words: str) -> None:
    assert death_cause(page) == words


@needs_ray
@pytest.mark.parametrize(
    ("address", "fault"),
    [
        ("ray://10.0.0.5:10001", ConfigError),  # of Ray's client, which cannot be used
        ("127.0.0.1:1", ClusterError),  # nobody listens there
        ("127.0.0.1:port", ClusterError),
        ("127.0.0.1:99999", ClusterError),
    ],
)
def test_an_address_without_a_cluster_is_refused(address: str, fault: type[Exception]) -> None:
    with pytest.raises(fault, match=address):
        Cluster(address, actors=1, resources=ActorResources())


class CannotConnect(ModuleType):
    """Stands in for Ray, which says the same of a cluster that is not there and of one that wants a token."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self) -> None:
        super().__init__("ray")
        self.__spec__ = importlib.machinery.ModuleSpec("ray", None)

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: object) -> None:
        raise ConnectionError("Failed to connect to Ray cluster")


@pytest.mark.parametrize(
    ("address", "mode", "hinted"),
    [("head", None, True), ("head", "token", False), ("auto", None, False), (None, None, False)],
)
def test_a_cluster_at_an_address_may_want_a_token(
    monkeypatch: pytest.MonkeyPatch, address: str | None, mode: str | None, hinted: bool
) -> None:
    monkeypatch.setitem(sys.modules, "ray", CannotConnect())
    monkeypatch.setenv("RAY_AUTH_MODE", mode or "")
    if mode is None:
        monkeypatch.delenv("RAY_AUTH_MODE")
    with pytest.raises(ClusterError, match="cannot be used: Failed to connect to Ray cluster") as caught:
        Cluster(address, actors=1, resources=ActorResources())
    assert ("RAY_AUTH_MODE=token" in str(caught.value)) is hinted


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'needs the package ray: pip install "art-gym\[ray\]"'):
        require_ray()


@needs_ray
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"engine": "vllm@http://127.0.0.1:1"}, "leave engine out"),
        ({"load_in_4bit": True}, "leave load_in_4bit out"),
        ({"backend": "rya"}, "backend"),
        ({"ray_actors": 0}, "ray_actors"),
        ({"ray_actor_gpus": -1.0}, "ray_actor_gpus"),
        ({"ray_actor_gpus": float("nan")}, "ray_actor_gpus"),
        ({"ray_actor_cpus": 0.0}, "ray_actor_cpus and ray_actor_gpus are both 0"),
    ],
)
def test_settings_that_do_not_go_with_ray_are_refused(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ray_setup(gather_settings({"env": "art/2048-v0", "backend": "ray", **setting}, overrides={}))
