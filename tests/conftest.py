"""What every test shares."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import HealthCheck, settings

from art_gym import lookup

# A test run says the same of the same code twice. To look for new counterexamples:
# `make test ARGS="--hypothesis-profile explore"`.
PATIENT: Any = {  # of a busy machine; and fixtures may be shared by examples
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}
settings.register_profile("repeatable", max_examples=40, derandomize=True, database=None, **PATIENT)
settings.register_profile("explore", max_examples=2_000, **PATIENT)
settings.load_profile("repeatable")

# More workers than cores: more threads would only wait for each other. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A script's shell has the jobs that it starts with `&` ignore Ctrl-C. Tests send it to their own process.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


_MEASURED = ("art_gym", "envs", "wrappers")
"""Folders of tests whose coverage counts. Tracing the others would only make them a third slower."""

_REPEATING = (
    "test_2048_board.py",
    "test_2048_players.py",
    "test_checker.py",
    "test_coding_grammar.py",
    "test_coding_problems.py",
    "test_parser.py",
    "test_sandbox_hostile.py",
    "test_vector.py",
)
"""Files in those folders that do the same thousands of times: tracing doubles what they take. The coverage is
at least what is reported."""

_LONGEST = (
    "test_certificate.py",
    "test_recipes.py",
    "test_tutorial.py",
    "test_ray_cluster.py",
    "test_env_files.py",
    "test_analysis_trained.py",
    "test_readme.py",
    "test_documentation.py",
    "test_agent_command.py",
    "test_certificates.py",
    "test_killed.py",
    "test_distributed.py",
)
"""Begun first: a worker that begins one of them last keeps the other waiting."""


_E2E_TIMEOUT = 2400
"""Seconds of an end-to-end test: four times what the slowest takes on a slow and busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, everything else in its order; trace those whose coverage counts."""
    tests = Path(__file__).parent
    slow = {line for line in (tests / "slow.txt").read_text().splitlines() if not line.startswith("#")}
    for item in items:
        if item.nodeid.split("[")[0] in slow:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("e2e"):
            item.add_marker(pytest.mark.timeout(_E2E_TIMEOUT))
        measured = any(item.path.is_relative_to(tests / folder) for folder in _MEASURED)
        if not measured or item.path.name in _REPEATING:
            item.add_marker(pytest.mark.no_cover)
    items.sort(key=lambda item: item.path.name not in _LONGEST)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Undo what a command in this process set for itself; all later tests would take twice as long."""
    yield
    if (torch := sys.modules.get("torch")) is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def world_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep generated mailboxes out of the user's cache; parallel workers share one folder."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    os.environ["ART_GYM_CACHE"] = str(shared / "art-gym-cache")


@pytest.fixture(autouse=True)
def forget_env_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Forget the environments of files that a test imported by their names, and the modules that they are."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(lookup, "_registered_by", {**lookup._registered_by})
    modules, ids = {*sys.modules}, {*gym.registry}
    yield
    homes = str(tmp_path_factory.getbasetemp()), str(Path(__file__).with_name("environments"))
    gone = {
        name
        for name in sys.modules.keys() - modules
        if str(getattr(sys.modules[name], "__file__", None)).startswith(homes)
    }
    for name in gone:
        del sys.modules[name]
    # A library that it imported for the first time stays imported, and its environments registered.
    for env_id in gym.registry.keys() - ids:
        entry_point = gym.registry[env_id].entry_point
        home = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
        if home.partition(":")[0] in gone:
            del gym.registry[env_id]
