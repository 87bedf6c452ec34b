"""Workers without a model of their own: the server samples for them."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
import torch

from art_trainer.config import GRPOConfig, LeaseOptions
from art_trainer.distributed.backend import RemoteBackend
from art_trainer.distributed.server import ServerOptions
from art_trainer.distributed.worker.connection import RefusedError
from art_trainer.distributed.worker.worker import Worker
from art_trainer.serving.openai import ServedPolicy
from art_trainer.serving.openai.router import openai_router
from art_trainer.types import GroupSpec
from tests.art_trainer.distributed.server_helpers import TOKEN
from tests.art_trainer.guess import GuessEnv, guess_policy

CONFIG = GRPOConfig(num_generations=4, max_completion_length=2)


@contextmanager
def running(tmp_path, policy, env, config=CONFIG, **options):
    """A backend that samples for its workers, and one of them without a model; it ends well."""
    with ServedPolicy(policy, **options) as served:
        options = ServerOptions(token=TOKEN, leases=LeaseOptions(5.0), routers=[openai_router(served)])
        backend = RemoteBackend(
            policy, "toy", {}, config, tmp_path / "run", options=options, on_publish=[served.update]
        )
        worker = Worker(
            backend.url, lambda env_id, env_args: env, tmp_path / "cache",
            token=TOKEN, capacity=8, inference="server",
        )  # fmt: skip
        with ThreadPoolExecutor(1) as thread:
            ended = thread.submit(worker.run)
            try:
                backend.publish(0)
                yield backend
            finally:
                backend.close()
            assert ended.result(20) is None


def spans_of(groups):
    return [s for g in groups for e in g.episodes for h in e.histories for s in h.spans]


def test_the_server_samples_and_each_token_has_its_version(tmp_path):
    policy = guess_policy(hidden=16)
    with running(tmp_path, policy, GuessEnv) as backend:
        for version in (0, 1):
            with torch.no_grad():
                for parameter in policy.model.parameters():
                    parameter.add_(0.05 * torch.sign(parameter))
            policy.version = version
            backend.publish(version)
            tasks = [GroupSpec(n, 4, (version, n), batch=version) for n in range(2)]
            groups = backend.collect(tasks, on_episode=lambda episode: None)
            assert all(group.whole for group in groups)
            assert {span.policy_version for span in spans_of(groups)} == {version}
            assert any(span.logprobs for span in spans_of(groups))
    kept = {file.stat().st_size for file in (tmp_path / "cache" / "files").iterdir()}
    assert max(kept) < 10_000, "no weights were fetched"


class HeldEnv(GuessEnv):
    """Three turns, whatever is said; the first stands still until it is let go."""

    begun = threading.Event()
    go_on = threading.Event()

    def step(self, action):
        self.turn += 1
        HeldEnv.begun.set()
        assert HeldEnv.go_on.wait(60)
        return "LOW", 0.0, self.turn == 3, False, {}


@pytest.mark.parametrize("past_versions", [0, 1])
def test_an_episode_ends_with_the_weights_it_began_with_while_those_may_be_used(tmp_path, past_versions):
    HeldEnv.begun.clear()
    HeldEnv.go_on.clear()
    policy = guess_policy(hidden=16)
    config = dataclasses.replace(CONFIG, max_staleness=1, importance_sampling_correction=True)
    tasks = [GroupSpec(seed, 4, (0, seed)) for seed in range(2)]
    with running(tmp_path, policy, HeldEnv, config, past_versions=past_versions) as backend:
        backend.prefetch(tasks)
        assert HeldEnv.begun.wait(60)
        policy.version = 1
        backend.publish(1)
        HeldEnv.go_on.set()
        groups = backend.collect(tasks, on_episode=lambda episode: None)
        results = backend.status().results
    assert [len(episode.turns) for group in groups for episode in group.episodes] == [3] * 8
    versions = {span.policy_version for span in spans_of(groups)}
    if past_versions:
        assert versions == {0}
        assert (results["leased"], results["accepted"], results.get("released", 0)) == (8, 8, 0)
    else:  # all of it is played again
        assert versions == {1}
        assert (results["leased"], results["accepted"]) == (16, 8)
        assert results.get("released", 0) + results.get("failed", 0) == 8


def test_a_server_without_the_api_is_refused(tmp_path):
    backend = RemoteBackend(guess_policy(hidden=16), "toy", {}, CONFIG, tmp_path / "run")
    with closing(backend):
        backend.publish(0)
        backend.prefetch([GroupSpec(0, 1, (0, 0))])
        worker = Worker(
            backend.url, lambda env_id, env_args: GuessEnv, tmp_path / "cache", inference="server"
        )
        with pytest.raises(RefusedError, match="samples for no workers"):
            worker.run()
