"""Distributed training: the process group, its collectives and the split of work.

Started by ``torchrun`` or ``accelerate launch``, every process runs the same program. Each plays its share
of a step's groups; the episodes are sent to all, so that advantages, token counts and the order of optimizer
steps follow from the whole batch, in every process alike. Each then trains on its share of the groups, with
token weights taken over the whole, and the gradients are summed: the result is that of one process, but for
the order in which floating-point numbers are summed. (AdamW divides a gradient by its own size, so a weight
whose gradient is only rounding, beside ``adam_epsilon``, may move either way, as between two machines.)

Gradients are summed here, once an optimizer step, and not by ``DistributedDataParallel``: that averages over
processes and expects the same number of backward passes in each.

Processes exchange JSON and tensors. No pickle: what arrives over a socket runs no code.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from art_gym.wrappers.judging import JudgeFailedError
from art_trainer.config import PROCESS_TIMEOUT
from art_trainer.errors import EngineError, TrainerError


class ProcessLostError(TrainerError, ConnectionError):
    """Another process of this run is gone, or has not answered in time."""

    exit_code = 1


class ProcessGroup:
    """The processes of a run, which all make the same calls; by default this process alone.

    Args:
        rank: This process's number, from 0.
        size: How many there are; several are those of PyTorch's default process group.
        timeout: Seconds to wait for the others before giving them up.
    """

    def __init__(self, rank: int = 0, size: int = 1, timeout: float = PROCESS_TIMEOUT) -> None:
        self.rank = rank
        self.size = size
        if size > 1:
            # Python objects go through main memory, whatever gradients go through.
            self._cpu_group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout))

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Return what every process hands in, by rank.

        Args:
            value: JSON-able. Other processes get what comes back from JSON: lists for tuples.

        Raises:
            ProcessLostError: If a process is gone.
        """
        if self.size == 1:
            return [value]
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        with _raise_process_lost():
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
            dist.all_gather(sizes, torch.tensor([len(data)]), group=self._cpu_group)
            padded = torch.zeros(int(max(sizes)), dtype=torch.uint8)
            padded[: len(data)] = data
            received = [torch.zeros_like(padded) for _ in range(self.size)]
            dist.all_gather(received, padded, group=self._cpu_group)
        return [
            value if rank == self.rank else json.loads(one[: int(size)].numpy().tobytes())
            for rank, (one, size) in enumerate(zip(received, sizes, strict=True))
        ]

    def all_reduce_sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the processes; a ProcessLostError if one is gone."""
        if self.size > 1:
            with _raise_process_lost():
                dist.all_reduce(tensor, group=self._cpu_group if tensor.device.type == "cpu" else None)

    def all_reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients by their sums over the processes; a ProcessLostError if one is gone.

        A parameter that has no gradient in any process stays without.
        """
        every = list(parameters) if self.size > 1 else []
        if not every:
            return
        having = torch.tensor([float(p.grad is not None) for p in every], device=every[0].device)
        self.all_reduce_sum(having)
        for parameter, count in zip(every, having.tolist(), strict=True):
            if count:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype)
                self.all_reduce_sum(parameter.grad)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with the main process's; a ProcessLostError if one is gone."""
        for tensor in tensors if self.size > 1 else ():
            with _raise_process_lost():
                group = self._cpu_group if tensor.device.type == "cpu" else None
                dist.broadcast(tensor.detach(), src=0, group=group)


def current_process_group(timeout: float = PROCESS_TIMEOUT) -> ProcessGroup:
    """Return the processes of the default process group, if there is one, else this one alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return ProcessGroup()
    return ProcessGroup(dist.get_rank(), dist.get_world_size(), timeout)


def is_rank_zero_env() -> bool:
    """Whether this process is the main one, or alone: known before it has joined the others."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def init_distributed(timeout: float = PROCESS_TIMEOUT) -> Iterator[ProcessGroup]:
    """Join the processes that a launcher started together; alone if none did.

    torchrun and accelerate describe the processes in the environment (``RANK``, ``WORLD_SIZE``,
    ``LOCAL_RANK``, ``MASTER_ADDR``, ``MASTER_PORT``). On a machine with GPUs each process takes the one of
    its local rank.

    Args:
        timeout: Seconds that a process waits for the others before it gives them up.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield current_process_group()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    with _raise_process_lost():
        dist.init_process_group(timeout=datetime.timedelta(seconds=timeout))
    try:
        yield current_process_group(timeout)
    finally:
        dist.destroy_process_group()


def run_on_all_ranks(processes: ProcessGroup, work: Callable[[], Any]) -> list[Any]:
    """Do each process's part of some work, and return what every one's came to, by rank.

    Raises:
        KeyboardInterrupt: If any of them was interrupted; all are then, at the same place.
        JudgeFailedError: If the judge of any of them failed for good.
        EngineError: If the engine or backend of any of them was lost.
    """
    stop: KeyboardInterrupt | JudgeFailedError | EngineError | None = None
    result = None
    try:
        result = work()
    except (KeyboardInterrupt, JudgeFailedError, EngineError) as raised:
        stop = raised
    kind = None if stop is None else type(stop).__name__
    reason = stop.reason if isinstance(stop, JudgeFailedError) else None
    outcomes = processes.gather({"result": result, "stopped": kind, "reason": reason, "error": str(stop)})
    if stop is not None:
        raise stop
    for rank, other in enumerate(outcomes):
        message = f"in process {rank}: {other['error']}"
        if other["stopped"] == KeyboardInterrupt.__name__:
            raise KeyboardInterrupt
        if other["stopped"] is not None:
            raise JudgeFailedError(other["reason"], message) if other["reason"] else EngineError(message)
    return [other["result"] for other in outcomes]


def shares(costs: Sequence[float], size: int) -> list[list[int]]:
    """Cut tasks into shares of about equal cost: the dearest first, each to whoever has least.

    Graham's longest-processing-time rule (1969): the dearest share is at most a third dearer than it need be.

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


@contextmanager
def _raise_process_lost() -> Iterator[None]:
    """Turn the ``RuntimeError`` that PyTorch raises for a lost peer into :class:`ProcessLostError`."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessLostError(
            "another rank of this run is gone or did not answer in time; see its error above, then restart "
            f"all ranks with --resume ({str(error).splitlines()[0]})"
        ) from error
