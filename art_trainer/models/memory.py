"""A device's free memory, memory that is given back, and what to do when it runs out."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil  # type: ignore[import-untyped]
import torch

from art_trainer.errors import DeviceMemoryError

T = TypeVar("T")
_CGROUP = Path("/sys/fs/cgroup")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkSizes:
    """How much a device computes at a time: enough to be busy, and no more memory than that takes."""

    read_tokens: int
    """Most tokens that a forward pass of a rollout reads, padding included."""
    logits: int
    """Most logits that an update holds; the backward pass computes them again."""
    microbatch_tokens: int
    """Most tokens of a micro-batch, if nobody sets them and memory allows."""

    @classmethod
    def of(cls, device: torch.device) -> WorkSizes:
        """Return a device's sizes; ``meta`` stands for a GPU of another machine."""
        gpu = device.type in ("cuda", "meta")
        return cls(2**14, 2**27, 2**15) if gpu else cls(2**12, 2**24, 2**12)


SMALL_PROCESS = 2**31
"""Resident bytes up to which freed memory is not given back."""


def free_memory(device: torch.device) -> int:
    """Return the bytes that this process can still allocate on a device.

    On a GPU what CUDA reports, and what PyTorch holds and does not use. On a CPU the memory that the system
    calls available, or what is left of the limit of a container (cgroup v2).
    """
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + held
    available = int(psutil.virtual_memory().available)
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        # Pages of files count as used, and are dropped when others need the room.
        files = next(x for x in (_CGROUP / "memory.stat").read_text().splitlines() if "inactive_file " in x)
    except (OSError, ValueError, StopIteration):
        return available
    return available if limit == "max" else min(available, int(limit) - used + int(files.split()[1]))


def usable_memory(device: torch.device) -> int:
    """Return the bytes that a run plans with: nine tenths of what is free, as blocks leave gaps.

    Processes that a launcher started together share a machine's memory, and have a GPU each.
    """
    sharing = 1 if device.type == "cuda" else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return free_memory(device) * 9 // 10 // sharing


def release_memory(device: torch.device, *, above: int = SMALL_PROCESS) -> None:
    """Give memory that is no longer used back to the system, so that the next phase of a run can have it.

    Args:
        device: Whose memory.
        above: Resident bytes up to which a process on a CPU keeps its memory.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        trim_memory(device, above=above)


def trim_memory(device: torch.device, *, above: int = SMALL_PROCESS) -> None:
    """Give back what is free between the blocks of a CPU that are in use; nothing for other devices.

    With a threshold that it raises by itself, glibc keeps freed blocks of up to 32 MiB. Micro-batches of
    different sizes leave gaps that the next does not fit into, so a process grows from one to the next. A
    small process keeps its memory: for a tiny model, getting it again would be a tenth of a step.
    """
    if device.type != "cpu" or sys.platform != "linux":
        return
    if psutil.Process().memory_info().rss > above:
        trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # other C libraries have none
            trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device had no room for a tensor."""
    words = ("can't allocate memory", "not enough memory")  # a CPU's
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(one in str(error) for one in words)
    )


def reclaim_memory(device: torch.device) -> None:
    """Give back what a computation held that ran out of memory; call it outside of ``except``."""
    gc.collect()
    release_memory(device)


class MicroBatchLimit:
    """The most tokens of a micro-batch, halved when memory runs out.

    Attributes:
        tokens: The limit.
        halved: A sentence for each time it was halved.
    """

    def __init__(self, tokens: int, device: torch.device) -> None:
        self.tokens = tokens
        self.halved: list[str] = []
        self._device = device

    def run(self, compute: Callable[[int], T], longest: int) -> T:
        """Call a function with the limit; if memory runs out, again with half of it.

        Args:
            compute: Must begin anew in each call.
            longest: Tokens of the longest row, which cannot be cut.

        Raises:
            DeviceMemoryError: If there is no room for one row either.
        """
        while True:
            try:
                return compute(self.tokens)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                if self.tokens <= longest:
                    raise DeviceMemoryError(
                        f"out of memory on {self._device} with one context of {longest:,} tokens in an "
                        "update: set gradient_checkpointing, lora, a smaller max_completion_length or model"
                    ) from error
            before, self.tokens = self.tokens, max(self.tokens // 2, longest)
            self.halved.append(
                f"Out of memory on {self._device} in an update: tokens_per_microbatch is {self.tokens:,} "
                f"from now on, not {before:,}. The result is the same."
            )
            _log.warning("%s", self.halved[-1])
            reclaim_memory(self._device)
