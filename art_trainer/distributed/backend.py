"""Rollout backend whose groups are played by remote workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from art_trainer.config import GRPOConfig
from art_trainer.distributed.prompts import PromptRenderer
from art_trainer.distributed.protocol import RunSpec, ServerStatus
from art_trainer.distributed.result_checks import LogprobCheck, disagreements, episode_error
from art_trainer.distributed.result_log import FOLDER, ResultLog
from art_trainer.distributed.server import RunProgress, ServerOptions, TrainingServer
from art_trainer.distributed.task_queue import CompletedGroup, TaskQueue
from art_trainer.distributed.weights import WeightError, WeightStore
from art_trainer.errors import EngineError
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.rollout.backend import CollectCallbacks, RolloutBackend
from art_trainer.types import Episode, Group, GroupSpec

_POLL_SECONDS = 0.5


def run_spec(
    policy: TransformersPolicy, env: str, env_args: Mapping[str, Any], config: GRPOConfig
) -> RunSpec:
    """Return what a worker needs to play as the trainer's own process would.

    Args:
        policy: The policy.
        env: The environment's id.
        env_args: Its arguments.
        config: The trainer's settings, which decide how replies are sampled.
    """
    dtype = next(policy.model.parameters()).dtype
    return RunSpec(
        env=env,
        env_args=dict(env_args),
        sampling=SamplingParams.for_training(config, policy.sampling.stop_token_ids),
        record_states=config.records_states,
        history_window=policy.format.history_window,
        max_context=policy.max_context,
        dtype=str(dtype).removeprefix("torch."),
    )


class RemoteBackend(RolloutBackend):
    """Has groups played by workers over the network.

    It serves workers from its creation until :meth:`close`. Results are on disk before they are acknowledged:
    a new backend on the same folder, with a trainer that resumes from its checkpoint, uses each once. A
    collected group is kept until the next version, so that an interrupted trainer may ask for it again.

    Args:
        policy: The policy whose weights workers use.
        env: The environment's id; workers create it.
        env_args: Its arguments.
        config: The trainer's settings.
        folder: The run folder.
        options: Address, access and limits of the server.
        drain_seconds: How long :meth:`close` waits for workers to send finished results and leave.
        progress: Progress of the run; give it to the trainer too, as a callback.
        on_publish: Called with each version, by the training thread, before workers learn of it.
        on_shutdown: Called from another thread by a request to end the run; by default :meth:`collect`
            raises ``KeyboardInterrupt``, at which a trainer writes a checkpoint.

    Raises:
        ConfigError: If the address cannot be used, or others could reach it without a token.
        ResultLogError: If the result log belongs to another process or run, or is damaged.
        WeightError: If weights cannot be written.

    Attributes:
        server: The server.
        stale: How many episodes were played again because their weights were too old when wanted.
    """

    def __init__(
        self,
        policy: TransformersPolicy,
        env: str,
        env_args: Mapping[str, Any],
        config: GRPOConfig,
        folder: Path,
        *,
        options: ServerOptions | None = None,
        drain_seconds: float = 30.0,
        progress: RunProgress | None = None,
        on_publish: Sequence[Callable[[int], None]] = (),
        on_shutdown: Callable[[], None] | None = None,
    ) -> None:
        options = options or ServerOptions()
        self.stale = 0
        self._max_staleness = config.max_staleness
        self._logprobs = LogprobCheck(policy.model, config)
        self._drain_seconds = drain_seconds
        self._on_publish = tuple(on_publish)
        self._version: int | None = None
        self._interrupted = False
        vocabulary = int(policy.model.get_input_embeddings().weight.shape[0])  # type: ignore[operator]
        with ExitStack() as opened:
            log = ResultLog(folder / FOLDER)
            opened.callback(log.close)
            run = run_spec(policy, env, env_args, config)
            log.bind_to_run(run)
            prompts = PromptRenderer(policy, run.sampling)
            self._queue = TaskQueue(
                log,
                max_staleness=config.max_staleness,
                options=options.leases,
                check_episode=lambda episode: (
                    episode_error(episode, env, vocabulary, policy.max_context) or prompts.error(episode)
                ),
                on_work=lambda: self.server.connections.wake(),
            )
            opened.callback(self._queue.close)
            self._weights = WeightStore(folder / "weights", policy, keep=2 + config.max_staleness)
            self.server = TrainingServer(
                self._queue,
                self._weights,
                run,
                progress=progress or RunProgress(folder.name, config.max_steps),
                options=replace(options, routers=(prompts.router(), *options.routers)),
                version=policy.version,
                shut_down=on_shutdown or self._interrupt,
            )
            opened.callback(self.server.close)
            self._opened = opened.pop_all()

    @property
    def url(self) -> str:
        """The server's address."""
        return self.server.url

    def status(self) -> ServerStatus:
        """Return the server's state."""
        return self.server.status()

    def publish(self, version: int) -> None:
        """Publish the policy's present weights to workers.

        Raises:
            EngineError: If they cannot be written; workers keep the version before.
        """
        if version == self._version:
            return
        try:
            self._weights.publish(version)
        except WeightError as error:
            raise EngineError(
                f"the weights of version {version} cannot be published: {error}. Make room, and resume the "
                "run; workers still have the version before"
            ) from error
        for callback in self._on_publish:
            callback(version)
        self._version = version
        self._queue.publish(version)
        self.server.connections.announce(version)

    def prefetch(self, tasks: Sequence[GroupSpec]) -> None:
        """Have groups played that will be collected later."""
        self._queue.submit(tasks)

    def collect(self, tasks: Sequence[GroupSpec], **callbacks: Unpack[CollectCallbacks]) -> list[Group]:
        """Wait for groups, see :meth:`~art_trainer.rollout.backend.RolloutBackend.collect`.

        Raises:
            BackendClosedError: If the backend is closed meanwhile.
            EngineError: If the server has failed.
            KeyboardInterrupt: If somebody asked the server to end the run.
        """
        for task in tasks:
            # An interrupted step may have taken it already: it is delivered again at once.
            with contextlib.suppress(ValueError):
                self._queue.retry(task.id, (), "requested again")
        self._queue.submit(tasks)
        places = {task.id: place for place, task in enumerate(tasks)}
        groups: dict[int, Group] = {}
        while len(groups) < len(tasks):
            waiting = [task.id for place, task in enumerate(tasks) if place not in groups]
            for completed in self._queue.wait(waiting, timeout=_POLL_SECONDS):
                if not (self._retry_stale(completed) or self._reject_wrong(completed)):
                    place = places[completed.task.id]
                    groups[place] = _report(completed, place, **callbacks)
            self._check()
        return [groups[place] for place in range(len(tasks))]

    def saved(self, batch: int) -> None:
        """Drop results of earlier batches: a checkpoint holds what was learned from them."""
        self._queue.discard_before(batch)

    def drain_workers(self, reason: str) -> None:
        """Tell all workers to stop; the server still answers."""
        self.server.connections.drain(reason)

    def close(self) -> None:
        """Tell workers to stop, wait until they have sent finished results and left, and stop the server."""
        opened = self._opened.pop_all()  # closed once, whatever happens
        with opened:
            if self.server.connections.connected:
                self.server.drain("training is over, or the server stops", self._drain_seconds)

    def stop_without_drain(self) -> None:
        """Stop the server without telling workers: they wait for its restart."""
        self._opened.pop_all().close()

    def _check(self) -> None:
        """Called again and again while waiting; raises if nothing will come."""
        if self._interrupted:
            raise KeyboardInterrupt
        self.server.check()

    def _interrupt(self) -> None:
        self._interrupted = True

    def _retry_stale(self, completed: CompletedGroup) -> bool:
        """Whether some members are too old by now and are played again."""
        oldest = (self._version or 0) - self._max_staleness
        stale = [i for i, episode in enumerate(completed.episodes) if _sampled_before(episode, oldest)]
        if stale:
            self.stale += len(stale)
            self._queue.retry(completed.task.id, stale, f"sampled by weights older than version {oldest}")
        return bool(stale)

    def _reject_wrong(self, completed: CompletedGroup) -> bool:
        """Whether some members cannot be right and are played again, by other workers."""
        wrong = disagreements(completed.episodes) or self._logprobs.errors(completed.episodes)
        if wrong:
            self._queue.reject(completed.task.id, wrong)
        return bool(wrong)


def _report(completed: CompletedGroup, place: int, **callbacks: Unpack[CollectCallbacks]) -> Group:
    """Call what wants to know of a group."""
    group = Group(completed.episodes)
    for episode in completed.episodes:
        callbacks["on_episode"](episode)
    if (on_group := callbacks.get("on_group")) is not None:
        on_group(place, group)
    return group


def _sampled_before(episode: Episode, version: int) -> bool:
    """Whether any of an episode's tokens was sampled by weights of an earlier version."""
    spans = (span for history in episode.histories for span in history.spans)
    return any(span.policy_version < version for span in spans if span.turn is not None)
