"""Workers without a model of their own: the server samples for them."""

from __future__ import annotations

import threading

import pytest
import torch

from art_trainer.config import GRPOConfig
from art_trainer.remote.backend import RemoteBackend
from art_trainer.remote.worker import Worker
from art_trainer.remote.worker_errors import RefusedError
from art_trainer.serving import ServedPolicy, openai_router
from art_trainer.starts import GroupTask
from tests.art_trainer.guess import GuessEnv, guess_policy

TOKEN = "a-token-that-nobody-guesses"
CONFIG = GRPOConfig(num_generations=4, max_completion_length=2)


def begin(worker, ended):
    thread = threading.Thread(target=lambda: ended.append(worker.run()))
    thread.start()
    return thread


def test_the_server_samples_and_each_token_has_its_version(tmp_path):
    policy = guess_policy(hidden=16)
    ended, said, asked = [], [], []
    with ServedPolicy(policy) as served:
        backend = RemoteBackend(
            policy, "toy", {}, CONFIG, tmp_path / "run", token=TOKEN, lease_seconds=5,
            routers=[openai_router(served)], on_publish=[served.update, asked.append],
        )  # fmt: skip
        worker = Worker(
            backend.url, lambda env_id, env_args: GuessEnv, tmp_path / "cache",
            token=TOKEN, capacity=8, inference="server", say=said.append,
        )  # fmt: skip
        backend.publish(0)
        thread = begin(worker, ended)
        for version in (0, 1):
            if version:
                with torch.no_grad():
                    for parameter in policy.model.parameters():
                        parameter.add_(0.05 * torch.sign(parameter))
                policy.version = version
                backend.publish(version)
            tasks = [GroupTask(n, 4, (version, n), batch=version) for n in range(2)]
            groups = backend.collect(tasks, on_episode=lambda episode: None)
            assert all(group.whole for group in groups)
            spans = [s for g in groups for e in g.episodes for h in e.histories for s in h.spans]
            assert {span.policy_version for span in spans} == {version}
            assert any(span.logprobs for span in spans)
        backend.close()
        thread.join(20)
    assert ended == [0], said
    kept = {file.stat().st_size for file in (tmp_path / "cache" / "files").iterdir()}
    assert max(kept) < 10_000, "no weights were fetched"


def test_a_server_that_samples_for_nobody_is_said_so(tmp_path):
    policy = guess_policy(hidden=16)
    backend = RemoteBackend(policy, "toy", {}, CONFIG, tmp_path / "run", lease_seconds=5)
    backend.publish(0)
    backend.prefetch([GroupTask(0, 1, (0, 0))])
    worker = Worker(
        backend.url, lambda env_id, env_args: GuessEnv, tmp_path / "cache",
        inference="server", say=lambda words: None,
    )  # fmt: skip
    try:
        with pytest.raises(RefusedError, match="samples for no workers"):
            worker.run()
    finally:
        backend.close()
