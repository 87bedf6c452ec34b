"""Training through a server, with real workers: the numbers of training alone, whatever breaks meanwhile."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from art_trainer.config import GRPOConfig
from art_trainer.distributed.backend import RemoteBackend
from art_trainer.distributed.result_log import ResultLog
from art_trainer.distributed.task_queue import BackendClosedError
from art_trainer.distributed.weights import WeightError
from art_trainer.distributed.worker.worker import Worker
from art_trainer.errors import EngineError
from art_trainer.rollout.backend import RolloutBackend
from art_trainer.tracking.episode_store import iter_steps
from art_trainer.tracking.run_dir import list_checkpoints
from art_trainer.training.trainer import GRPOTrainer
from art_trainer.types import Episode, Group, GroupSpec
from tests.art_trainer.guess import SETTINGS as SHORT
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.waiting import until

SETTINGS = SHORT | {"max_completion_length": 2}
STALE = {"max_staleness": 1, "importance_sampling_correction": True}


class Run:
    """A trainer, a server and its workers."""

    def __init__(self, folder: Path, *, callbacks: tuple[Any, ...] = (), **settings: Any) -> None:
        self.config = GRPOConfig(output_dir=str(folder), **{**SETTINGS, **settings})
        self.policy = guess_policy(0, hidden=16)
        self.backend = RemoteBackend(self.policy, "GuessEnv", {}, self.config, folder, drain_seconds=5)
        parts: dict[str, Any] = {"backend": self.backend, "callbacks": callbacks}
        self.trainer = GRPOTrainer(self.policy, GuessEnv, self.config, **parts)
        self.workers: list[tuple[Worker, threading.Thread]] = []

    def add_worker(self) -> Worker:
        cache = Path(self.config.output_dir) / "cache"
        options: dict[str, Any] = {"capacity": 8, "device": "cpu", "patience": 60}
        worker = Worker(self.backend.url, lambda env, args: GuessEnv, cache, **options)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        self.workers.append((worker, thread))
        return worker

    def close(self) -> None:
        self.trainer.close()
        for worker, thread in self.workers:
            worker.stop()
            thread.join(60)
            assert not thread.is_alive()


@contextmanager
def running(folder: Path, *, workers: int = 1, **options: Any) -> Iterator[Run]:
    run = Run(folder, **options)
    for _ in range(workers):
        run.add_worker()
    try:
        yield run
    finally:
        run.close()


class At:
    """Does something at an episode or a step."""

    def __init__(self, *, step: int = 0, episode: int = 0, do: Callable[[], object]) -> None:
        self.step, self.episode, self.do = step, episode, do
        self.episodes = 0

    def on_step(self, metrics: Mapping[str, float]) -> None:
        if metrics["step"] == self.step:
            self.do()

    def on_episode(self, episode: Episode) -> None:
        self.episodes += 1
        if self.episodes == self.episode:
            self.do()


def interrupt() -> None:
    raise KeyboardInterrupt


def local(folder: Path, **settings: Any) -> GRPOTrainer:
    config = GRPOConfig(output_dir=str(folder), **{**SETTINGS, **settings})
    with closing(GRPOTrainer(guess_policy(0, hidden=16), GuessEnv, config)) as trainer:
        trainer.train()
    return trainer


def weights(trainer: GRPOTrainer) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in trainer.policy.model.parameters()])


def sampling_versions(groups: Iterable[Group]) -> set[int]:
    histories = [h for group in groups for episode in group.episodes for h in episode.histories]
    return {span.policy_version for h in histories for span in h.spans if span.turn is not None}


def learned_from(folder: Path) -> list[tuple[int, tuple[Group, ...]]]:
    return [(step.step, tuple(step.groups)) for step in iter_steps(folder)]


def test_training_over_the_network_gives_the_numbers_of_training_alone(tmp_path: Path) -> None:
    alone = local(tmp_path / "alone")
    with running(tmp_path / "served") as run:
        # Later, not at once: Transformers' way to make a model without weights is for one thread at a time.
        run.trainer.callbacks = (At(step=1, do=run.add_worker),)
        run.trainer.train()
        results = run.backend.status().results
    assert {name: count for name, count in results.items() if count} == {"leased": 48, "accepted": 48}
    for here, there in zip(alone.log.metrics().records, run.trainer.log.metrics().records, strict=True):
        for name in ("reward", "policy_loss", "kl", "entropy", "grad_norm", "num_tokens"):
            assert here[name] == pytest.approx(there[name], rel=1e-4, abs=1e-5), name
    assert torch.allclose(weights(alone), weights(run.trainer), atol=1e-5)
    assert [thread.is_alive() for _, thread in run.workers] == [False, False]
    with closing(ResultLog(tmp_path / "served" / "journal")) as log:
        assert log.empty, "the last checkpoint holds what was learned from them"


@pytest.mark.parametrize("after", ["collecting", "updating"])
def test_what_was_played_before_an_interruption_is_used_once(tmp_path: Path, after: str) -> None:
    straight = local(tmp_path / "straight")
    at = At(episode=21, do=interrupt) if after == "collecting" else At(step=2, do=interrupt)
    with running(tmp_path / "run", callbacks=(at,)) as run:
        with pytest.raises(KeyboardInterrupt):
            run.trainer.train()
        stopped_at = run.trainer.step
    with closing(ResultLog(tmp_path / "run" / "journal")) as log:
        logged = len(list(log.replay()))
    with running(tmp_path / "run", workers=0) as again:
        again.trainer.load_checkpoint(list_checkpoints(again.trainer.log.checkpoints)[-1])
        assert again.trainer.step == stopped_at
        again.add_worker()
        again.trainer.train()
        results = again.backend.status().results
    assert results.get("resumed", 0) == logged
    assert results["accepted"] + logged == 16 * (3 - stopped_at)
    assert torch.allclose(weights(straight), weights(again.trainer), atol=1e-5)


def test_the_same_trainer_continues_after_an_interruption(tmp_path: Path) -> None:
    straight = local(tmp_path / "straight")
    with running(tmp_path / "run", callbacks=(At(episode=10, do=interrupt),)) as run:
        with pytest.raises(KeyboardInterrupt):
            run.trainer.train()
        run.trainer.train()
        assert run.backend.status().results["accepted"] == 48
    assert torch.allclose(weights(straight), weights(run.trainer), atol=1e-5)


def test_workers_play_ahead_as_far_as_they_may(tmp_path: Path) -> None:
    with running(tmp_path / "run", **STALE) as run:
        ahead = At(step=1, do=lambda: until(lambda: run.backend.status().queue.finished > 0))
        run.trainer.callbacks = (ahead,)
        run.trainer.train()
    ages = {
        step - 1 - version
        for step, groups in learned_from(tmp_path / "run")
        for version in sampling_versions(groups)
    }
    assert ages == {0, 1}


def test_what_is_too_old_when_it_is_wanted_is_played_again(tmp_path: Path) -> None:
    with running(tmp_path / "run", workers=0, **STALE) as run:
        backend, trainer = run.backend, run.trainer
        tasks = [GroupSpec(7, 2, (0, 0, 0), None, 0)]
        backend.publish(0)
        backend.prefetch(tasks)
        worker = run.add_worker()
        until(lambda: backend.status().queue.finished == 2)
        worker.stop()
        trainer.policy.version = 2
        backend.publish(2)  # two updates later, of which one is allowed
        run.add_worker()
        reported: list[Episode] = []
        groups = backend.collect(tasks, on_episode=reported.append)
        assert sampling_versions(groups) == {2}
        assert backend.stale == backend.status().results["requeued"] == len(reported) == 2


def test_weights_that_cannot_be_written_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "run") as run:
        publish = run.backend._weights.publish

        def full(version: int) -> Any:
            if version == 2:
                raise WeightError("no space left")
            return publish(version)

        monkeypatch.setattr(run.backend._weights, "publish", full)
        with pytest.raises(EngineError, match="version 2 cannot be published"):
            run.trainer.train()
        assert run.backend.status().policy_version == 1  # which workers still get
        assert run.backend._weights.manifest(1) is not None
        assert [run.trainer.step] == [2]
        assert list_checkpoints(run.trainer.log.checkpoints)


def test_a_request_to_end_ends_the_run_without_workers_and_so_does_closing(tmp_path: Path) -> None:
    with running(tmp_path / "run", workers=0) as run:
        asking = threading.Timer(0.2, run.backend._interrupt)
        asking.start()
        with pytest.raises(KeyboardInterrupt):
            run.trainer.train()
        asking.join()
        run.backend.close()
        with pytest.raises(BackendClosedError):
            run.trainer.collect_episodes()


def test_other_processes_have_nothing_to_ask_for() -> None:
    backend = RolloutBackend()
    backend.publish(1)
    backend.prefetch([])
    backend.saved(1)
    backend.close()
    with pytest.raises(NotImplementedError):
        backend.collect([], on_episode=lambda episode: None)
