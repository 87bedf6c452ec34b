"""One training run in several processes: what each of them needs to know of the others.

Started by ``torchrun`` or ``accelerate launch``, every process runs the same program. Each plays its share
of a step's groups; the episodes are handed to all, so that advantages, token counts and the order of
optimizer steps are worked out from the whole batch, in every process alike. Each then trains on its share of
the groups, with weights taken over the whole, and the gradients are added up: the result is that of one
process, but for the order in which floating-point numbers are summed. (AdamW divides a gradient by its own
size, so a weight whose gradient is nothing but rounding, beside ``adam_epsilon``, may move either way. Runs
part by that as they do between two machines.) A process with less work, or none, adds less, or nothing.

Gradients are added up here, once an optimizer step, and not by ``DistributedDataParallel``: that averages
over processes and expects the same number of backward passes in each.

What processes tell each other is JSON and tensors. No pickle: what arrives over a socket runs no code.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from art_gym.wrappers.judging import JudgeFailed
from art_trainer.config import PROCESS_TIMEOUT
from art_trainer.errors import EngineError, TrainerError

BUCKET = 2**24
"""Most numbers that are added up in one call."""


class ProcessLostError(TrainerError, ConnectionError):
    """Another process of this run is gone, or has not answered in time."""

    exit_code = 1


class Processes:
    """The processes of a run; this class is a process that is alone.

    Attributes:
        rank: This process's number, from 0.
        size: How many there are.
    """

    rank = 0
    size = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Return what every process hands in, by rank; each has to call it.

        Args:
            value: JSON-able. Other processes get what comes back from JSON: lists for tuples.
        """
        return [value]

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the processes; each has to call it."""

    def add_up_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients by their sums over the processes; each has to call it.

        A parameter that has no gradient in any process stays without.
        """

    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with the main process's; each has to call it."""

    def share(self, costs: Sequence[float]) -> list[int]:
        """Return which of the tasks of these costs are this process's, in order."""
        return shares(costs, self.size)[self.rank]


class Together(Processes):
    """The processes of PyTorch's default process group.

    Args:
        timeout: Seconds to wait for the others before giving them up.
    """

    def __init__(self, timeout: float = PROCESS_TIMEOUT) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        # Words go through main memory, whatever gradients go through.
        self._words = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout))

    def gather(self, value: Any) -> list[Any]:
        """Return what every process hands in, by rank; each has to call it.

        Raises:
            ProcessLostError: Where one is gone.
        """
        words = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        with _lost_in_words():
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
            dist.all_gather(sizes, torch.tensor([len(words)]), group=self._words)
            longest = max(int(size) for size in sizes)
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(words)] = words
            said = [torch.zeros_like(padded) for _ in range(self.size)]
            dist.all_gather(said, padded, group=self._words)
        return [
            value if rank == self.rank else json.loads(one[: int(size)].numpy().tobytes())
            for rank, (one, size) in enumerate(zip(said, sizes, strict=True))
        ]

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the processes; each has to call it.

        Raises:
            ProcessLostError: Where one is gone.
        """
        with _lost_in_words():
            dist.all_reduce(tensor, group=self._words if tensor.device.type == "cpu" else None)

    def add_up_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients by their sums over the processes; each has to call it.

        Raises:
            ProcessLostError: Where one is gone.
        """
        every = list(parameters)
        if not every:
            return
        having = torch.tensor([float(p.grad is not None) for p in every], device=every[0].device)
        self.add_up(having)
        wanted = [p for p, count in zip(every, having.tolist(), strict=True) if count]
        for bucket in _buckets(wanted):
            flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
            self.add_up(flat)
            parts = torch.split(flat, [p.numel() for p in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                parameter.grad = part.view_as(parameter).clone()

    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with the main process's; each has to call it.

        Raises:
            ProcessLostError: Where one is gone.
        """
        with _lost_in_words():
            for tensor in tensors:
                group = self._words if tensor.device.type == "cpu" else None
                dist.broadcast(tensor.detach(), src=0, group=group)


def current_processes() -> Processes:
    """Return the processes of the default process group, where there is one, else this one alone."""
    return Together() if dist.is_available() and dist.is_initialized() else Processes()


def is_main_to_be() -> bool:
    """Whether this process is the main one, or alone: known before it has joined the others."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def joined(timeout: float = PROCESS_TIMEOUT) -> Iterator[Processes]:
    """Join the processes that a launcher started together; alone where none did.

    Launchers say in the environment who is who (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR``,
    ``MASTER_PORT``), torchrun's and accelerate's alike. On a machine with GPUs each process takes the one of
    its local rank.

    Args:
        timeout: Seconds that a process waits for the others before it gives them up.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield current_processes()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    with _lost_in_words():
        dist.init_process_group(timeout=datetime.timedelta(seconds=timeout))
    try:
        yield Together(timeout)
    finally:
        dist.destroy_process_group()


def jointly(processes: Processes, work: Callable[[], Any]) -> list[Any]:
    """Do each process's part of some work, and return what every one's came to, by rank.

    Args:
        processes: Who works.
        work: This process's part; what it returns is JSON-able.

    Raises:
        KeyboardInterrupt: Where any of them was interrupted; all are then, at the same place.
        JudgeFailed: Where the judge of any of them failed for good.
        EngineError: Where what samples, or plays elsewhere, was lost to any of them.
    """
    stop: KeyboardInterrupt | JudgeFailed | EngineError | None = None
    result = None
    try:
        result = work()
    except (KeyboardInterrupt, JudgeFailed, EngineError) as raised:
        stop = raised
    kind = None if stop is None else type(stop).__name__
    reason = stop.reason if isinstance(stop, JudgeFailed) else None
    said = processes.gather({"result": result, "stopped": kind, "reason": reason, "words": str(stop)})
    if stop is not None:
        raise stop
    for rank, one in enumerate(said):
        if one["stopped"] is not None:
            raise _stop_of_another(rank, one)
    return [one["result"] for one in said]


def _stop_of_another(rank: int, said: Mapping[str, str]) -> KeyboardInterrupt | JudgeFailed | EngineError:
    """What stopped another process, to stop this one by."""
    words = f"in process {rank}: {said['words']}"
    if said["stopped"] == KeyboardInterrupt.__name__:
        return KeyboardInterrupt()
    return JudgeFailed(said["reason"], words) if said["reason"] else EngineError(words)


def shares(costs: Sequence[float], size: int) -> list[list[int]]:
    """Cut tasks into shares of about equal cost: the dearest first, each to whoever has least.

    Graham's longest-processing-time rule (1969): the dearest share is at most a third dearer than it need be.

    Args:
        costs: What each task costs.
        size: How many shares to make.

    Returns:
        For each share its tasks' indices, rising; the same for the same costs.
    """
    taken: list[list[int]] = [[] for _ in range(size)]
    loads = np.zeros(size)
    for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        least = int(loads.argmin())
        taken[least].append(index)
        loads[least] += costs[index]
    return [sorted(indices) for indices in taken]


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Cut parameters into runs of one type and place, of at most about :data:`BUCKET` numbers."""
    bucket: list[nn.Parameter] = []
    held = 0
    for parameter in parameters:
        other = bucket and (bucket[0].dtype, bucket[0].device) != (parameter.dtype, parameter.device)
        if bucket and (other or held + parameter.numel() > BUCKET):
            yield bucket
            bucket, held = [], 0
        bucket.append(parameter)
        held += parameter.numel()
    if bucket:
        yield bucket


@contextmanager
def _lost_in_words() -> Iterator[None]:
    """Say what a failed exchange means; PyTorch's backends raise ``RuntimeError`` for a lost peer."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessLostError(
            "another process of this run is gone or did not answer in time; see its own last words above. "
            f"Start all again, with --resume from the last checkpoint. ({str(error).splitlines()[0]})"
        ) from error
