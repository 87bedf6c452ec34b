"""How many CPU cores a process may use, and what they can multiply."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Return the cores that this process may run on, but no more than its container's quota (cgroup v2).

    Where there are more threads than the quota has cores, the system stops them all for a part of the time.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text().split()
        return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):
        return cores


def multiplies_bfloat16() -> bool:
    """Return whether this CPU has instructions that multiply matrices in bfloat16."""
    import torch

    if platform.machine() in ("x86_64", "AMD64"):
        return torch.cpu._is_avx512_bf16_supported()  # with AVX-512 alone oneDNN converts to float32 and back
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
