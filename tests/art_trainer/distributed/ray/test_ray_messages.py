"""What the Ray backend says of clusters, actors and settings that are not right; no cluster is needed."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from art_trainer.cli.run_config import gather_settings
from art_trainer.cli.train import ray_setup
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
        ({"ray_actor_gpus": -1.0}, "ray_actor_gpus"),
        ({"ray_actor_gpus": float("nan")}, "ray_actor_gpus"),
        ({"ray_actor_cpus": 0.0}, "ray_actor_cpus and ray_actor_gpus are both 0"),
    ],
)
def test_settings_that_do_not_go_with_ray_are_refused(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ray_setup(gather_settings({"env": "art/2048-v0", "backend": "ray", **setting}, overrides={}))
